"""`workbench plan`: how many trials of which game refute a claim, how likely, and at what cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from rich import box
from rich.table import Table
from rich.text import Text
from typer import Option

import workbench
from workbench.audit.claims import EXAMPLE
from workbench.cli import terminal
from workbench.cli.display import duration
from workbench.cli.parameters import NoProgress, ReportFile
from workbench.core.outputs import require_distinct, require_file_place, write_atomically

COMMANDS = {
    "replay": "workbench replay FILE.py:FUNCTION --claim ...",
    "canaries": "workbench audit --train FILE.py:FUNCTION --claim ...",
    "scores": "workbench audit --train FILE.py:FUNCTION --claim ...",
}
"""What plays a game of the table of faults."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `workbench plan`; None where the user gave none."""

    called: ClassVar[Mapping[str, str]] = {"games": "--game"}
    """Arguments of the Python API whose options have other names."""

    claim: Annotated[
        str | None, Option(help="The guarantee to test, as for workbench audit.", show_default=EXAMPLE)
    ] = None
    game: Annotated[
        list[str] | None,
        Option(
            help="A game of `workbench list games`, or canaries (white-box, with --train); may be repeated.",
            show_default="membership, canaries, weights, release",
        ),
    ] = None
    attack_strength: Annotated[
        str,
        Option(
            metavar="perfect|mu=...|tpr=...,fpr=...",
            help="How well the attack tells members in a trial: as unit normals mu apart, or by its ROC.",
        ),
    ] = "perfect"
    trials: Annotated[
        list[int] | None,
        Option(help="Say what so many trials show; may be repeated.", show_default="100, 1000"),
    ] = None
    steps: Annotated[int, Option(help="Of the release game: steps of the run.")] = 1
    sampling_probability: Annotated[
        float, Option(help="Of the release game: probability of a record to be in a step's sample.")
    ] = 1.0
    prior: Annotated[float, Option(help="Probability of the coins of one training.")] = 0.5
    subsets: Annotated[
        int, Option(help="Of a claim of nats: candidate subsets, one of which is trained on.")
    ] = 128
    fault: Annotated[
        str | None,
        Option(help="What you suspect: noise, clip, sampler, normaliser, accountant or side-channel."),
    ] = None
    cost_from: Annotated[
        Path | None, Option(metavar="FILE", help="An audit's report.json whose seconds are used.")
    ] = None
    confidence: Annotated[float, Option(help="Confidence of the verdict, in (0.5, 1).")] = 0.95
    seed: Annotated[int, Option(help="Seed of what is simulated.")] = 0
    json: ReportFile = None
    quiet: NoProgress = False


def plan(options: PlanOptions) -> int:
    """Say how many trials refute a claim, how likely, at what cost, and by which game.

    The numbers are the power of the bounds that decide, random coins included: over all coins for a perfect
    attack, simulated for any other; nats about a candidate subset are planned for a perfect attack. Fix the
    number of trials by them before the audit.

    Exit code: 0 planned, 2 bad input.
    """
    if options.json is not None:
        require_file_place("--json", options.json)
        require_distinct({"--json": options.json, "--cost-from": options.cost_from})
    same = (
        "claim",
        "attack_strength",
        "trials",
        "steps",
        "sampling_probability",
        "prior",
        "subsets",
        "fault",
    )
    given = {name: getattr(options, name) for name in (*same, "cost_from", "confidence", "seed")}
    given["games"] = options.game
    with terminal.progress_display(options.quiet or options.attack_strength == "perfect") as progress:
        chosen = {name: value for name, value in given.items() if value not in (None, [])}
        record = workbench.plan(**chosen, progress=progress).record
    with terminal.json_place(options.json) as place:
        if place is not None:
            write_atomically(place, json.dumps(record, indent=1, allow_nan=False) + "\n")
        _print(record)
    return 0


def _print(record: Mapping[str, Any]) -> None:
    """The plan as tables, and the advice on the suspected fault."""
    typer.echo(f"Claim: {record['claim']['text']}; judged at {100 * record['confidence']:g} % confidence")
    typer.echo(f"Attack: {record['strength']}\n")
    console = terminal.output_console()
    style: Any = {"title_justify": "left", "box": box.SIMPLE_HEAD, "pad_edge": False}
    headings = ("game", "trials are", "half of the time", "95 % of the time", "cost of that")
    needed = Table(*headings, title="Trials with which it refutes the claim", **style)
    quantity = record["quantity"]
    for game in record["games"]:
        half, often = game["needed"]
        cost = "not known" if often["seconds"] is None else duration(often["seconds"])
        cells = [_trials(game, row, record[quantity]) for row in (half, often)]
        needed.add_row(Text(game["name"]), game["unit"], *cells, "-" if often["trials"] is None else cost)
    console.print(needed)
    headings = ("game", "trials", "half of the time", "95 % of the time", "refutes the claim")
    shown = Table(*headings, title="What so many trials show", **style)
    for game in record["games"]:
        for row in game["shown"]:
            reached = [f"{quantity} >= {float(least):.3g}" for _, least in row[quantity]]
            shown.add_row(Text(game["name"]), str(row["trials"]), *reached, f"{100 * row['power']:.3g} %")
    console.print(shown)
    if quantity == "nats":
        typer.echo(
            "It is refuted by the share of right guesses about records, or by nats about the index: by what "
            "first exceeds what the claim allows."
        )
    if "note" in record:
        typer.echo(f"{record['note']}.")
    for game in record["games"]:
        if game["cost"]:
            typer.echo(f"Cost of {game['name']}: in proportion to the trials, from {game['cost']['source']}.")
    if "fault" in record:
        _print_advice(record["fault"])


def _print_advice(advice: Mapping[str, Any]) -> None:
    tried = [
        f"{game['name']} refuted {game['refuted']}"
        + (f" and left {game['undecided']} undecided" if game["undecided"] else "")
        + f" of {advice['trainers']} in {game['seconds']:.3g} s each"
        for game in advice["games"]
    ]
    typer.echo(f"Suspected: {advice['fault']}. Of wrong trainers ({advice['source']}), {'; '.join(tried)}.")
    if advice["first"] is None:
        typer.echo("None of them sees it.")
    else:
        typer.echo(f"First: {advice['first']}: {COMMANDS[advice['first']]}")


def _trials(game: Mapping[str, Any], row: Mapping[str, Any], claimed: float) -> str:
    """A number of trials, or why there is none."""
    if row["trials"] is not None:
        return str(row["trials"])
    most = float(game["most"])
    return f"never: at most {most:.3g}" if most <= claimed else "too many to count"
