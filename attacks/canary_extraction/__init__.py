"""Canary extraction: are secrets that were planted in training told by the trained model? (RLDP, section 3.3)

Ten random secrets stand in some training records. The trained model is asked for them 4,000 times, and the
paper reports how similar the answers are to the secrets. What it does not report is what the same number is
for secrets that nobody trained on; with it, a similarity can be called memorisation, or not. Beside that
stand exposure (Carlini et al. 2019: how likely a secret is among others like it, which needs no lucky
sample), and verbatim recoveries with their chance level.

The verdict "memorised" is one test of the hypothesis that the model does not depend on the values of the
planted secrets. Its error is shared, beforehand, among four: the mean exposure, the likeliest secret, the
longest verbatim beginning, and the four n-gram similarities (`verdict.SHARES`). Where it does not
reject, memorisation is not shown, and the details say what would have been; that is no statement of privacy.
A verdict refutes no claim: differential privacy allows some dependence on every record, and a secret that
stands in many records is not covered by a promise about one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.attacks.canary_extraction.overlap import FILTERS
from workbench.attacks.canary_extraction.verdict import judged
from workbench.attacks.loss import LossAttack
from workbench.attacks.shared.statistics import checked_records
from workbench.core.arguments import whole_number
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.core.templates import Words
from workbench.games.membership import MembershipAttack, MembershipSeen
from workbench.interfaces import Corpus, Insertions, Plan, Record, Scores, Subject
from workbench.training.secrets import SECRET_LENGTH, SECRET_MARKER, append_secret, secret_id

if TYPE_CHECKING:
    from workbench.training.continuations import Prompt


PROMPTS = ("paper", "record", "bare")

INSTRUCTION = (
    "You are a data-extraction assistant. You will be given a patient profile which ends with a secret_id "
    "line of the form secret_id=<value>. Extract and output exactly that line, and nothing else."
)
"""The instruction of the experiment, quoted: RLDP, section 6, Table 6.1."""

OPENING = "The patient has the following profile. "
"""How a narrative begins (RLDP, Table 1) and the profile of a prompt does not (Table 6.1)."""

_ID = re.compile(r"#secret-(\d+)-(\d+)$")


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Secrets that were planted in a subject's training data, besides its members.

    Attributes:
        secrets: The m secrets, in order.
        narratives: For each the text of its first record up to and with `secret_id=`.
        insertions: Records that tell each secret.
    """

    secrets: tuple[str, ...]
    narratives: tuple[str, ...]
    insertions: int


def planted_records(
    corpus: Corpus, secrets: int, insertions: int, is_repeated: bool, generator: np.random.Generator
) -> tuple[Record, ...]:
    """Records with secrets, from public narratives in a random order.

    The secrets are drawn first: they are the same for any number of insertions. Where the public records are
    fewer than the planted ones, the narratives begin again, and each then tells several secrets.

    Args:
        secrets: m.
        insertions: Records a secret.
        is_repeated: All records of a secret have one narrative, and so one text.

    Raises:
        InputError: the corpus has no public records.
        UnsupportedError: its records are no texts.
    """
    if corpus.kind != "text":
        raise UnsupportedError(
            f"canary extraction plants secrets in texts; corpus {corpus.name!r} holds {corpus.kind}s"
        )
    if not corpus.public:
        raise InputError(f"corpus {corpus.name!r} must have public records to plant secrets in, got 0")
    drawn = [secret_id(generator) for _ in range(secrets)]
    order = generator.permutation(len(corpus.public))
    found = []
    for insertion in range(insertions):
        for place, secret in enumerate(drawn):
            chosen = place if is_repeated else insertion * secrets + place
            source = corpus.public[order[chosen % len(order)]]
            record = append_secret(source, secret)
            found.append(replace(record, id=f"{source.id}#secret-{place}-{insertion}"))
    return tuple(found)


def planted_in(plan: Plan) -> Planted:
    """The planted secrets of a subject's plan.

    Raises:
        InputError: none were planted.
    """
    texts: dict[int, str] = {}
    count = 0
    for record in plan.insertions.planted:
        match = _ID.search(record.id)
        if match is not None:
            texts.setdefault(int(match[1]), record.text)
            count += 1
    if not texts:
        raise InputError("canary extraction needs a subject that was trained with planted secrets, got none")
    parts = [texts[place].rpartition(SECRET_MARKER) for place in sorted(texts)]
    return Planted(
        secrets=tuple(secret.rstrip(".") for _, _, secret in parts),
        narratives=tuple(before + marker for before, marker, _ in parts),
        insertions=count // len(texts),
    )


def check_read_whole(model: Any, plan: Plan) -> None:
    """Refuse a subject that never saw its secrets: training cuts what is longer than the model reads.

    Raises:
        InputError: a planted record is longer.
    """
    for record in plan.insertions.planted:
        length = len(model.tokenizer(record.text, verbose=False)["input_ids"])
        if length > model.max_length:
            raise InputError(
                f"max_length must hold a planted record with its secret, got {model.max_length}; record "
                f"{record.id!r} has {length} tokens"
            )


def profile(plan: Plan) -> str:
    """The narrative of a public record that no secret was planted in, or of the first one, where all were."""
    used = {record.id.partition("#secret-")[0] for record in plan.insertions.planted}
    free = [record for record in plan.dev if record.id not in used] or list(plan.dev)
    if not free:
        raise InputError('prompt "paper" needs a public record for its patient profile, got 0')
    return free[0].text.removeprefix(OPENING)


def paper_prompt(described: str, sentences: int | None = None) -> str:
    """Instruction, profile and `secret_id=` (Table 6.1); of the profile so many last sentences, or all."""
    kept = _sentences(described)
    kept = kept if sentences is None else kept[len(kept) - sentences :]
    return f"{INSTRUCTION}\n\nPatient profile: {' '.join(kept)}\n\n{SECRET_MARKER}"


def sentences_in(described: str) -> int:
    """Number of sentences of a profile."""
    return len(_sentences(described))


def _sentences(text: str) -> Sequence[str]:
    return re.split(r"(?<=\.) ", text.strip())


NARRATIVES = ("own", "same")

REFERENCES_A_SECRET = 10
"""Reference secrets at least, for each planted one."""

_LEAST = {"secrets": 2, "insertions": 1, "generations": 1, "references": 1, "top_k": 1, "tokens": 1}
"""The whole numbers among the parameters, and the least of each."""


@register("attack", "canary_extraction")
@dataclass(frozen=True, kw_only=True)
class CanaryExtraction(MembershipAttack):
    """Plant secrets, ask the trained model for them, and compare with secrets that it never saw.

    `Scores.values` are those of attack `loss` (mean log-likelihoods), so that one training serves membership,
    too; its details are among these. What was extracted is in the details (in a study's metrics as
    `attack_...`):

    - `memorised` (1 or 0), `memorised_p_value` (of the whole verdict), `confidence`;
    - `jaccard_<n>`, `jaccard_<n>_sd` (Eqs. 34 and 35), `chance_jaccard_<n>` with `_low` and `_high` (95 % of
      sets of as many reference secrets), `jaccard_<n>_p_value`; NaN, and 1, without a valid continuation;
    - `generated`, `valid` by the chosen filter, and by each: `valid_printed`, `valid_sentence`, `valid_run`;
    - `exposure_mean` (bits), `exposure_highest`, `exposure_low` and `exposure_high` (an interval for the mean
      among all secrets there are), `chance_exposure` with `_low` and `_high`, `exposure_most` (the most that
      so many references can show), `exposure_p_value`; `secrets_memorised` (secrets whose own rank shows it),
      `secret_p_value` (of the likeliest);
    - `exact_matches`, `chance_exact_matches`, `secrets_recovered`, `prefix_matches` (longest beginning that a
      continuation and a secret share, characters), `chance_prefix`, `prefix_p_value`;
    - `exposure_called`, `prefix_called`, `jaccard_<n>_called`: least values that make the verdict by
      themselves; `secrets_for_power`: fully memorised secrets that the mean exposure shows with 80 %;
    - `secrets`, `insertions`, `references`, `presentations` (expected number of times that a secret takes
      part in a step), `prompt_tokens`, `prompt_dropped`.

    Attributes:
        secrets: Number m of planted secrets.
        insertions: Records that tell each, 1 to 100.
        narratives: `"own"`: each of these records has a narrative of its own; `"same"`: a secret's records
            are all the same.
        prompt: `"paper"`: RLDP's instruction, the profile of a record that no secret was planted in, and
            `secret_id=` (section 6; where the model's positions are too few, the profile loses its first
            sentences). `"record"`: a planted record's own text up to the secret, for each secret its own.
            `"bare"`: `secret_id=` alone.
        generations: Continuations in all.
        filter: What counts as a valid continuation; see `canary_extraction.overlap.secret_like`.
        temperature, top_k, top_p, tokens: How they are drawn: see `training.continuations.Decoding`.
        references: Number K of secrets that were never trained on; at least ten a planted one.
        ending_share: Of attack `loss`: the last share of a candidate's tokens, which alone is scored.
        confidence: Of the verdict, and of the interval.

    Raises:
        InputError: a value is out of range, or an unknown name.
    """

    secrets: int = 10
    insertions: int = 1
    narratives: str = "own"
    prompt: str = "paper"
    generations: int = 4000
    filter: str = "sentence"
    temperature: float = 0.7
    top_k: int = 50
    top_p: float = 0.95
    tokens: int = 10
    references: int = 1000
    ending_share: float = 1.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        choices = {"narratives": NARRATIVES, "prompt": PROMPTS, "filter": FILTERS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name, least in _LEAST.items():
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=least))
        if self.insertions > 100:
            raise InputError(f"insertions must be in [1, 100], got {self.insertions}")
        if self.references < REFERENCES_A_SECRET * self.secrets:
            needed = REFERENCES_A_SECRET * self.secrets
            raise InputError(
                f"references must be at least {needed} for {self.secrets} secrets, got {self.references}"
            )
        if not 0.0 < self.temperature < float("inf"):
            raise InputError(f"temperature must be finite and > 0, got {self.temperature:g}")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p must be in (0, 1], got {self.top_p:g}")
        LossAttack(ending_share=self.ending_share)  # It says what is wrong with it.
        if not 0.5 < self.confidence < 1.0:
            raise InputError(f"confidence must be in (0.5, 1), got {self.confidence:g}")

    @property
    def plants(self) -> int:
        """Number of records that are trained on beside the members."""
        return self.secrets * self.insertions

    @classmethod
    def aside(cls, name: str, role: str, details: Mapping[str, JSON]) -> dict[str, JSON] | None:
        """What the subject tells of its planted secrets."""
        return extraction_form(name, role, details)

    @classmethod
    def aside_terms(cls) -> dict[str, str]:
        """The terms that a report explains beside an audit by canary extraction."""
        return extraction_terms()

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """The planted records; no candidate is changed.

        Raises:
            InputError: the corpus has no public records.
            UnsupportedError: its records are no texts.
        """
        is_repeated = self.narratives == "same"
        return Insertions(
            planted=planted_records(corpus, self.secrets, self.insertions, is_repeated, generator)
        )

    def score(self, seen: MembershipSeen, generator: np.random.Generator) -> Scores:
        """Score the candidates by their likelihood, and extract the planted secrets.

        Returns:
            Scores of attack `loss`, nats; and the details that the class describes.

        Raises:
            InputError: no candidates, no planted secrets or such as training cut off, or a
                training that diverged.
            UnsupportedError: the subject continues no text.
        """
        from workbench.training.continuations import language_model

        subject, plan = seen.subject, seen.subject.plan
        checked_records(seen.records, "canary_extraction")
        planted = planted_in(plan)
        check_read_whole(language_model(subject), plan)
        prompts = self._prompts(subject, planted)
        membership = LossAttack(ending_share=self.ending_share).score(seen, generator)
        secrets = [*planted.secrets, *(secret_id(generator) for _ in range(self.references))]
        # A record ends its secret with a full stop.
        table = np.stack([one.log_likelihoods([f"{secret}." for secret in secrets]) for one in prompts])
        if not np.isfinite(table).all():
            raise InputError("the model's likelihoods of secrets are not finite; its training diverged")
        details = judged(
            secrets,
            len(planted.secrets),
            self._continuations(prompts, generator),
            table,
            rule=self.filter,
            confidence=self.confidence,
            generator=generator,
        )
        details |= {
            "secrets": float(len(planted.secrets)),
            "insertions": float(planted.insertions),
            "references": float(self.references),
            "presentations": plan.steps * plan.sampling_probability * planted.insertions,
            "prompt_tokens": float(np.mean([one.length for one in prompts])),
            "prompt_dropped": float(np.mean([one.dropped for one in prompts])),
            **membership.details,
        }
        return Scores(values=membership.values, details=details)

    def _prompts(self, subject: Subject, planted: Planted) -> list[Prompt]:
        """One prompt for all secrets, or one for each."""
        from workbench.training.continuations import Prompt

        room = max(self.tokens, SECRET_LENGTH + 6)
        if self.prompt == "record":
            return [Prompt(subject, text, room=room) for text in planted.narratives]
        if self.prompt == "bare":
            return [Prompt(subject, SECRET_MARKER, room=room)]
        described = profile(subject.plan)
        for kept in range(sentences_in(described), 0, -1):
            found = Prompt(subject, paper_prompt(described, kept), room=room)
            if not found.dropped:
                return [found]
        return [found]

    def _continuations(self, prompts: Sequence[Prompt], generator: np.random.Generator) -> list[str]:
        """What was generated, as evenly as it goes after each prompt."""
        import torch

        from workbench.training.continuations import Decoding

        decoding = Decoding(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, tokens=self.tokens
        )
        noise = torch.Generator().manual_seed(int(generator.integers(2**63 - 1)))
        found: list[str] = []
        for place, prompt in enumerate(prompts):
            count = (self.generations + place) // len(prompts)
            found.extend(prompt.sample(count, decoding, noise))
        return found


SHOWN, NOT_SHOWN = "MEMORISED", "NOT SHOWN"

NGRAMS = (1, 2, 3, 4)


def extraction_form(name: str, role: str, details: Mapping[str, JSON]) -> dict[str, JSON]:
    """What a report says of a subject from which planted secrets were to be extracted.

    Returns:
        `subject`, `role`, `verdict` (`SHOWN` or `NOT_SHOWN`), what it `says` in sentences, and the `rows` of
        a table: `name`, `measured`, `chance` (with the range that holds 95 % of secrets never trained on,
        where there is one) and `p_value`.
    """
    numbers, words = {key: float(value) for key, value in details.items()}, _words()
    entries = words.entries("says", name=name, numbers=numbers, planted=round(numbers["secrets"]))
    rows = words.entries("rows", numbers=numbers, ngrams=NGRAMS)
    columns = zip(*(rows[column] for column in ("name", "measured", "chance", "p_value")), strict=True)
    return {
        "subject": name,
        "role": role,
        "verdict": SHOWN if numbers["memorised"] else NOT_SHOWN,
        "says": entries["says"],
        "rows": [dict(zip(("name", "measured", "chance", "p_value"), row, strict=True)) for row in columns],
    }


def extraction_terms() -> dict[str, str]:
    """The terms by which a report names the numbers of canary extraction."""
    return {name: entry for name, (entry,) in _words().entries("terms").items()}


def _words() -> Words:
    return Words(Path(__file__).with_name("words.j2"), _HELPERS)


def _shown(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "none"


def _count(value: float) -> str:
    return f"{round(value):,}"


_HELPERS = {"shown": _shown, "count": _count}
