"""What zeroth-order training starts from, and how far it gets without privacy: sentiment by prompt.

For each model: the zero-shot area under the ROC curve of "great" against "terrible" after a review, and the
accuracy, on held-out film reviews, for several widths of the neutral band that is left out (reviews whose
mean rating is closer to zero are neither good nor bad; the study leaves out 0.8). Then MeZO from there, in
the study's band, and both numbers again. A model may order reviews well and still call most of them great:
`balanced` is the accuracy at the median score, which no prior of the two words moves; it knows how many
reviews are good, so that it is no accuracy of a classifier that one can use.

Intervals are 95 %: the area's of `workbench.estimation.metrics.auc`, Clopper and Pearson's of the accuracy,
over held-out reviews. They say nothing of other seeds of training, of which there is one.

`python benchmarks/paczero_tasks.py` takes SmolLM2-135M (extra `smollm2`) for 300 steps of 16 reviews and the
embedded base for 300 of 128 (ten to twenty minutes, two cores). Results go to
`benchmarks/results/paczero_tasks.json` and `paczero_tasks.md`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from shared import machine, options, quiet, write

from workbench.core import registry
from workbench.estimation.metrics import auc
from workbench.interfaces import Corpus, Plan, Record
from workbench.training.fine_tuning import evaluating
from workbench.training.precision import reduced
from workbench.training.prompts import PromptedModel

CONFIDENCE = 0.95
STUDY_BAND = 0.8
BANDS = (0.0, STUDY_BAND, 1.5)
MEMBERS = 1000
SEED = 0


@dataclass(frozen=True)
class Setting:
    """The training settings of a model.

    Attributes:
        model: Registry name of a language model.
        max_length: Tokens of a review with its prompt.
        steps: T.
        batch: Reviews of a step, on average.
        rate: Learning rate.
        scale: mu.
        precision: Of matrix products in training and evaluation.
    """

    model: str
    max_length: int
    steps: int
    batch: int
    rate: float
    scale: float = 1e-3
    precision: str = "float32"


SETTINGS = {
    one.model: one
    for one in (
        Setting("smollm2_135m", 64, 300, 16, 3e-6, precision="bfloat16"),
        Setting("sentiment_base", 40, 300, 128, 1e-3),
    )
}


def reviews(band: float, held_out: int) -> Corpus:
    """Film reviews without those that are rated closer to zero than the band."""
    return registry.create(
        "corpus", "movie_reviews", size=MEMBERS, seed=SEED, public=100, held_out=held_out, neutral=band
    )


def measured(model: PromptedModel, records: list[Record], precision: str) -> dict[str, Any]:
    """The model's numbers on some reviews."""
    with evaluating(model), reduced(precision, torch.device("cpu")):
        scores = model.option_scores(records)
    leaning = scores[:, 1] - scores[:, 0]
    good = np.array([record.label == 1 for record in records])
    area = auc(leaning, good, confidence=CONFIDENCE)
    right = int(np.sum((leaning > 0) == good))
    exact = binomtest(right, len(records)).proportion_ci(CONFIDENCE, method="exact")
    at_median = leaning > np.quantile(leaning, 1.0 - good.mean())
    return {
        "reviews": len(records),
        "good": float(good.mean()),
        "auc": area.estimate,
        "auc_interval": [area.lower, area.upper],
        "accuracy": right / len(records),
        "accuracy_interval": [float(exact.low), float(exact.high)],
        "balanced": float(np.mean(at_median == good)),
        "loss": float(np.logaddexp(0.0, np.where(good, -leaning, leaning)).mean()),
    }


def trained(setting: Setting, held_out: int) -> tuple[PromptedModel, dict[str, Any]]:
    """MeZO on the study's reviews: the model, and what it cost."""
    corpus = reviews(STUDY_BAND, held_out)
    mechanism = registry.create(
        "mechanism",
        "mezo",
        measures_quality=False,
        scale=setting.scale,
        precision=setting.precision,
        micro_batch_size=64,
    )
    plan = Plan(
        records=corpus.records,
        held_out=corpus.held_out,
        model="prompted",
        model_parameters={"base": setting.model, "max_length": setting.max_length},
        steps=setting.steps,
        sampling_probability=setting.batch / MEMBERS,
        learning_rate=setting.rate,
        optimizer="sgd",
        seed=SEED,
    )
    started = time.perf_counter()

    def progress(done: int, total: int) -> None:
        if done % 25 == 0 or done == total:
            seconds = time.perf_counter() - started
            print(f"{setting.model}: step {done} of {total}, {seconds:.0f} s", file=sys.stderr, flush=True)

    subject = mechanism.train(plan, progress=progress)
    losses = subject.transcript.losses
    parts = np.array_split(losses, min(6, len(losses)))
    return subject.model, {
        "seconds_a_step": subject.transcript.metrics["training_seconds"] / setting.steps,
        "losses": [float(np.nanmean(part)) for part in parts],
    }


def everything(setting: Setting, held_out: int) -> dict[str, Any]:
    """One model: zero-shot in every band, then trained."""
    fresh = registry.create("model", "prompted", seed=SEED, base=setting.model, max_length=setting.max_length)
    before = {
        f"{band:g}": measured(fresh, list(reviews(band, held_out).held_out), setting.precision)
        for band in BANDS
    }
    print(json.dumps({setting.model: before}), file=sys.stderr, flush=True)
    model, cost = trained(setting, held_out)
    after = measured(model, list(reviews(STUDY_BAND, held_out).held_out), setting.precision)
    return {"setting": asdict(setting), "zero_shot": before, "mezo": after, **cost}


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = options(__doc__, threads=2)
    parser.add_argument("--models", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--steps", type=int, help="of training, in the place of each model's own")
    parser.add_argument("--rate", type=float, help="learning rate, in the place of each model's own")
    parser.add_argument("--held-out", type=int, default=1000, help="reviews that are scored")
    given = parser.parse_args()
    quiet(given.threads)
    changes = {name: getattr(given, name) for name in ("steps", "rate") if getattr(given, name) is not None}
    report: dict[str, Any] = {"machine": machine(), "models": []}
    for name in given.models:
        report["models"].append(everything(replace(SETTINGS[name], **changes), given.held_out))
    write(given.out, "paczero_tasks", report, confidence=CONFIDENCE, band=STUDY_BAND)


if __name__ == "__main__":
    main()
