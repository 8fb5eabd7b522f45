"""Which instrument sees which bug: the zoo's trainers under each of ours and what others offer, by defaults.

`python benchmarks/bug_zoo.py --peer WHEEL` takes an hour or two, writes each row as it is done, and goes on
from there; `WHEEL` is jax-privacy's, whose auditing module needs no JAX. `--seeds 20` replays ten correct
trainers under as many seeds, `--only seeds` nothing else. `--only replay` measures the column of the replay
anew, and leaves the others as they are; it goes on too, until all rows are done. Results go to
`benchmarks/results/bug_zoo.json` and `.md`, and to the rows of docs/bug_zoo.md.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared import RESULTS, auditor_of, machine, options, page, quiet

from workbench.audit.api.training import REPLAYED_CANDIDATES
from workbench.audit.claims import parse_claim
from workbench.audit.embedded import EMBEDDED
from workbench.audit.replay.measured import NotMeasured
from workbench.audit.replay.run import ReplayJob, judged_record, replay_user
from workbench.audit.replay.stated import stated_from
from workbench.audit.report_file import read_report
from workbench.audit.settings import embedded_settings
from workbench.core.keys import plain
from workbench.core.streams import stream
from workbench.interfaces import Released

ZOO = Path(__file__).parents[1] / "tests" / "zoo"
PAGE = Path(__file__).parents[1] / "docs" / "bug_zoo.md"
sys.path += [str(ZOO), str(ZOO.parent / "helpers")]

import by_hand  # noqa: E402
import correct  # noqa: E402
import dp_sgd  # noqa: E402
import kept_otherwise  # noqa: E402
import made_differently  # noqa: E402
import of_any_shape  # noqa: E402
import of_unknown_epsilon  # noqa: E402
import reported  # noqa: E402
from replay_here import judged_here  # noqa: E402

CLAIM = reported.ADD_REMOVE
RUNS = 5
"""Retrainings: `--runs`."""

SEEDED = (
    "correct",
    "with_adam",
    "fixed_batches",
    "by_the_layer",
    "in_double_precision",
    "noise_by_numpy",
    "scheduled_noise",
    "full_batch",
    "large_clip",
    "with_dropout",
)
"""Correct trainers of different make, for many seeds."""

BLACK_BOX, CRAFTED, WHITE_BOX = "released scores", "canaries' scores", "white-box canaries"
"""The attacks of the three membership games."""

KINDS = (
    "REFUTED with the part that the bug is in",
    "UNDECIDED with that part: no epsilon is known of it",
    "NOT REFUTED, with that part in a caution",
    "NOT REFUTED, rightly: too much noise",
    "REFUTED or UNDECIDED, with another part",
    "NOT REFUTED, although the promise is too small",
)
"""What replay says of reported bugs: rows of docs/bug_zoo.md."""

CAUGHT, PART, NAMED, MISSED = "caught", "caught, other part", "named in a caution", "missed"
RIGHT, ALARM = "not refuted", "FALSE ALARM"


def rows() -> dict[str, tuple[str, str, str, Any]]:
    """Of each trainer: file, claim, expected part (empty where the promise is kept), and the trainer."""
    found: dict[str, tuple[str, str, str, Any]] = {}
    for name, bug in reported.BUGS.items():
        found[name] = ("reported", bug.claim, bug.fault, bug.trainer)
    for name, part in dp_sgd.FAULTS.items():
        found[name] = ("dp_sgd", CLAIM, part, getattr(dp_sgd, name))
    for name, (trainer, part) in by_hand.FAULTY.items():
        found[name] = ("by_hand", CLAIM, part, trainer)
    for name, trainer in of_any_shape.WRONG.items():
        found[name] = ("of_any_shape", CLAIM, "noise", trainer)
    for name, part in of_unknown_epsilon.PARTS.items():
        found[name] = ("of_unknown_epsilon", CLAIM, part, of_unknown_epsilon.TRAINERS[name])
    for name, (file, trainer) in right().items():
        found[name] = (file, CLAIM, "", trainer)
    return found


def right() -> dict[str, tuple[str, Any]]:
    """The correct trainers: each one's file, and itself."""
    plain = {"correct": dp_sgd.correct, "with_adam": dp_sgd.with_adam}
    return {
        **{name: ("dp_sgd", trainer) for name, trainer in plain.items()},
        **{name: ("correct", trainer) for name, trainer in correct.TRAINERS.items()},
        **{name: ("by_hand", trainer) for name, trainer in (by_hand.CORRECT | by_hand.REFUSED).items()},
        **{name: ("kept_otherwise", getattr(kept_otherwise, name)) for name in kept_otherwise.KINDS},
        **{
            name: ("of_any_shape", trainer)
            for name, trainer in (of_any_shape.CORRECT | of_any_shape.NOT_TOLD).items()
        },
        **{name: ("made_differently", trainer) for name, trainer in made_differently.TRAINERS.items()},
    }


def audited(file: str, name: str, claim: str, *words: str) -> dict[str, Any]:
    """The report of `workbench audit --train` on the digits, with its defaults but for these words."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "report.json"
        # A claim about replacing a record can be replayed, and is not what membership games test.
        mode = ["replay"] if "replace-one" in claim else ["audit", "--train"]
        command = [sys.executable, "-m", "workbench.cli", *mode, f"{ZOO / file}.py:{name}"]
        command += ["--corpus", "digits", "--claim", claim, "--quiet", "--json", str(place), *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not place.is_file():
            return {"error": done.stderr.strip().splitlines()[-1:]}
        return read_report(place)


def cell(kind: str, parts: list[str], expected: str, seconds: float, lower: Any = None) -> dict[str, Any]:
    """What an instrument said of a trainer, and whether that is right."""
    speaks = kind == "REFUTED" or (kind == "UNDECIDED" and bool(parts))
    if expected:
        says = MISSED if not speaks else CAUGHT if not parts or expected in parts[:1] else PART
    else:
        says = ALARM if kind == "REFUTED" else RIGHT
    return {"says": says, "verdict": kind, "parts": parts, "lower": lower, "seconds": round(seconds, 1)}


def games(report: Mapping[str, Any], expected: str, names: Mapping[str, str]) -> dict[str, Any]:
    """The cells of a report's games: those of the attacks with these names, and of the replay."""
    made = {}
    for attack in report["subjects"][0]["attacks"]:
        if attack["attack"] in names:
            verdict = attack["verdict"]
            lower = (verdict["bound"] or {}).get("lower")
            made[names[attack["attack"]]] = cell(
                verdict["kind"], [], expected, attack["cost"]["seconds"], lower
            )
    if "replay" in report and "black-box" in names.values():
        made["replay"] = of_replay(report["replay"], expected)
    return made


def of_replay(replay: Mapping[str, Any], expected: str) -> dict[str, Any]:
    """The cell of a replay."""
    parts = [fault["part"] for fault in replay.get("faults", [])]
    made = cell(replay["verdict"]["kind"], parts, expected, replay["cost"]["seconds"], replay.get("lower"))
    named = replay.get("caution", "").partition(":")[0]
    made |= {"estimate": replay.get("estimate"), "caution": named}
    if expected and named == expected and made["says"] == MISSED:
        made |= {"says": NAMED, "parts": [named]}
    return made


def replayed_again(name: str) -> dict[str, Any]:
    """The cell of a trainer's replay as `audited` plays it, on the same members."""
    torch.set_num_threads(1)
    file, claim, _, _ = rows()[name]
    is_alone = "replace-one" in claim
    candidates = REPLAYED_CANDIDATES if is_alone else EMBEDDED["elsewhere_candidates"]["digits"]
    setup = embedded_settings(corpus="digits", corpus_parameters={}, candidates=candidates).setup(())
    coins = stream(setup.seed, "coins", 0).random(candidates) < 0.5
    included = (True,) * candidates if is_alone else tuple(coins.tolist())
    job = ReplayJob(setup=setup, spec=f"{ZOO / file}.py:{name}", included=included)
    started = time.process_time()
    record = replay_user(job, {}, Path(), lambda done, total, unit: None)
    return {**judged_again(name, record), "seconds": round(time.process_time() - started, 1)}


def judged_again(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The cell of a replay with the confidence that it has in an audit.

    Also the parts that are named once it is stated what the code is said to do.
    """
    file, claim, expected, _ = rows()[name]
    is_alone = "replace-one" in claim
    held, confidence = parse_claim(claim, released=Released.EVERY_UPDATE), 0.95 if is_alone else 0.975
    _, form = judged_record(held, record, confidence=confidence)
    made = of_replay(plain(form), expected)
    if file == "reported" and (given := reported.BUGS[name].stated):
        _, form = judged_record(held, record, confidence=confidence, stated=stated_from(given))
        made["told"] = of_replay(plain(form), expected)["parts"]
    return made


def of_peer(auditor: Any, report: Mapping[str, Any], expected: str) -> dict[str, Any]:
    """The one-run bound of jax-privacy on the scores of the black-box game."""
    attack = next(one for one in report["subjects"][0]["attacks"] if one["attack"] == BLACK_BOX)
    scores, members = np.array(attack["scores"], dtype=float), np.array(attack["members"], dtype=bool)
    started = time.perf_counter()
    lower = auditor(scores[members], scores[~members]).epsilon_one_run(significance=0.05, delta=1e-5)
    kind = "REFUTED" if lower > 1.0 else "NOT_REFUTED"
    return cell(kind, [], expected, time.perf_counter() - started, float(lower))


def gradient_check(trainer: Any, expected: str) -> dict[str, Any]:
    """Whether per-record gradients are those of one record after another, as Opacus' own tests ask.

    It needs the trainer's parts: the network, and the function that gives per-record gradients.
    """
    started = time.perf_counter()
    if not isinstance(trainer, dp_sgd.Trainer):
        return {"says": "does not apply", "seconds": 0.0}
    report = [
        {"id": str(i), "text": "", "label": i % 10, "image": torch.rand(64).tolist()} for i in range(200)
    ]
    try:
        trainer(report, 0)
        each = trainer.per_record(torch.arange(8))
        images, labels = trainer.images[:8], trainer.labels[:8]
        for i in range(8):
            trainer.network.zero_grad()
            loss = torch.nn.functional.cross_entropy(trainer.network(images[i : i + 1]), labels[i : i + 1])
            loss.backward()
            for key, parameter in trainer.network.named_parameters():
                if not torch.allclose(each[key][i], parameter.grad, rtol=1e-3, atol=1e-5):
                    return cell("REFUTED", [], expected, time.perf_counter() - started)
    except Exception as error:  # the check does not fit the trainer
        return {"says": "does not apply", "why": type(error).__name__, "seconds": 0.0}
    return cell("NOT_REFUTED", [], expected, time.perf_counter() - started)


def made_row(name: str, row: tuple[str, str, str, Any], auditor: Any, known: Mapping[str, Any]) -> Any:
    """All cells of one trainer; that of the replay is kept where it is known."""
    file, claim, expected, trainer = row
    report = audited(file, name, claim, *(["--no-replay"] if "replay" in known else []))
    found: dict[str, Any] = {**known, "file": file, "expected": expected}
    if "error" in report:
        return {**found, "error": report["error"]}
    names = {BLACK_BOX: "black-box", CRAFTED: "black-box canaries", WHITE_BOX: "white-box canaries"}
    found |= games(report, expected, names)
    if auditor is not None and "black-box" in found:
        found["jax-privacy"] = of_peer(auditor, report, expected)
    found["gradient check"] = gradient_check(trainer, expected)
    return found


def retrained(name: str, row: tuple[str, str, str, Any]) -> dict[str, Any]:
    """The games' cells of `RUNS` trainings of one trainer."""
    file, claim, expected, _ = row
    report = audited(file, name, claim, "--runs", str(RUNS), "--no-replay")
    if "error" in report:
        return {"error": report["error"]}
    names = {BLACK_BOX: "retrainings", CRAFTED: "canaries' retrainings", WHITE_BOX: "white-box retrainings"}
    return games(report, expected, names)


def replayed(name: str, seed: int) -> dict[str, Any]:
    """A correct trainer's replay of 200 records under another seed."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    found = judged_here(f"{ZOO / right()[name][0]}.py:{name}", seed=seed, claim=CLAIM)
    seconds = round(time.perf_counter() - started, 1)
    if isinstance(found, NotMeasured):
        return {"verdict": "INVALID", "lower": None, "seconds": seconds}
    return {"verdict": str(found.verdict.kind), "lower": plain(found.lower), "seconds": seconds}


def kind_of(line: str) -> str:
    """Which of `KINDS` a row of docs/bug_zoo.md is of."""
    _, _, direction, part, says, *_ = line.removeprefix("| ").split(" | ")
    verdict, _, parts = says.partition(": ")
    if says == f"NOT REFUTED, caution: {part}":
        return KINDS[2]
    if verdict == "NOT REFUTED":
        return KINDS[3] if direction == reported.MORE else KINDS[5]
    if parts.split(", ")[0] != part:
        return KINDS[4]
    return KINDS[0] if verdict == "REFUTED" else KINDS[1]


def update_page(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the rows of docs/bug_zoo.md anew, and count them."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for place, line in enumerate(lines):
        name = line.split("`")[1] if line.startswith("| `") else ""
        if name in rows and "replay" in rows[name]:
            row, bug = rows[name]["replay"], reported.BUGS[name]
            said = row["verdict"].replace("_", " ") + (f": {', '.join(row['parts'])}" if row["parts"] else "")
            said += f", caution: {row['caution']}" if row["caution"] else ""
            epsilon = ", estimate ".join(
                "∞" if value == "inf" else f"{float(value):.3g}" for value in (row["lower"], row["estimate"])
            )
            cells = [f"`{name}`", bug.source, bug.direction, bug.fault or "none", said, f"≥ {epsilon}"]
            cells += [f"{row['seconds']:.0f}", ", ".join(row.get("told", []))]
            lines[place] = f"| {' | '.join(cells)} |"
    found = Counter(map(kind_of, filter(lambda line: line.startswith("| `"), lines)))
    for place, line in enumerate(lines):
        if line.startswith(tuple(f"| {kind} |" for kind in KINDS)):
            kind = line.split(" |")[0].removeprefix("| ")
            lines[place] = f"| {kind} | {found[kind]} |"
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


class Kept:
    """Results on disk: what is there is not done again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {
            "machine": machine(),
            "rows": {},
            "replayed": {},
            "anew": [],
            "retrained": {},
            "seeds": {},
        }
        self._lock = threading.Lock()
        if path.is_file():
            self.content |= json.loads(path.read_text())

    def do(self, key: str, name: str, work: Callable[[], Any]) -> None:
        """Do it unless it is done, and write it at once."""
        if name in self.content[key] and (key != "rows" or self.is_whole(name)):
            return
        made = work()
        with self._lock:
            self.content[key][name] = made
            self._write()
            print(key, name, json.dumps(made)[:400], flush=True)

    def is_whole(self, name: str) -> bool:
        """Whether a row has all its cells: that of the check, which is asked last, among them."""
        return "gradient check" in self.content["rows"].get(name, {})

    def renew(self) -> None:
        """Put the new cells of the replay into their rows."""
        for name, made in self.content["replayed"].items():
            file, _, expected, _ = rows()[name]
            row = self.content["rows"].setdefault(name, {"file": file})
            row |= {"expected": expected, "replay": made}
        self.content["anew"] = sorted(self.content["replayed"])
        if set(rows()) <= set(self.content["replayed"]):
            self.content["replayed"] = {}
        self._write()

    def _write(self) -> None:
        spare = self.path.with_suffix(".part")
        spare.write_text(json.dumps(self.content, indent=1) + "\n")
        spare.replace(self.path)


def summary(content: Mapping[str, Any]) -> dict[str, Any]:
    """Counts by instrument, and those of the correct trainers' seeds."""
    instruments: dict[str, dict[str, int]] = {}
    seconds: dict[str, list[float]] = {}
    for row in content["rows"].values():
        for instrument, one in row.items():
            if isinstance(one, dict) and "says" in one:
                counts = instruments.setdefault(instrument, {})
                counts[one["says"]] = counts.get(one["says"], 0) + 1
                seconds.setdefault(instrument, []).extend([] if one["seconds"] is None else [one["seconds"]])
    medians = {name: sorted(times)[len(times) // 2] if times else 0.0 for name, times in seconds.items()}
    seeds = list(content["seeds"].values())
    numbers = [float(one["lower"]) for one in seeds if one["lower"] not in {None, "nan"}]
    return {
        "instruments": instruments,
        "median_seconds": medians,
        "replays": len(seeds),
        "refuted": sum(one["verdict"] == "REFUTED" for one in seeds),
        "largest_lower": max(numbers, default=math.nan),
    }


def main() -> None:
    """Measure what is not measured, and write the page."""
    parser = options(__doc__)
    parser.add_argument("--peer", type=Path, help="jax-privacy's wheel")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of each correct trainer's replay")
    parser.add_argument("--only", choices=["seeds", "replay"], help="nothing but this")
    parser.add_argument("--retrain", action="store_true", help=f"also {RUNS} trainings of each trainer")
    parser.add_argument("--at-once", type=int, default=2, help="trainers at a time")
    given = parser.parse_args()
    quiet(given.threads)
    kept = Kept(RESULTS / "bug_zoo.json")

    def there(name: str, seed: int) -> dict[str, Any]:
        """The replay, in a process of its own."""
        return processes.submit(replayed, name, seed).result()

    def again(name: str) -> dict[str, Any]:
        """The same of a row's replay."""
        return processes.submit(replayed_again, name).result()

    auditor = None if given.peer is None else auditor_of(given.peer)
    with ProcessPoolExecutor(given.at_once) as processes, ThreadPoolExecutor(given.at_once) as pool:
        jobs = [
            pool.submit(
                kept.do,
                "rows",
                name,
                partial(made_row, name, row, auditor, kept.content["rows"].get(name, {})),
            )
            for name, row in rows().items()
            if given.only is None
        ]
        jobs += [
            pool.submit(kept.do, "replayed", name, partial(again, name))
            for name in rows()
            if given.only == "replay"
        ]
        jobs += [
            pool.submit(kept.do, "retrained", name, partial(retrained, name, row))
            for name, row in rows().items()
            if given.retrain
        ]
        jobs += [
            pool.submit(kept.do, "seeds", f"{name} {seed}", partial(there, name, seed))
            for seed in range(1, given.seeds + 1)
            for name in SEEDED
        ]
        for job in jobs:
            job.result()
    if given.only == "replay":
        kept.renew()
    update_page(kept.content["rows"])
    shown = dict(kept.content)
    shown["rows"] = {name: {**row, **shown["retrained"].get(name, {})} for name, row in shown["rows"].items()}
    RESULTS.joinpath("bug_zoo.md").write_text(page("bug_zoo", {**shown, "summary": summary(shown)}))


if __name__ == "__main__":
    main()
