"""`workbench.audit_checkpoint` and `workbench.audit_run`: what has been trained already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.audit.api.arguments import ClaimLike, PathLike, call_of, confidence_of, prior_of, seed_of
from workbench.audit.api.result import AuditResult
from workbench.audit.claims import EXAMPLE, claimed
from workbench.core.arguments import path_of
from workbench.core.errors import naming_extras
from workbench.interfaces import Released
from workbench.training.devices import CPU, require_device

if TYPE_CHECKING:
    from workbench.execution.engine import Progress


@naming_extras
def audit_checkpoint(
    checkpoint: PathLike,
    *,
    members: PathLike,
    nonmembers: PathLike,
    reference: PathLike | None = None,
    claim: ClaimLike = EXAMPLE,
    prior: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    device: str = CPU,
    progress: Progress | None = None,
    command: str = "",
) -> AuditResult:
    """Ask a trained language model for its members.

    Args:
        checkpoint: A local folder of a Hugging Face model with its tokenizer; safetensors alone.
        members, nonmembers: Texts that it was and was not trained on: `.jsonl`, `.txt` or `.parquet`.
        reference: A folder of a model that was trained on none of these texts; None for none.
        claim: A text such as `"epsilon=1,delta=1e-5,adjacency=add-remove"`, or a `Claim`.
        prior: Probability of the coin that put each text among the members; None where there was none: then
            what would refute the claim is UNDECIDED.
        confidence: Of the verdict, in (0.5, 1), one-sided.
        seed: Of sample splits and of the blind check.
        device: What the models are asked on.
        progress: Called with the stage, the scores done, and the scores in all.
        command: How the report says that it was made; this call, unless given.

    Raises `InputError`: an argument, folder, file or row is unusable. `UnsupportedError`: scores of one model
    cannot judge such a claim.
    """
    folders = [
        path_of("checkpoint", checkpoint),
        None if reference is None else path_of("reference", reference),
    ]
    held = claimed(claim, released=Released.SCORES)
    texts = {"members": path_of("members", members), "nonmembers": path_of("nonmembers", nonmembers)}
    confidence, seed = confidence_of(confidence), seed_of(seed)
    prior = None if prior is None else prior_of(prior)
    from workbench.audit import checkpoint as judging

    assert folders[0] is not None
    call = call_of("audit_checkpoint", checkpoint, members=members, nonmembers=nonmembers, claim=claim)
    record = judging.audit_checkpoint(
        folders[0],
        **texts,
        reference=folders[1],
        claim=held,
        prior=prior,
        confidence=confidence,
        seed=seed,
        command=command or call,
        progress=progress,
        device=require_device(device),
    )
    return AuditResult(record)


@naming_extras
def audit_run(
    run: PathLike, *, claim: ClaimLike = EXAMPLE, confidence: float = 0.95, seed: int = 0, command: str = ""
) -> AuditResult:
    """Judge a training that `workbench.watch` recorded.

    Args:
        run: The file that it wrote.
        claim: Of (epsilon, delta)-DP: a text such as `"epsilon=1,delta=1e-5,adjacency=add-remove"`, or a
            `Claim`.
        confidence: Of the verdict, in (0.5, 1), one-sided.
        seed: For the report; nothing is random here.
        command: How the report says that it was made; this call, unless given.

    Raises `InputError`: an argument is unusable, or the file damaged. `UnsupportedError`: the claim is of
    another kind.
    """
    path, held = path_of("run", run), claimed(claim, released=Released.EVERY_UPDATE)
    from workbench.audit.watched.run import audit_run as judge

    record = judge(
        path,
        claim=held,
        confidence=confidence_of(confidence),
        seed=seed_of(seed),
        command=command or call_of("audit_run", run, claim=claim),
    )
    return AuditResult(record)
