"""What each game of an audit costs, and which faults it sees: the figures behind `workbench plan`.

Wrong trainers of the digits (`tests/zoo/`), grouped by the fault that somebody would suspect, each audited
by `workbench audit --train` with its defaults: forced replay, white-box canaries and released scores. And
one audit of `dp_sgd` by the attacks whose trials are cheap or dear on their own, and one of each mechanism
that alone plays a game. `python benchmarks/plan.py` takes half an hour on one core, goes on where it was,
and writes `benchmarks/results/plan.json` and the table that the planner reads, `data/planning.toml`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared import RESULTS, machine, options, quiet

from workbench.audit.report_file import read_report

ROOT = Path(__file__).parents[1]
ZOO, TABLE = ROOT / "tests" / "zoo", ROOT / "data" / "planning.toml"
CLAIM = "epsilon=1,delta=1e-5,adjacency=add-remove"
SUSPECTED: Mapping[str, tuple[str, ...]] = {
    "noise": (
        "dp_sgd:no_noise",
        "dp_sgd:tenth_of_the_noise",
        "dp_sgd:half_of_the_noise",
        "dp_sgd:no_noise_on_biases",
        "dp_sgd:same_noise_in_every_step",
    ),
    "clip": (
        "dp_sgd:no_clipping",
        "dp_sgd:clipped_by_the_batch",
        "dp_sgd:clipped_by_the_layer",
        "dp_sgd:raw_gradient_mixed_in",
    ),
    "sampler": ("dp_sgd:triple_rate", "reported:opacus_80", "reported:opacus_161"),
    "normaliser": ("dp_sgd:divided_by_the_batch", "reported:opacus_571"),
    "accountant": ("reported:epochs_not_counted", "reported:opacus_19"),
    "side-channel": ("dp_sgd:normalised_by_members", "dp_sgd:best_on_members"),
}
"""Trainers by the fault that is suspected."""

USER_GAMES = {"released scores": "scores", "white-box canaries": "canaries"}
"""Attacks of `audit --train`, and the planner's names of their games."""

OWN = {"loss": "membership", "dirac_canary (one state)": "release", "weight_canary": "weights"}
"""Attacks of a mechanism, and their games."""

ALONE = {
    "new_tokens": ("dp_sgd", "token_canaries"),
    "retraining": ("dp_sgd", "retrained_canary", "--corpus", "digits", "--model", "digits_mlp"),
    "transcript": ("ferret", "sign_transcript", "--attack-parameter", "sign_transcript.trials=200"),
    "trajectory": ("rldp", "trajectory", "--attack-parameter", "trajectory.trials=40"),
    "consecutive": ("shuffled_dp_sgd", "weight_tidying"),
    "subset": ("paczero", "subset_posterior", "--attack-parameter", "subset_posterior.trials=60"),
}
"""Games of trainings of their own, each by itself: mechanism, attack, and further words of the command."""


def report_of(words: Sequence[str]) -> dict[str, Any]:
    """The report of an audit."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "report.json"
        command = [sys.executable, "-m", "workbench.cli", "audit", *words, "--quiet", "--json", str(place)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not place.is_file():
            raise RuntimeError(done.stderr.strip()[-300:])
        return read_report(place)


def of_trainer(trainer: str) -> dict[str, Any]:
    """What each game says of one wrong trainer, and its seconds."""
    file, _, name = trainer.partition(":")
    report = report_of(["--train", f"{ZOO / file}.py:{name}", "--corpus", "digits", "--claim", CLAIM])
    found = {}
    for attack in report["subjects"][0]["attacks"]:
        seconds, trials = attack["cost"]["seconds"], len(attack["scores"])
        said = {"verdict": attack["verdict"]["kind"], "seconds": seconds, "trials": trials}
        found[USER_GAMES[attack["attack"]]] = said
    replay = report["replay"]
    found["replay"] = {"verdict": replay["verdict"]["kind"], "seconds": replay["cost"]["seconds"]}
    return found


def of_mechanism() -> dict[str, Any]:
    """Seconds and trials of the attacks on the embedded mechanism."""
    words = ["--mechanism", "dp_sgd", "--corpus", "digits", "--model", "digits_mlp", "--no-control"]
    for name in ("loss", "dirac_canary", "weight_canary"):
        words += ["--attack", name]
    subject = report_of([*words, "--workers", "0"])["subjects"][0]
    costs = {attack["attack"]: attack for attack in subject["attacks"]}
    seconds = {name: costs[name]["cost"]["seconds"] for name in OWN}
    seconds["loss"] += subject["cost"]["seconds"]  # The membership game's only training.
    return {
        game: {"seconds": seconds[name], "trials": len(costs[name]["scores"])} for name, game in OWN.items()
    }


def of_attack(mechanism: str, attack: str, *more: str) -> dict[str, Any]:
    """Seconds and trials of one attack on an embedded mechanism; of the longest of several games of it."""
    words = ["--mechanism", mechanism, "--no-control", "--workers", "0", "--attack", attack, *more]
    games = report_of(words)["subjects"][0]["attacks"]
    found = max(games, key=lambda game: float(game["cost"]["seconds"]))
    here = {"machine": machine()["cpu"]}  # Games were added later, and on other machines.
    return {"seconds": found["cost"]["seconds"], "trials": len(found["scores"]), **here}


def table(content: Mapping[str, Any]) -> str:
    """The planner's table of costs and faults, as TOML."""
    of_trainers = content["trainers"].values()
    lines = [
        "# Written by `python benchmarks/plan.py`: median seconds of a machine with other work, and of the",
        "# trainers with each suspected fault how many a game refutes, and leaves undecided. Digits (new",
        "# tokens: the embedded notes); claim (1, 1e-5); defaults of `workbench audit`.",
        "",
        f"machine = {json.dumps(content['machine']['cpu'])}",
    ]
    games: dict[str, list[Mapping[str, Any]]] = {}
    for made in (*of_trainers, content["mechanism"]):
        for game, cell in made.items():
            games.setdefault(game, []).append(cell)
    for game, cells in games.items():
        seconds = statistics.median(cell["seconds"] for cell in cells)
        lines += ["", f"[game.{game}]", f"seconds = {seconds:.3g}"]
        lines += [f"{key} = {json.dumps(cells[0][key])}" for key in ("trials", "machine") if key in cells[0]]
        if game == "release":  # Its releases are made at the state that a training ends in.
            lines.append(f"training = {content['mechanism']['membership']['seconds']:.3g}")
    for fault, trainers in SUSPECTED.items():
        lines += ["", f"[fault.{fault}]", f"trainers = {len(trainers)}"]
        for game in ("replay", "canaries", "scores"):
            cells = [content["trainers"][name].get(game, {}) for name in trainers]
            verdicts = [cell.get("verdict") for cell in cells]
            lines.append(f"{game} = [{verdicts.count('REFUTED')}, {verdicts.count('UNDECIDED')}]")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is not measured, and write the table."""
    quiet(options(__doc__).parse_args().threads)
    path = RESULTS / "plan.json"
    content: dict[str, Any] = {"machine": machine(), "mechanism": {}, "trainers": {}}
    if path.is_file():
        content |= json.loads(path.read_text())
    content["mechanism"] = content["mechanism"] or of_mechanism()
    for game, words in ALONE.items():
        content["mechanism"][game] = content["mechanism"].get(game) or of_attack(*words)
        path.write_text(json.dumps(content, indent=1) + "\n")
    for trainer in (name for names in SUSPECTED.values() for name in names):
        if trainer not in content["trainers"]:
            content["trainers"][trainer] = of_trainer(trainer)
            print(trainer, json.dumps(content["trainers"][trainer]), flush=True)
            path.write_text(json.dumps(content, indent=1) + "\n")
    path.write_text(json.dumps(content, indent=1) + "\n")
    TABLE.write_text(table(content))


if __name__ == "__main__":
    main()
