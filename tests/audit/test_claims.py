"""The claim text: what it means, and one clear line for everything that it cannot mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.accounting import ApproximateDP, GaussianDP, MutualInformation, RenyiDP
from workbench.audit.claims import parse_claim
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency, Claim, Guarantee, Released, Secret


@pytest.mark.parametrize(
    ("text", "guarantee", "about"),
    [
        (
            "epsilon=1,delta=1e-5,adjacency=add-remove",
            ApproximateDP(epsilon=1.0, delta=1e-5),
            Adjacency.ADD_REMOVE,
        ),
        (
            " adjacency = zero-out , delta = 0 , epsilon = 0.5 ",
            ApproximateDP(epsilon=0.5, delta=0.0),
            Adjacency.ZERO_OUT,
        ),
        ("mu=0.5,adjacency=replace-one", GaussianDP(mu=0.5), Adjacency.REPLACE_ONE),
        ("alpha=8,renyi=0.5,adjacency=add-remove", RenyiDP(alpha=8.0, epsilon=0.5), Adjacency.ADD_REMOVE),
        ("nats=0.33,secret=record", MutualInformation(nats=0.33, secret=Secret.RECORD), Secret.RECORD),
        (
            "nats=0.33,secret=candidate-subset",
            MutualInformation(nats=0.33, secret=Secret.SUBSET),
            Secret.SUBSET,
        ),
    ],
)
def test_each_currency_is_read(text: str, guarantee: Guarantee, about: Adjacency | Secret) -> None:
    expected = Claim(guarantee=guarantee, about=about, released=Released.SCORES, source="the user")
    assert parse_claim(text) == expected


def test_released_is_read_and_defaults_to_what_the_caller_says() -> None:
    text = "mu=1,adjacency=add-remove"
    assert parse_claim(text, released=Released.EVERY_UPDATE).released is Released.EVERY_UPDATE
    stated = parse_claim(f"{text},released=final weights", released=Released.EVERY_UPDATE)
    assert stated.released is Released.FINAL_WEIGHTS


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["key=value"]),
        ("epsilon", ["key=value", "'epsilon'"]),
        ("epsilon=,delta=0,adjacency=add-remove", ["key=value"]),
        ("epsilon=1,delta=1.5,adjacency=add-remove", ["delta must be in [0, 1)", "1.5"]),
        ("epsilon=1,delta=1,adjacency=add-remove", ["delta must be in [0, 1)", "got 1"]),
        ("epsilon=-1,delta=0,adjacency=add-remove", ["epsilon must be", "-1"]),
        ("epsilon=nan,delta=0,adjacency=add-remove", ["epsilon must be", "nan"]),
        ("epsilon=inf,delta=0,adjacency=add-remove", ["epsilon must be", "inf"]),
        ("epsilon=1e400,delta=0,adjacency=add-remove", ["epsilon must be finite", "'1e400'"]),
        ("epsilon=one,delta=0,adjacency=add-remove", ["epsilon must be a number", "'one'"]),
        ("epsilon=1,adjacency=add-remove", ["delta is missing", "delta=0"]),
        ("epsilon=1,delta=1e-5", ["adjacency is missing", "add-remove | replace-one | zero-out"]),
        ("epsilon=1,delta=0,adjacency=addremove", ["'addremove'", "did you mean 'add-remove'?"]),
        ("epsilno=1,delta=0,adjacency=add-remove", ["'epsilno'", "did you mean 'epsilon'?"]),
        ("epsilon=1,epsilon=2,delta=0,adjacency=add-remove", ["'epsilon' is given twice"]),
        ("epsilon=1,delta=0,adjacency=add-remove,mu=1", ["'mu' does not go with 'epsilon'"]),
        ("mu=1,delta=0,adjacency=add-remove", ["'delta' does not go with 'mu'"]),
        ("nats=1", ["secret is missing", "record | candidate-subset"]),
        ("nats=1,secret=record,adjacency=add-remove", ["'adjacency' does not go with 'nats'"]),
        ("alpha=1,renyi=1,adjacency=add-remove", ["alpha must be", "got 1"]),
        ("renyi=1,adjacency=add-remove", ["alpha is missing"]),
        ("adjacency=add-remove", ["one of epsilon, mu, renyi or nats is missing"]),
        ("mu=1,adjacency=add-remove,released=score", ["did you mean 'scores'?"]),
    ],
)
def test_a_bad_claim_gets_one_line_that_names_the_value(text: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_claim(text)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["epsilon=", "1", ",", "delta=", "=", "\n", "mu"])).map("".join)
)
def test_no_text_raises_anything_but_an_input_error(text: str) -> None:
    message = ""
    try:
        parse_claim(text)
    except InputError as error:
        message = str(error)
    assert "\n" not in message
