"""Time and memory of one zeroth-order step: our engine, in float32 and bfloat16, against a plain loop.

The plain loop is MeZO as one writes it with transformers: a direction is drawn anew by `torch.normal` in each
of four passes over the weights (there, to the other side, back, and the update), logits are float32 and over
the whole vocabulary, `model(**batch).logits`. A step of ours is the same step: per-record differences along
one direction of all weights, and a move along it.

Every arm is a process of its own, forked from one that has loaded the model, with the same number of threads.
They take turns, step by step, so that a ratio is of times that lie side by side; its range is that of the
repeats. A pass is one forward pass with its losses, as the arm takes it. Peak memory is the high-water mark
of a process above what it began with, plus the weights; an arm's memory ratio is over its own pass. At the
end each arm tells the mean loss at the weights it began with and at both points of one direction; how far it
is from the plain loop's is told as a share of the loss and in nats.

There are three tasks: `text` predicts every token of film reviews, `sentiment` the word after each review's
prompt (short texts, padded to the longest), `question` the answers of questions about clinical narratives. Of
the last two our engine computes no other logits; the plain loop computes them all.

`python benchmarks/paczero_step.py` takes SmolLM2-135M and 8 texts of 128 tokens (five minutes, two cores);
`--models tiny_gpt2` a tiny one. Results go to `benchmarks/results/paczero_step.json` and `paczero_step.md`.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import resource
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from shared import machine, options, quiet, turns, write
from torch.nn import functional

from workbench.core import registry
from workbench.interfaces import Record
from workbench.training.fine_tuning import evaluating
from workbench.training.precision import reduced
from workbench.training.tasks import SENTIMENT_OPTIONS
from workbench.training.zeroth_order import Directions, ZerothOrder

PLAIN, FLOAT32, BFLOAT16 = "plain loop", "engine, float32", "engine, bfloat16"
PLAIN_PASS, OUR_PASS, OUR_HALF_PASS = "plain pass", "our pass, float32", "our pass, bfloat16"
STEPS = (PLAIN, FLOAT32, BFLOAT16)
PASSES = (PLAIN_PASS, OUR_PASS, OUR_HALF_PASS)
SCALE = 1e-3
RATE = 1e-7
SEED = 0
EQUAL = 1e-3
"""Largest difference of two mean losses that counts as none: as a share of the loss, or in nats."""
FASTER = 3.0
"""Goal: times faster than the plain loop."""
MEMORY = 1.2
"""Goal: memory of a step over that of a forward pass, at most."""
TASKS = ("text", "sentiment", "question")


@dataclass(frozen=True)
class Setting:
    """The model, task and batch that a step is measured on.

    Attributes:
        model: Registry name of a language model.
        task: One of `TASKS`.
        records: Texts of one step.
        tokens: Of each text.
        threads: Torch's.
    """

    model: str
    task: str
    records: int
    tokens: int
    threads: int


def texts(setting: Setting) -> list[Record]:
    """Film reviews, strung together so that each text has all its tokens; or single ones, or questions."""
    if setting.task != "text":
        name = "clinical_questions" if setting.task == "question" else "movie_reviews"
        return list(registry.create("corpus", name, size=setting.records, seed=0).records)
    corpus = registry.create("corpus", "movie_reviews", size=setting.records * 24, seed=0)
    return [
        Record(id=str(i), text=" ".join(one.text for one in corpus.records[24 * i : 24 * i + 24]))
        for i in range(setting.records)
    ]


def loaded(setting: Setting) -> Any:
    """The model, with the task's prompt around it where there is one."""
    given = {"seed": SEED, "max_length": setting.tokens}
    if setting.task != "text":
        return registry.create("model", "prompted", base=setting.model, task=setting.task, **given)
    return registry.create("model", setting.model, **given)


class Arm:
    """One contestant, in its process; the model is its own from the fork on."""

    def __init__(self, name: str, model: Any, records: list[Record]) -> None:
        """Take over what is loaded."""
        self.name, self.model = name, model
        self.records = records
        self.batch = model.encode(records)
        self.precision = "bfloat16" if name in (BFLOAT16, OUR_HALF_PASS) else "float32"
        self.engine: ZerothOrder | None = None
        self.done = 0

    def losses(self) -> torch.Tensor:
        """Per-record losses at the weights as they are."""
        if self.name in (PLAIN, PLAIN_PASS):
            with torch.inference_mode():
                return plain_losses(self.model, self.batch)
        with evaluating(self.model), reduced(self.precision, torch.device("cpu")):
            losses: torch.Tensor = self.model.losses(self.batch)
            return losses

    def step(self) -> float:
        """Seconds of one step, or of one pass."""
        started = time.perf_counter()
        self.done += 1
        if self.name in PASSES:
            self.losses()
        elif self.name == PLAIN:
            plain_step(self.model, self.batch, self.done)
        else:
            if self.engine is None:
                self.engine = ZerothOrder(self.model, scale=SCALE, seed=SEED, precision=self.precision)
            scalars, _ = self.engine.differences(self.records, self.done)
            self.engine.move([(self.done, -RATE * float(scalars.mean()))])
        return time.perf_counter() - started

    def points(self) -> list[float]:
        """Mean loss at the weights, and at both points of one direction, which must
        agree with the plain loop's to a thousandth."""
        parameters = list(self.model.module.parameters())
        found = [float(self.losses().double().mean())]
        for times in (1, -2):
            for part, place, z in Directions(parameters, SEED).parts(0):
                parameters[part].data.view(-1)[place].add_(z, alpha=times * SCALE)
            found.append(float(self.losses().double().mean()))
        return found


def serve(link: Connection, name: str, threads: int, model: Any, records: list[Record]) -> None:
    """Answer the parent: seconds of a step, peak megabytes above the first, or losses."""
    torch.set_num_threads(threads)
    arm = Arm(name, model, records)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while (asked := link.recv()) != "end":
        if asked == "step":
            link.send(arm.step())
        elif asked == "peak":
            link.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
        else:
            link.send(arm.points())


class Arms:
    """Processes that each time one way to make a step."""

    def __init__(self, names: tuple[str, ...], threads: int, model: Any, records: list[Record]) -> None:
        """Fork them."""
        context = multiprocessing.get_context("fork")
        self._links: dict[str, Connection] = {}
        self._processes = []
        for name in names:
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there, name, threads, model, records))
            process.start()
            self._links[name] = here
            self._processes.append(process)

    def ask(self, name: str, what: str) -> Any:
        """One arm's answer, while the others wait."""
        self._links[name].send(what)
        return self._links[name].recv()

    def end(self) -> None:
        """End the processes."""
        for link in self._links.values():
            link.send("end")
        for process in self._processes:
            process.join()


def plain_losses(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean loss of each text's predicted tokens, of each review's word or question's answer; all logits."""
    logits = model.module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    if "positions" in batch:
        words = [model.tokenizer(word)["input_ids"][0] for word in SENTIMENT_OPTIONS]
        chosen = logits[torch.arange(len(logits)), batch["positions"]][:, words]
        return functional.cross_entropy(chosen, batch["labels"], reduction="none")
    if "targets" in batch:
        targets = batch["targets"]
    else:
        following = functional.pad(batch["input_ids"][:, 1:], (0, 1))
        predicted = functional.pad(batch["attention_mask"][:, 1:], (0, 1))
        targets = following.masked_fill(predicted == 0, -100)
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).sum(1) / (targets != -100).sum(1)


@torch.no_grad()
def plain_step(model: Any, batch: Mapping[str, torch.Tensor], seed: int) -> None:
    """MeZO's step: perturb, measure, perturb to the other side, measure, go back, update."""

    def perturb(scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.module.parameters():
            z = torch.normal(0.0, 1.0, parameter.shape, generator=generator)
            parameter.data.add_(z, alpha=scale)

    perturb(SCALE)
    above = plain_losses(model, batch)
    perturb(-2 * SCALE)
    below = plain_losses(model, batch)
    perturb(SCALE)
    scalars = (above - below) / (2 * SCALE)
    perturb(-RATE * float(scalars.mean()))


def measured(setting: Setting, repeats: int) -> dict[str, Any] | None:
    """Everything about one model; None where a word of the prompt is no single token of it."""
    # One thread until the fork: threads of OpenMP do not survive it.
    torch.set_num_threads(1)
    model = loaded(setting)
    model.module.eval()
    records = texts(setting)
    if setting.task == "sentiment" and "positions" not in model.encode(records):
        return None
    gc.collect()
    # What loading has freed would be used again, unseen in the high-water mark.
    ctypes.CDLL(None).malloc_trim(0)
    arms = (*STEPS, *PASSES)
    processes = Arms(arms, setting.threads, model, records)
    for name in arms:
        processes.ask(name, "step")  # the first is for warming up
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _, name in turns(list(arms), repeats):
        seconds[name].append(processes.ask(name, "step"))
    peaks = {name: processes.ask(name, "peak") for name in arms}
    processes.end()
    fresh = Arms(PASSES, setting.threads, model, records)
    losses = {name: fresh.ask(name, "losses") for name in PASSES}
    fresh.end()
    weights = sum(p.numel() * p.element_size() for p in model.module.parameters()) / 2**20
    return {
        "model": setting.model,
        "task": setting.task,
        "parameters": sum(p.numel() for p in model.module.parameters()),
        "records": setting.records,
        "tokens": setting.tokens,
        "threads": setting.threads,
        "repeats": repeats,
        "arms": {name: summary(name, seconds, peaks, weights) for name in arms},
        "weights_megabytes": weights,
        "losses": losses,
        "largest_difference": {name: differences(losses[name], losses[PLAIN_PASS]) for name in PASSES},
    }


def differences(own: list[float], plain: list[float]) -> dict[str, float]:
    """The largest difference of two lists of losses: as a share, and in nats."""
    pairs = list(zip(own, plain, strict=True))
    return {"share": max(abs(a - b) / b for a, b in pairs), "nats": max(abs(a - b) for a, b in pairs)}


def summary(
    name: str, seconds: Mapping[str, list[float]], peaks: Mapping[str, float], weights: float
) -> dict[str, Any]:
    """One arm's numbers; ratios are plain over own, larger is faster, and own memory over its pass's."""
    is_step = name in STEPS
    base = PLAIN if is_step else PLAIN_PASS
    ratios = [a / b for a, b in zip(seconds[base], seconds[name], strict=True)]
    own_pass = PASSES[(STEPS if is_step else PASSES).index(name)]
    return {
        "seconds": statistics.median(seconds[name]),
        "seconds_range": [min(seconds[name]), max(seconds[name])],
        "times_faster": statistics.median(ratios),
        "times_faster_range": [min(ratios), max(ratios)],
        "peak_megabytes": peaks[name],
        "memory_over_pass": (weights + peaks[name]) / (weights + peaks[own_pass]),
        "memory_over_plain_pass": (weights + peaks[name]) / (weights + peaks[PLAIN_PASS]),
    }


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = options(__doc__, threads=2)
    parser.add_argument("--models", nargs="+", default=["smollm2_135m"], help="registered language models")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS, help="what is predicted")
    parser.add_argument("--records", type=int, default=8, help="texts of a step")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a text")
    parser.add_argument("--repeats", type=int, default=7, help="steps of each arm that are timed")
    given = parser.parse_args()
    quiet(given.threads)
    report: dict[str, Any] = {"machine": machine(), "models": []}
    for name in given.models:
        for task in given.tasks:
            setting = Setting(name, task, given.records, given.tokens, given.threads)
            found = measured(setting, given.repeats)
            if found is not None:
                report["models"].append(found)
    goals = {"equal": EQUAL, "faster": FASTER, "memory": MEMORY}
    write(given.out, "paczero_step", report, steps=STEPS[1:], **goals)


if __name__ == "__main__":
    main()
