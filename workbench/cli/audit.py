"""`workbench audit`: its options, their checks, and the call of the runner.

Whatever can be refused is refused before any work starts, and nothing is written before all work is done.
The heavy modules are imported where they are needed: reading a scores file needs no deep-learning framework.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from workbench.accounting import MutualInformation
from workbench.audit.claims import EXAMPLE, parse_claim
from workbench.audit.embedded import EMBEDDED
from workbench.audit.report_file import scores_beside, write_report
from workbench.audit.scores_file import read_scores
from workbench.cli import junit, terminal
from workbench.cli.choices import FamilyChoice, HigherIs, TrialsChoice
from workbench.cli.parameters import (
    Device,
    JunitFile,
    ReportFile,
    Scheduler,
    as_declared,
    attack_parameters,
    check_scheduler,
    known,
    parameters,
    require_device,
    require_scheduler,
    with_variant,
)
from workbench.core.errors import InputError
from workbench.core.outputs import require_distinct, require_file_place, require_reachable
from workbench.interfaces import Adjacency, Claim, Family, Released, Sampling, Schedule, Trials
from workbench.training.crafts import CanaryKind

if TYPE_CHECKING:
    from workbench.audit.settings import AuditSettings


__all__ = ["AuditOptions", "audit", "command_line", "parameters"]


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The options of `workbench audit`; None where the user gave none."""

    scores: Annotated[
        Path | None,
        Option(metavar="FILE", help="Judge these scores (.csv, .npz, .parquet: score, member; id, text)."),
    ] = None
    train: Annotated[
        str | None,
        Option(metavar="FILE.py:FUNCTION", help="Audit your own training function (docs/user_training.md)."),
    ] = None
    checkpoint: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Ask a trained language model for its members (docs/checkpoints.md)."),
    ] = None
    run: Annotated[
        Path | None,
        Option(metavar="FILE", help="Judge a training that `workbench.watch` recorded (docs/watch.md)."),
    ] = None
    members: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="With --checkpoint: texts that it was trained on (.jsonl, .txt, .parquet)."
        ),
    ] = None
    nonmembers: Annotated[
        Path | None, Option(metavar="FILE", help="With --checkpoint: texts that it was not trained on.")
    ] = None
    reference: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="With --checkpoint: a model that was trained on none of these texts."),
    ] = None
    claim: Annotated[
        str | None,
        Option(
            help="The guarantee to test: epsilon and delta; mu; alpha and renyi; or nats and secret.",
            show_default=EXAMPLE,
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        Option(
            help="Instead of --claim: the number that the mechanism claims, in its own currency.",
            show_default="1; see --nats",
        ),
    ] = None
    nats: Annotated[
        float | None,
        Option(
            help="Instead of --epsilon, for a mechanism that claims nats: the number of nats.",
            show_default="the mechanism's own",
        ),
    ] = None
    delta: Annotated[
        float | None,
        Option(
            help="Delta of --epsilon; of nats, that of their reading as (epsilon, delta)-DP.",
            show_default="1e-5",
        ),
    ] = None
    mechanism: Annotated[
        str | None, Option(help="The mechanism to audit.", show_default=EMBEDDED["mechanism"])
    ] = None
    variant: Annotated[
        str | None, Option(help="Variant of the mechanism; short for --mechanism-parameter variant=...")
    ] = None
    attack: Annotated[
        list[str] | None,
        Option(
            help="An attack; may be repeated.",
            show_default=f"{', '.join(EMBEDDED['attacks'])}, or those that the mechanism names",
        ),
    ] = None
    corpus: Annotated[str | None, Option(help="The corpus to train on.", show_default=EMBEDDED["corpus"])] = (
        None
    )
    corpus_parameter: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="A parameter of the corpus; may be repeated.")
    ] = None
    model: Annotated[str | None, Option(help="The model to train.", show_default=EMBEDDED["model"])] = None
    model_parameter: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="A parameter of the model; may be repeated.")
    ] = None
    candidates: Annotated[
        int | None,
        Option(
            help="Number of candidate records; with --train "
            + ", ".join(f"{count} of {name}" for name, count in EMBEDDED["elsewhere_candidates"].items())
            + " unless given.",
            show_default=str(EMBEDDED["candidates"]),
        ),
    ] = None
    steps: Annotated[
        int | None, Option(help="Number of training steps.", show_default=str(EMBEDDED["steps"]))
    ] = None
    sampling_probability: Annotated[
        float | None, Option(help="Probability of each record to be in a step's sample.")
    ] = None
    sampling: Annotated[Sampling | None, Option(help="How records are chosen.", show_default="poisson")] = (
        None
    )
    learning_rate: Annotated[float | None, Option(help="Step size.")] = None
    schedule: Annotated[
        Schedule | None, Option(help="How the step size changes over the steps.", show_default="constant")
    ] = None
    warmup: Annotated[
        float | None, Option(help="Share of the steps over which the step size rises to its full value.")
    ] = None
    optimizer: Annotated[str | None, Option(help="adamw or sgd.")] = None
    weight_decay: Annotated[float | None, Option(help="Weight decay of the optimizer.", show_default="0")] = (
        None
    )
    adapter: Annotated[str | None, Option(help="full or lora.", show_default="full")] = None
    lora_rank: Annotated[int | None, Option(help="With --adapter lora: rank of the adapters.")] = None
    lora_alpha: Annotated[
        float | None,
        Option(help="With --adapter lora: scale of the adapters.", show_default="twice the rank"),
    ] = None
    lora_targets: Annotated[
        str | None, Option(help="With --adapter lora: all-linear, attention or query-value.")
    ] = None
    mechanism_parameter: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=VALUE",
            help="A parameter of the mechanism, `inf` where its default is infinite; may be repeated.",
        ),
    ] = None
    attack_parameter: Annotated[
        list[str] | None,
        Option(metavar="ATTACK.KEY=VALUE", help="A parameter of an attack; may be repeated."),
    ] = None
    control: Annotated[
        bool | None,
        Option(
            "--control/--no-control",
            help="Also attack a control, which does not count for the exit code: a subject without "
            "privacy, or the one that the mechanism's game is held against.",
            show_default="control",
        ),
    ] = None
    runs: Annotated[int | None, Option(help="With --train: number of trainings.", show_default="1")] = None
    replay: Annotated[
        bool | None,
        Option("--replay/--no-replay", help="With --train: forced replay too.", show_default="--replay"),
    ] = None
    canaries: Annotated[
        int | None,
        Option(
            help="With --train: number of crafted records to look for in the trained model's scores and in "
            "every update; 0 for natural records alone.",
            show_default="as many as candidates, 400 at most",
        ),
    ] = None
    canary_kind: Annotated[
        CanaryKind | None,
        Option(help="With --train: how these records are crafted.", show_default="loud"),
    ] = None
    retrain: Annotated[
        int | None,
        Option(
            metavar="N",
            help="With --train: the retraining game: N more trainings, half of them with one crafted record.",
            show_default="none",
        ),
    ] = None
    trials: Annotated[
        TrialsChoice | None,
        Option(help="With --scores: how the scores depend on each other.", show_default="one-run"),
    ] = None
    prior: Annotated[
        float | None,
        Option(
            help="Probability with which a coin made records members; with --scores and --checkpoint.",
            show_default="0.5, estimated where the labels are uneven; with --checkpoint no coin",
        ),
    ] = None
    adjacency: Annotated[
        Adjacency | None,
        Option(
            help="With --scores: what a label tells: whether a record was in or out (add-remove), which of "
            "two was in (replace-one), or whether a record or a null one was in (zero-out).",
            show_default="add-remove",
        ),
    ] = None
    higher_is: Annotated[
        HigherIs | None,
        Option(help="With --scores: whether high scores mean member or non-member.", show_default="member"),
    ] = None
    family: Annotated[
        FamilyChoice | None,
        Option(
            help="With --scores: gaussian where they are known to come from a Gaussian release.",
            show_default="any",
        ),
    ] = None
    sequential: Annotated[
        bool | None,
        Option(
            "--sequential",
            help="Stop when the claim is refuted: watch --scores in the file's order, or the trainings of "
            "--retrain and of an --attack that trains many times.",
        ),
    ] = None
    seed: Annotated[int, Option(help="Seed of every random choice.")] = 0
    confidence: Annotated[float, Option(help="Confidence of the verdict, in (0.5, 1).")] = 0.95
    workers: Annotated[int | None, Option(help="Worker processes; 0: this one.", show_default="2")] = None
    scheduler: Scheduler = None
    device: Device = None
    out: Annotated[
        Path, Option(metavar="FOLDER", help="Where report.html, report.json and the store go.")
    ] = Path("audit")
    json: ReportFile = None
    junit: JunitFile = None
    quiet: Annotated[bool, Option("--quiet", help="Print the verdict only.")] = False


LEAST_CANARIES = 16
"""Fewer could refute nothing but the smallest claims, and leave no room for chance in their coins."""

FEWEST_TRAININGS = 20
"""Of a retraining game: fewer refute nothing but the smallest claims."""

_PLAN = (
    *("steps", "sampling_probability", "sampling", "learning_rate", "schedule", "warmup", "optimizer"),
    *("weight_decay", "adapter", "lora_rank", "lora_alpha", "lora_targets"),
)
_TRAINING = ("corpus", "corpus_parameter", "candidates", "workers", "scheduler", "device")
_OWN_TRAINING = ("corpus", "corpus_parameter", "model", "model_parameter", "candidates", *_PLAN)
_MODES: Mapping[str, tuple[str, ...]] = {
    "--scores": ("trials", "prior", "adjacency", "higher_is", "family", "sequential"),
    "--run": (),
    "--checkpoint": ("members", "nonmembers", "reference", "prior", "device"),
    "--train": ("runs", "replay", "canaries", "canary_kind", "retrain", "sequential", *_TRAINING),
    "an audit of a mechanism": (
        *("epsilon", "nats", "delta", "mechanism", "variant", "mechanism_parameter"),
        *("attack", "attack_parameter", "control", "sequential"),
        *("model", "model_parameter", *_PLAN),
        *_TRAINING,
    ),
}
"""Options that make sense in one mode only; the others always do."""


def audit(options: AuditOptions) -> int:
    """Test a claimed privacy guarantee by attack.

    Without options: the embedded mechanism on clinical narratives under a claim of epsilon = 1, attacked in
    three ways, with a run without privacy as the control.

    A mechanism declares its own audit: the games, their attacks and the control. A claim that several games
    test is judged in one view each, for what its adversaries see; a claim in nats may also be read as
    (epsilon, delta)-DP and held against ordinary members. The claim decides the exit code.

    Fix the number of trials before: whoever reruns an audit with more of them, or another seed, after seeing
    the verdict has no guarantee of the stated confidence any more.

    Exit code: 0 not refuted, 1 refuted, 2 bad input, 3 underpowered or invalid.
    """
    mode = _mode(options)
    _check(options, mode)
    require_device(options.device)
    require_scheduler(options.scheduler)
    if options.scores is not None:
        report = _audit_scores(options, options.scores)
    elif options.train is not None:
        report = _audit_training(options, options.train)
    elif options.checkpoint is not None:
        report = _audit_checkpoint(options, options.checkpoint)
    elif options.run is not None:
        report = _audit_run(options, options.run)
    else:
        report = _audit_mechanism(options)
    _write(options, report)
    terminal.print_report(report, quiet=options.quiet)
    if not options.quiet:
        typer.echo(f"Report: {options.out / 'report.html'}")
    return int(report["exit_code"])


def command_line(options: AuditOptions) -> str:
    """The shell command that gives these options; those left at their default are left out."""
    words = ["workbench", "audit"]
    for option in fields(options):
        value, flag = getattr(options, option.name), _flag(option.name)
        if value == option.default or value is None:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            for item in value if isinstance(value, list) else [value]:
                words += [flag, str(item)]
    return shlex.join(words)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _mode(options: AuditOptions) -> str:
    """Which kind of audit the options ask for."""
    named = [name for name in ("scores", "train", "checkpoint", "run") if getattr(options, name) is not None]
    if len(named) > 1:
        raise InputError(f"--{named[0]} and --{named[1]} exclude each other")
    if named == ["checkpoint"]:
        for name in ("members", "nonmembers"):
            if getattr(options, name) is None:
                raise InputError(f"--checkpoint needs --{name} FILE")
    return f"--{named[0]}" if named else "an audit of a mechanism"


def _check(options: AuditOptions, mode: str) -> None:
    """Refuse options that do not belong together, and values out of range, before any work."""
    for option in {name for names in _MODES.values() for name in names} - set(_MODES[mode]):
        if getattr(options, option) not in (None, []):
            homes = " or ".join(home for home, names in _MODES.items() if option in names)
            raise InputError(f"{_flag(option)} goes with {homes}, not with {mode}")
    check_scheduler(options.scheduler, options.workers)
    if options.prior is not None and not 0.0 < options.prior < 1.0:
        raise InputError(f"--prior must be in (0, 1), got {options.prior:g}")
    if options.runs is not None and options.runs < 1:
        raise InputError(f"--runs must be at least 1, got {options.runs}")
    if options.canaries is not None and options.canaries != 0 and options.canaries < LEAST_CANARIES:
        raise InputError(f"--canaries must be 0 or at least {LEAST_CANARIES}, got {options.canaries}")
    if options.retrain is not None and options.retrain < FEWEST_TRAININGS:
        raise InputError(f"--retrain must be {FEWEST_TRAININGS} or more, got {options.retrain}")
    if options.train is not None and options.sequential and options.retrain is None:
        raise InputError("--sequential watches the trainings of --retrain N, which is missing")
    numbers = [name for name in ("epsilon", "nats", "claim") if getattr(options, name) is not None]
    if len(numbers) > 1:
        raise InputError(f"--{numbers[0]} and --{numbers[1]} exclude each other: both say what is claimed")
    _claimed(options)
    _check_outputs(options)


def _claimed(options: AuditOptions, released: Released = Released.SCORES) -> Claim:
    """The claim as it is written, or the embedded one."""
    return parse_claim(EXAMPLE if options.claim is None else options.claim, released=released)


def _check_outputs(options: AuditOptions) -> None:
    """Refuse places that cannot be written to."""
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f"--out must be a folder, got the file {str(options.out)!r}")
    require_reachable("--out", options.out)
    for flag, path in (("--json", options.json), ("--junit", options.junit)):
        if path is not None:
            require_file_place(flag, path)
    _check_distinct(options)


def _check_distinct(options: AuditOptions) -> None:
    """Refuse an output that would overwrite an input, or another output."""
    source = options.train.rpartition(":")[0] if options.train else None
    places = {
        "--scores": options.scores,
        "--run": options.run,
        "--train": Path(source) if source else None,
        "--members": options.members,
        "--nonmembers": options.nonmembers,
        "--out's report.html": options.out / "report.html",
        "--out's report.json": options.out / "report.json",
        "--out's report.scores.npz": options.out / "report.scores.npz",
        "--json": options.json,
        "--junit": options.junit,
        "--json's scores": None if options.json is None else scores_beside(options.json),
    }
    require_distinct(places)
    for name in ("report.html", "report.json", "report.scores.npz"):
        if (options.out / name).is_dir():
            raise InputError(f"--out {str(options.out)!r} holds a folder named {name}")


def _audit_scores(options: AuditOptions, path: Path) -> dict[str, Any]:
    claim, played = _claimed(options), options.adjacency
    if isinstance(claim.about, Adjacency):
        played = played or Adjacency.ADD_REMOVE
        if played is not claim.about:
            raise InputError(
                f"--claim says adjacency {claim.about}, and the labels are of {played}: if each says what "
                f"{claim.about} says of a record, add --adjacency {claim.about}"
            )
    elif played is not None:
        raise InputError(f"--adjacency goes with a claim about an adjacency, not about the {claim.about}")
    content = read_scores(path)
    from workbench.audit import scores as judging

    scores = -content.scores if options.higher_is is HigherIs.NONMEMBER else content.scores
    return judging.audit_scores(
        scores=scores,
        members=content.members,
        claim=claim,
        adjacency=played,
        trials=Trials(options.trials.value) if options.trials else Trials.ONE_RUN,
        prior=options.prior,
        confidence=options.confidence,
        seed=options.seed,
        command=command_line(options),
        source=path.name,
        blind_texts=content.texts,
        sequential=bool(options.sequential),
        family=Family[options.family.name] if options.family else Family.ANY,
    )


def _audit_training(options: AuditOptions, function: str) -> dict[str, Any]:
    from workbench.audit import run as runner
    from workbench.audit.canaries.run import usual_count

    settings = _settings(options, claim=_claimed(options))
    if options.candidates is None:
        usual = EMBEDDED["elsewhere_candidates"].get(settings.corpus, settings.candidates)
        settings = replace(settings, candidates=usual)
    # Where nobody says what is released, it is what the scorer answers to the attack, and every update here.
    of_updates = _claimed(options, released=Released.EVERY_UPDATE)
    canaries = usual_count(settings.candidates) if options.canaries is None else options.canaries
    with terminal.progress_display(options.quiet) as progress:
        return runner.audit_training(
            function,
            settings,
            runs=options.runs or 1,
            out=options.out,
            command=command_line(options),
            progress=progress,
            replayed=None if options.replay is False else of_updates,
            watched=of_updates if canaries else None,
            canaries=canaries,
            canary_kind=options.canary_kind or CanaryKind.LOUD,
            retrained=of_updates if options.retrain else None,
            trainings=options.retrain or 0,
        )


def _audit_checkpoint(options: AuditOptions, folder: Path) -> dict[str, Any]:
    assert options.members is not None
    assert options.nonmembers is not None
    from workbench.audit.checkpoint import audit_checkpoint

    with terminal.progress_display(options.quiet) as progress:
        return audit_checkpoint(
            folder,
            members=options.members,
            nonmembers=options.nonmembers,
            reference=options.reference,
            claim=_claimed(options),
            prior=options.prior,
            confidence=options.confidence,
            seed=options.seed,
            command=command_line(options),
            progress=progress,
            device=require_device(options.device) or "cpu",
        )


def _audit_run(options: AuditOptions, path: Path) -> dict[str, Any]:
    from workbench.audit.watched.run import audit_run

    return audit_run(
        path,
        claim=_claimed(options, released=Released.EVERY_UPDATE),
        confidence=options.confidence,
        seed=options.seed,
        command=command_line(options),
    )


def _audit_mechanism(options: AuditOptions) -> dict[str, Any]:
    from workbench.audit import run as runner

    settings = _settings(options)
    settings = replace(settings, claim=_mechanism_claim(options, settings))
    with terminal.progress_display(options.quiet) as progress:
        return runner.audit_mechanisms(
            settings, out=options.out, command=command_line(options), progress=progress
        )


def _mechanism_claim(options: AuditOptions, default: AuditSettings) -> Claim:
    """The claim about a mechanism: as written, or as a number in the mechanism's own currency."""
    from workbench.audit.settings import claim_of

    in_nats = default.secret is not None
    if options.claim is not None:
        claim = _claimed(options, default.claim.released)
        if options.delta is not None and not (in_nats and isinstance(claim.guarantee, MutualInformation)):
            raise InputError("--delta goes with --epsilon, or with a claim in nats; write it into --claim")
        return claim
    if options.nats is not None and not in_nats:
        raise InputError(f"--nats goes with a mechanism that claims nats, not with {default.mechanism}")
    if options.nats is not None and not 0.0 <= options.nats < math.inf:
        raise InputError(f"--nats must be finite and >= 0, got {options.nats:g}")
    number = options.epsilon if options.nats is None else options.nats
    if number is not None:
        return claim_of(default.mechanism, number, default.delta)
    if options.delta is not None and not in_nats:
        raise InputError("--delta goes with --epsilon, which is missing")
    return default.claim


def _mechanism_parameters(options: AuditOptions) -> dict[str, Any]:
    """The mechanism's parameters, `--variant` among them."""
    name = options.mechanism or EMBEDDED["mechanism"]
    given = with_variant(
        name, parameters("--mechanism-parameter", options.mechanism_parameter or []), options.variant
    )
    return as_declared("mechanism", name, given)


def _settings(options: AuditOptions, **given: Any) -> AuditSettings:
    """The runner's settings: what the user gave, and the runner's defaults for the rest.

    The default parameters of the corpus and of the model belong to the default corpus and model; they stay
    with these (the user's are laid over them), and go where the user names another.
    """
    from workbench.audit.settings import default_settings

    name = options.mechanism and known("mechanism", options.mechanism)
    of_mechanism = _mechanism_parameters(options)
    default = default_settings(name, of_mechanism)
    given |= {"seed": options.seed, "confidence": options.confidence}
    given |= {"sequential": bool(options.sequential)}
    for kind in ("corpus", "model"):
        chosen = known(kind, getattr(options, kind) or getattr(default, kind))
        kept = getattr(default, f"{kind}_parameters") if chosen == getattr(default, kind) else {}
        laid = parameters(f"--{kind}-parameter", getattr(options, f"{kind}_parameter") or [])
        given |= {kind: chosen, f"{kind}_parameters": {**kept, **laid}}
    if options.learning_rate is not None:
        given["control_learning_rate"] = options.learning_rate
    if options.attack:
        given["attacks"] = tuple(known("attack", attack) for attack in options.attack)
    if any(getattr(options, name) not in (None, []) for name in _OWN_TRAINING):
        given["members"] = {}  # What the user trains is what every attack is for.
    for field in ("delta", "candidates", "control", "workers", "scheduler", *_PLAN):
        if getattr(options, field) is not None:
            given[field] = getattr(options, field)
    given["device"] = require_device(options.device) or default.device
    settings = default_settings(name, of_mechanism, **given)
    laid = attack_parameters(options.attack_parameter or [], settings.attacks, settings.attack_parameters)
    return replace(settings, attack_parameters=laid)


def _write(options: AuditOptions, report: dict[str, Any]) -> None:
    write_report(report, out=options.out, json_file=options.json)
    if options.junit is not None:
        junit.write_junit(report, options.junit)
