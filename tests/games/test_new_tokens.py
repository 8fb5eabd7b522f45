"""Canaries of a new token each: fair to correct training, sharp on too little noise, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workbench.accounting.certified import calibrate_noise_multiplier
from workbench.attacks.token_canaries import TokenCanaries
from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import AuditSettings, claim_of, default_settings
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.games.base import Part, match_of
from workbench.games.new_tokens import NewTokensGame, NewTokensSeen
from workbench.interfaces import Insertions, NewTokens, Plan, Record
from workbench.training.fine_tuning import trainable
from workbench.training.models import LanguageModel, token_ids
from workbench.training.per_record import per_record_signals
from workbench.training.samples import MicroBatchedSignals, sample_signals
from workbench.training.sums import SumGradients
from workbench.training.vocabulary import add_tokens, uncertain_contexts

DELTA = 1e-5


def settings_of(**changes: Any) -> AuditSettings:
    """A few short records, many canaries, half of all in each step."""
    chosen: dict[str, Any] = {
        "claim": claim_of("dp_sgd", 1.0, DELTA),
        "attacks": ("token_canaries",),
        "attack_parameters": {"token_canaries": {"canaries": 400}},
        "candidates": 20,
        "steps": 20,
        "sampling_probability": 0.5,
        "optimizer": "sgd",
        "learning_rate": 0.3,
        "control": False,
        "workers": 0,
    }
    parameters = changes.pop("parameters", {})
    return default_settings(changes.pop("mechanism", "dp_sgd"), parameters, **{**chosen, **changes})


def judged(settings: AuditSettings, out: Path) -> dict[str, Any]:
    """The one game of an audit's report."""
    (game,) = audit_mechanisms(settings, out=out, command="c")["subjects"][0]["attacks"]
    return game


@pytest.fixture
def model() -> LanguageModel:
    """The shipped model."""
    made: LanguageModel = registry.create("model", "tiny_gpt2", seed=0)
    return made


@pytest.mark.slow
def test_a_correct_training_is_not_refuted_and_is_the_same_again(tmp_path: Path) -> None:
    first, second = judged(settings_of(), tmp_path / "a"), judged(settings_of(), tmp_path / "b")
    assert first["verdict"]["kind"] == "NOT_REFUTED"
    assert (first["scores"], first["members"]) == (second["scores"], second["members"])
    assert len(first["scores"]) == 400
    assert first["game"]["trials"] == "one-run"
    assert "400 new tokens" in first["game"]["description"]


@pytest.mark.slow
def test_a_training_of_too_little_noise_is_refuted_by_its_answers_alone(tmp_path: Path) -> None:
    noise = calibrate_noise_multiplier(
        target_epsilon=12.0, target_delta=DELTA, sampling_probability=0.5, steps=20
    )
    game = judged(settings_of(parameters={"noise_multiplier": noise}), tmp_path)
    assert game["verdict"]["kind"] == "REFUTED"
    assert game["game"]["released"] == "scores"


def test_a_new_tokens_gradient_lies_in_its_own_embedding(model: LanguageModel) -> None:
    """And in no other canary's."""
    text = uncertain_contexts(model)[0]
    tokens = tuple(f"<canary-{number}>" for number in range(4))
    before = model.module.transformer.wte.weight.shape[0]  # type: ignore[union-attr, index]
    add_tokens(model, NewTokens(tokens=tokens, context=text))
    batch = model.encode([Record(id=token, text=text + token) for token in tokens])
    assert batch["input_ids"][:, -1].tolist() == [before + number for number in range(4)]
    signals = per_record_signals(model, batch)
    place, shape = signals.layout["transformer.wte.weight"]
    gradients = signals.gradients()
    own = gradients[:, place].reshape(4, *shape)[range(4), range(before, before + 4)]
    assert (own.norm(dim=1) / gradients.norm(dim=1) > 0.99).all()
    directions = torch.nn.functional.normalize(gradients, dim=1)
    assert (directions @ directions.T - torch.eye(4)).abs().max() < 0.05


def test_all_new_tokens_are_as_likely_before(model: LanguageModel) -> None:
    add_tokens(model, NewTokens(tokens=("<a>", "<b>"), context=" the"))
    found = model.token_log_likelihoods(
        model.encode([Record(id="a", text=" the<a>"), Record(id="b", text=" the<b>")])
    )
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5)


def test_a_context_after_which_much_may_follow_comes_first(model: LanguageModel) -> None:
    squares = []
    for context in uncertain_contexts(model):
        ids = torch.tensor([token_ids(model.tokenizer, context)])
        with torch.no_grad():
            logits = model.module(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -1]
        squares.append(float(torch.softmax(logits, 0).square().sum()))
    assert squares == sorted(squares)


def test_a_saved_subject_has_its_tokens_again(tmp_path: Path) -> None:
    from workbench.training.loop import load_subject

    mechanism = registry.create("mechanism", "non_private").without_quality()
    plan = Plan(
        records=(Record(id="a", text="the<x>"), Record(id="b", text="the cat sat")),
        held_out=(),
        model="tiny_gpt2",
        steps=2,
        sampling_probability=1.0,
        learning_rate=1e-3,
        insertions=Insertions(new_tokens=NewTokens(tokens=("<x>", "<y>"), context="the")),
    )
    subject = mechanism.train(plan)
    subject.save(tmp_path)
    asked = [Record(id="y", text="the<y>")]
    again = load_subject(tmp_path, mechanism, plan)
    assert np.array_equal(again.token_log_likelihoods(asked)[0], subject.token_log_likelihoods(asked)[0])


@pytest.mark.parametrize(
    ("tokens", "context", "message"),
    [
        ((), "the", "at least one token"),
        ((), "", "at least one token"),
        ((" the",), "the", "must not be in the vocabulary"),
    ],
)
def test_bad_tokens_are_refused(
    model: LanguageModel, tokens: tuple[str, ...], context: str, message: str
) -> None:
    known = {
        word: model.tokenizer.convert_ids_to_tokens(token_ids(model.tokenizer, word))[0] for word in tokens
    }
    with pytest.raises(InputError, match=message):
        add_tokens(model, NewTokens(tokens=tuple(known.values()), context=context))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": "lora"}, "trained embeddings"),
        (
            {"corpus": "digits", "corpus_parameters": {}, "model": "digits_mlp", "model_parameters": {}},
            "language",
        ),
        ({"sampling": "shuffled", "candidates": 40}, "Poisson"),
    ],
)
def test_where_it_cannot_be_played_it_says_so(changes: dict[str, Any], message: str) -> None:
    setup = replace(settings_of(), **changes).setup()
    part = Part(setup=setup, attack="token_canaries", included=(True,) * setup.candidates)
    with pytest.raises(UnsupportedError, match=message):
        NewTokensGame().check(match_of(part, {}))


@pytest.mark.parametrize("context", ["", " the" * 300])
def test_a_context_that_cannot_be_read_is_refused_before_the_training(context: str) -> None:
    setup = settings_of().setup()
    if context:
        parameters = {"canaries": 20, "context": context}
        part = Part(setup=setup, attack="token_canaries", included=(True,) * 20, parameters=parameters)
        with pytest.raises(InputError, match="context must have 1 to 159 tokens"):
            NewTokensGame().check(match_of(part, {}))
    else:
        made = registry.create("model", "tiny_gpt2", seed=0)
        with pytest.raises(InputError, match="context must have"):
            add_tokens(made, NewTokens(tokens=("<a>",), context=""))


@pytest.mark.parametrize("given", [{"canaries": 2}, {"canaries": 10**9}, {"canaries": 20.5}, {"context": 3}])
def test_bad_parameters_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(given))):
        registry.create("attack", "token_canaries", **given)


def test_a_score_is_what_a_token_gained() -> None:
    seen = NewTokensSeen(log_likelihoods=np.array([-1.0, -3.0]), before=np.array([-2.0, -2.0]))
    assert TokenCanaries().score(seen, np.random.default_rng(0)).values.tolist() == [1.0, -1.0]


def test_the_default_audit_plays_it_where_the_vocabulary_grows() -> None:
    assert default_settings("dp_sgd").attacks == ("loss", "token_canaries", "dirac_canary")
    assert default_settings("dp_sgd", adapter="lora").attacks == ("loss", "lira", "dirac_canary")


def test_short_texts_before_long_ones_are_computed_apart(model: LanguageModel) -> None:
    """With the same norms and sums, in fewer tokens."""
    short = [Record(id=f"s{number}", text=f"the {number}") for number in range(9)]
    long = [Record(id=f"l{number}", text=f"once upon a time {number} " * 12) for number in range(2)]
    signals = sample_signals(model, [*short, *long], 64)
    assert isinstance(signals, MicroBatchedSignals)
    assert [len(part) for part in signals._parts] == [9, 2]
    whole = per_record_signals(model, model.encode([*short, *long]))
    torch.testing.assert_close(signals.norms(), whole.norms(), rtol=1e-4, atol=1e-5)
    weights = torch.linspace(0.5, 1.5, 11)
    torch.testing.assert_close(
        signals.weighted_sum(weights), whole.weighted_sum(weights), rtol=1e-3, atol=1e-4
    )
    assert not isinstance(sample_signals(model, long, 64), MicroBatchedSignals)


def test_plain_training_computes_short_texts_apart_too(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the gradient that one padded batch has."""
    records = [Record(id=f"s{number}", text=f"the {number}") for number in range(9)]
    records.append(Record(id="long", text="once upon a time " * 12))
    plan = Plan(
        records=tuple(records),
        held_out=(),
        model="tiny_gpt2",
        steps=1,
        sampling_probability=1.0,
        learning_rate=1e-3,
    )
    names = list(trainable(model.module))
    losses = model.losses(model.encode(records))
    expected = torch.autograd.grad(losses.sum(), list(trainable(model.module).values()))
    sizes, encode = [], model.encode
    monkeypatch.setattr(model, "encode", lambda part: sizes.append(len(part)) or encode(part))
    found, loss = SumGradients(model, plan, 64).gradient(records, names)
    assert sizes == [9, 1]
    assert loss == pytest.approx(float(losses.detach().mean()), rel=1e-5)
    for gradient, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, whole, rtol=1e-3, atol=1e-4)


def test_images_are_one_part() -> None:
    made = registry.create("model", "digits_mlp", seed=0)
    images = [Record(id=str(number), image=(0.5,) * 64, label=1) for number in range(8)]
    assert not isinstance(sample_signals(made, images, 64), MicroBatchedSignals)
