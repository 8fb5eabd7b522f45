"""`workbench audit`: its options, their checks, and the call of the runner.

Whatever can be refused is refused before any work starts, and nothing is written before all work is done.
The heavy modules are imported where they are needed: reading a scores file needs no deep-learning framework.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

import typer
from typer import Option

import workbench
from workbench.audit.api.choices import DeclaredFamily, HigherIs
from workbench.audit.api.result import AuditResult
from workbench.audit.claims import EXAMPLE
from workbench.audit.embedded import EMBEDDED
from workbench.audit.report_file import scores_beside, write_report
from workbench.cli import junit, terminal
from workbench.cli.parameters import (
    Device,
    JunitFile,
    ReportFile,
    Scheduler,
    StatedNumbers,
    as_declared,
    attack_parameters,
    check_scheduler,
    known,
    parameters,
    require_scheduler,
    with_variant,
)
from workbench.core.errors import InputError
from workbench.core.outputs import require_distinct, require_file_place, require_folder_place
from workbench.interfaces import Adjacency, Sampling, Schedule, Trials
from workbench.training.crafts import CanaryKind

__all__ = ["AuditOptions", "audit", "command_line", "parameters"]


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The options of `workbench audit`; None where the user gave none."""

    called: ClassVar[Mapping[str, str]] = {"function": "--train", "attacks": "--attack"}
    """Arguments of the Python API whose options have other names."""

    scores: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Judge these scores (.csv, .csv.gz, .npz, .parquet: score, member; id, text); - reads CSV "
            "from the input stream.",
        ),
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
    corpus: Annotated[
        str | None,
        Option(help="The corpus to train on; digits for a model of digits.", show_default=EMBEDDED["corpus"]),
    ] = None
    corpus_parameter: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="A parameter of the corpus; may be repeated.")
    ] = None
    model: Annotated[
        str | None,
        Option(help="The model to train; digits_mlp for digits.", show_default=EMBEDDED["model"]),
    ] = None
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
    stated: StatedNumbers = None
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
        Option(
            help="With --train: how these records are crafted.",
            show_default="secret for texts without labels, else loud",
        ),
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
        Trials | None,
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
        DeclaredFamily | None,
        Option(
            help="With --scores: gaussian where they are known to come from a Gaussian release.",
            show_default="any",
        ),
    ] = None
    sequential: Annotated[
        bool | None,
        Option(
            "--sequential",
            help="Stop when the claim is refuted: watch --scores one after the other, or the trainings of "
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
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print the verdict only.")] = False


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
    "--train": ("runs", "replay", "stated", "canaries", "canary_kind", "retrain", "sequential", *_TRAINING),
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

    Exit code: 0 not refuted, 1 refuted, 2 bad input, 3 underpowered, undecided or invalid.
    """
    mode = _mode(options)
    _check(options, mode)
    result = _RUNS[mode](options)
    with terminal.json_place(options.json) as json_file:
        write_report(result.record, out=options.out, json_file=json_file)
        if options.junit is not None:
            junit.write_junit(result.record, options.junit)
        terminal.print_report(result.record, quiet=options.quiet)
        if not options.quiet:
            typer.echo(f"Report: {options.out / 'report.html'}")
    return result.exit_code


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
    require_scheduler(options.scheduler)
    _check_outputs(options)


def _check_outputs(options: AuditOptions) -> None:
    """Refuse places that cannot be written to."""
    require_folder_place("--out", options.out)
    for flag, path in (("--json", options.json), ("--junit", options.junit)):
        if path is not None:
            require_file_place(flag, path)
    _check_distinct(options)


def _check_distinct(options: AuditOptions) -> None:
    """Refuse an output that would overwrite an input, or another output."""
    source = options.train.rpartition(":")[0] if options.train else None
    places = {
        "--scores": None if options.scores == Path("-") else options.scores,
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


def _given(options: AuditOptions, *names: str) -> dict[str, Any]:
    """The arguments of these options that the user gave, and those that every audit takes."""
    given = {name: getattr(options, name) for name in names if getattr(options, name) not in (None, [])}
    if options.claim is not None:
        given["claim"] = options.claim
    return given | {
        "confidence": options.confidence,
        "seed": options.seed,
        "command": command_line(options),
    }


def _audit_scores(options: AuditOptions) -> AuditResult:
    assert options.scores is not None
    with _scores_file(options.scores) as file:
        source = "standard input" if file != options.scores else ""
        return workbench.audit_scores(file, source=source, **_given(options, *_MODES["--scores"]))


@contextmanager
def _scores_file(file: Path) -> Iterator[Path]:
    """The file of scores; for `-`, one that holds what the input stream has."""
    if file != Path("-"):
        yield file
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("--scores - reads CSV from the input stream, and nothing is piped into it")
    with TemporaryDirectory() as folder:
        place = Path(folder) / "stdin.csv"
        place.write_bytes(sys.stdin.buffer.read())
        try:
            yield place
        except InputError as error:
            if str(place) not in str(error):
                raise
            raise InputError(str(error).replace(str(place), "--scores -")) from error


def _audit_training(options: AuditOptions) -> AuditResult:
    assert options.train is not None
    given = _given(
        options, *(name for name in _MODES["--train"] if name not in ("corpus_parameter", "stated"))
    )
    given["corpus_parameters"] = parameters("--corpus-parameter", options.corpus_parameter or [])
    given["stated"] = parameters("--stated", options.stated or [])
    with terminal.progress_display(options.quiet) as progress:
        return workbench.audit_training(
            options.train, **given, out=options.out, progress=progress, announce=_announcing(options)
        )


def _announcing(options: AuditOptions) -> Callable[[str], None] | None:
    """Prints a line on the error stream, unless all but the verdict is left out."""
    console = terminal.error_console()
    return (
        None
        if options.quiet
        else lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
    )


def _audit_checkpoint(options: AuditOptions) -> AuditResult:
    assert options.checkpoint is not None
    with terminal.progress_display(options.quiet) as progress:
        given = _given(options, *_MODES["--checkpoint"])
        return workbench.audit_checkpoint(options.checkpoint, **given, progress=progress)


def _audit_run(options: AuditOptions) -> AuditResult:
    assert options.run is not None
    return workbench.audit_run(options.run, **_given(options))


def _audit_mechanism(options: AuditOptions) -> AuditResult:
    same = ("epsilon", "nats", "delta", "control", "sequential", "model", *_PLAN)
    training = ("corpus", "candidates", "workers", "scheduler", "device")
    given = _given(options, *same, *training)
    name = options.mechanism or EMBEDDED["mechanism"]
    of_mechanism = parameters("--mechanism-parameter", options.mechanism_parameter or [])
    known("mechanism", name)
    given["mechanism_parameters"] = as_declared(
        "mechanism", name, with_variant(name, of_mechanism, options.variant)
    )
    for kind in ("corpus", "model"):
        laid = getattr(options, f"{kind}_parameter") or []
        given[f"{kind}_parameters"] = parameters(f"--{kind}-parameter", laid)
    if options.attack:
        given["attacks"] = options.attack
    if options.attack_parameter:
        given["attack_parameters"] = attack_parameters(options.attack_parameter)
    with terminal.progress_display(options.quiet) as progress:
        return workbench.audit(options.mechanism, **given, out=options.out, progress=progress)


_RUNS: Mapping[str, Callable[[AuditOptions], AuditResult]] = {
    "--scores": _audit_scores,
    "--train": _audit_training,
    "--checkpoint": _audit_checkpoint,
    "--run": _audit_run,
    "an audit of a mechanism": _audit_mechanism,
}
