"""`workbench.audit_scores`: judges a claim by the scores of somebody's attack.

>>> from workbench import audit_scores
>>> members = [True, False] * 20
>>> scores = [float(member) for member in members]
>>> audit_scores(scores, members, prior=0.5).verdict
<VerdictKind.REFUTED: 'REFUTED'>
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.audit.api.arguments import ClaimLike, call_of, confidence_of, prior_of, seed_of
from workbench.audit.api.choices import DeclaredFamily, HigherIs
from workbench.audit.api.result import AuditResult
from workbench.audit.claims import EXAMPLE, claimed
from workbench.audit.scores_file import Column, ScoresFile, checked_columns, read_scores
from workbench.core.arguments import one_of, path_of, yes_or_no
from workbench.core.errors import ArgumentError
from workbench.core.one_line import object_line
from workbench.interfaces import Adjacency, Claim, Released, Trials

_COLUMNS = ("score", "member", "id", "text")


def audit_scores(
    scores: Any,
    members: Any = None,
    *,
    claim: ClaimLike = EXAMPLE,
    texts: Any = None,
    adjacency: Adjacency | str | None = None,
    trials: Trials | str = Trials.ONE_RUN,
    prior: float | None = None,
    higher_is: HigherIs | str = HigherIs.MEMBER,
    family: DeclaredFamily | str = DeclaredFamily.ANY,
    sequential: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
    command: str = "",
    source: str = "",
) -> AuditResult:
    """Judge a claimed guarantee by attack scores and the labels of their records.

    Args:
        scores: Finite numbers, shape `(n,)` (NumPy, pandas, torch, a list). Or all columns at once: a
            `.csv`, `.csv.gz`, `.npz` or `.parquet` file, a data frame, or a dict, with the columns `score`
            and `member`, and optionally `id` and `text`.
        members: True (1) where the record was trained on, shape `(n,)`; None where `scores` has the column.
        claim: A text such as `"epsilon=1,delta=1e-5,adjacency=add-remove"`, or a `Claim`.
        texts: Text of each record, so that members that a classifier tells apart without the model are
            noticed; None for none.
        adjacency: What a label tells: whether a record was in (add-remove, the default), which of two was
            (replace-one), or whether a record or a null one was in (zero-out). It must be the claim's.
        trials: `"one-run"`: labels are coins, scores may depend on each other; `"independent"`: each score
            comes from a training or release of its own.
        prior: Probability of the coin that chose the labels. None: one half, or, where the labels are too
            uneven for that, an unknown one, for which the bound pays.
        higher_is: Whether a high score means `"member"` or `"nonmember"`.
        family: `"gaussian"` where the scores are known to come from a Gaussian release; it is tested.
        sequential: Watch the scores one after the other, in an order that the seed draws, and stop when the
            claim is refuted; their number is part of the plan.
        confidence: Of the verdict, in (0.5, 1), one-sided.
        seed: Of sample splits.
        command: How the report says that it was made; this call, unless given.
        source: What the report calls the scores; the file's name, unless given.

    Raises `InputError`: an argument is unusable. `UnsupportedError`: such trials cannot judge the claim.
    """
    held = claimed(claim, released=Released.SCORES)
    confidence, seed = confidence_of(confidence), seed_of(seed)
    trials = one_of(Trials, "trials", trials)
    prior = None if prior is None else prior_of(prior)
    direction = one_of(HigherIs, "higher_is", higher_is)
    declared = one_of(DeclaredFamily, "family", family)
    sequential = yes_or_no("sequential", sequential)
    played = _adjacency(held, None if adjacency is None else one_of(Adjacency, "adjacency", adjacency))
    content, held_by = _content(scores, members, texts)
    from workbench.audit import scores as judging

    record = judging.audit_scores(
        scores=-content.scores if direction is HigherIs.NONMEMBER else content.scores,
        members=content.members,
        claim=held,
        adjacency=played,
        trials=trials,
        prior=prior,
        confidence=confidence,
        seed=seed,
        command=command or call_of("audit_scores", scores, members, claim=claim, prior=prior, seed=seed),
        source=source or held_by,
        blind_texts=content.texts,
        sequential=sequential,
        family=declared.family,
    )
    return AuditResult(record)


def _adjacency(claim: Claim, given: Adjacency | None) -> Adjacency | None:
    """Which neighbours the labels stand for; None for a claim about a secret."""
    if not isinstance(claim.about, Adjacency):
        if given is not None:
            raise ArgumentError(
                "adjacency", f"goes with a claim about an adjacency, not about the {claim.about}"
            )
        return None
    played = given or Adjacency.ADD_REMOVE
    if played is not claim.about:
        raise ArgumentError(
            "claim",
            f"says adjacency {claim.about}, and the labels are of {played}: if each says what {claim.about} "
            f"says of a record, give `adjacency` {claim.about}",
        )
    return played


def _content(scores: Any, members: Any, texts: Any) -> tuple[ScoresFile, str]:
    """The checked columns, and the name of what held them."""
    if members is not None:
        given = {"score": _column("scores", scores), "member": _column("members", members)}
        names = {"score": "scores", "member": "members", "text": "texts"}
        if texts is not None:
            given["text"] = _column("texts", texts)
        return checked_columns(names, given), "scores"
    if texts is not None:
        raise ArgumentError("texts", "goes with members; a file or a data frame has a column text")
    if isinstance(scores, str) or hasattr(scores, "__fspath__"):
        path = path_of("scores", scores)
        return read_scores(path), path.name
    columns = getattr(scores, "columns", scores)
    if isinstance(scores, Mapping) or (hasattr(scores, "columns") and hasattr(scores, "iloc")):
        present = [name for name in _COLUMNS if name in columns]
        for name in _COLUMNS[:2]:
            if name not in present:
                raise ArgumentError(
                    "scores", f"must have the column {name!r}, got {object_line(list(columns))}"
                )
        names = {name: f"scores[{name!r}]" for name in present}
        return checked_columns(
            names, {name: _column(names[name], scores[name]) for name in present}
        ), "scores"
    raise ArgumentError("members", "must say which scores are members', unless scores is a file or a table")


def _column(name: str, values: Any) -> Column:
    """Values as a column of one dimension: an array of NumPy, or a list."""
    if hasattr(values, "detach"):  # A tensor of torch.
        values = values.detach().cpu().numpy()
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
        raise ArgumentError(name, f"must be an array or a list, got {object_line(values)}")
    masked = np.flatnonzero(np.ma.getmask(values)) if np.ndim(values) == 1 else np.zeros(0)
    if masked.size:
        raise ArgumentError(f"{name}[{masked[0]}]", "is masked: leave it out, or fill it in")
    column = values if isinstance(values, list | tuple) else np.asarray(values)
    if isinstance(column, np.ndarray):
        if column.ndim != 1:
            raise ArgumentError(name, f"must have one dimension, got shape {column.shape}")
        if column.dtype.kind not in "biuf":
            return list(column.tolist())
    return column
