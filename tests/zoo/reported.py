"""Bugs of DP training that were publicly reported, each re-created in its smallest form on the digits.

Each trainer is `dp_sgd.Trainer` with one thing wrong, and claims (1, 1e-5)-DP as `dp_sgd.correct` does.
`BUGS` says where the bug was reported, in which direction it goes, and in which part it is; docs/bug_zoo.md
has the table of what replay says of each. No line of the reported code is here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import reported_trainers as bugs
from dp_sgd import CLIP, DELTA, EPSILON, RATE, DividedByTheBatch, Trainer, noise_multiplier

LESS, MORE, WRONG = "promise too small", "too much noise", "silently wrong"
ADD_REMOVE = f"epsilon={EPSILON:g},delta={DELTA:g},adjacency=add-remove"


@dataclass(frozen=True)
class Bug:
    """A reported bug.

    Attributes:
        trainer: Has it.
        source: Repository and number, and what was wrong.
        direction: Of the error: `LESS` (the promised epsilon is too small), `MORE` or `WRONG`.
        fault: The part that it is in, in the words of docs/replay.md; empty where no promise is broken.
        verified: Whether the source was read and says so.
        claim: What the trainer claims.
        stated: What its code is said to do (`--stated`), where the fault by itself shows in one number only.
        told: The part that replay then names.
    """

    trainer: Trainer
    source: str
    direction: str
    fault: str
    verified: bool = True
    claim: str = ADD_REMOVE
    stated: Mapping[str, float] = field(default_factory=dict)
    told: str = ""


def said(l2_clip_norm: float = CLIP) -> dict[str, float]:
    """What most of these trainers are said to do."""
    return {
        "noise_multiplier": noise_multiplier(),
        "l2_clip_norm": l2_clip_norm,
        "sampling_probability": RATE,
    }


BUGS: dict[str, Bug] = {
    "opacus_571": Bug(
        bugs.FlooredDivisor(),
        "opacus 571, 819: divisor is the number of records times the rate, rounded down",
        LESS,
        "normaliser",
    ),
    "opacus_420": Bug(
        DividedByTheBatch(),
        "opacus 420, jax_privacy pitfalls: divide by the batch size as drawn",
        LESS,
        "normaliser",
    ),
    "opacus_751": Bug(
        bugs.GhostNormOfBias(),
        "opacus PR 751: ghost norm of a bias on 3-D input squares each product",
        LESS,
        "clip",
    ),
    "opacus_664": Bug(
        bugs.NormOfTheLibrary(),
        "opacus PR 664: fast clipping ignored the clipping norm it was given",
        LESS,
        "accountant",
        stated=said(0.3),
        told="clip",
    ),
    "opacus_413": Bug(
        bugs.TiedWeightsAsTwoRecords(),
        "opacus 413, PR 417: second gradient of tied weights taken for more records",
        LESS,
        "accountant",
        stated=said(),
        told="clip",
    ),
    "opacus_707": Bug(
        bugs.AccumulatedInPlace(),
        "opacus PR 707: accumulated sum is an alias of the gradient",
        WRONG,
        "accountant",
        stated=said(),
        told="clip",
    ),
    "opacus_196": Bug(
        bugs.SameDataOnAllWorkers(),
        "opacus PR 196: all workers had the same data",
        LESS,
        "accountant",
        stated=said(),
        told="noise",
    ),
    "opacus_80": Bug(
        bugs.ShuffledEpochs(), "opacus 80, PR 128: shuffled batches accounted as Poisson's", LESS, "sampler"
    ),
    "opacus_813": Bug(
        bugs.RateOfTheLoader(), "opacus 813: rate from the number of batches of a weighted sampler", MORE, ""
    ),
    "opacus_264": Bug(
        bugs.NeverCleared(), "opacus PR 264: without zero_grad, sums of all steps add up", LESS, "accountant"
    ),
    "opacus_161": Bug(
        bugs.AnotherBatchForAnEmptyOne(), "opacus 161: draw again where a batch is empty", LESS, "sampler"
    ),
    "opacus_19": Bug(
        bugs.PartialBatchesNotCounted(),
        "opacus 19: steps of partial batches not counted",
        LESS,
        "accountant",
        stated={"steps": bugs.PartialBatchesNotCounted.counted},
        told="accountant",
    ),
    "opacus_472": Bug(
        bugs.RunningStatistics(),
        "opacus 472: running statistics of batch norm need freezing",
        LESS,
        "side channel",
    ),
    "tramer_2022": Bug(
        bugs.ClippedAfterAveraging(),
        "Tramer et al. 2022 (arXiv 2202.12219): sensitivity off by the batch size",
        LESS,
        "accountant",
        stated=said(),
        told="clip",
    ),
    "tensorflow_privacy_620": Bug(
        bugs.Microbatches(), "tensorflow/privacy 620: microbatches double the sensitivity", LESS, "clip"
    ),
    "tensorflow_privacy_72": Bug(
        bugs.NeverCalled(),
        "tensorflow/privacy 72, 134: the optimizer's private part never called",
        LESS,
        "noise",
    ),
    "tensorflow_privacy_519": Bug(
        bugs.AdaptiveClipWithoutNoise(),
        "tensorflow/privacy 519: adaptive clipping with no noise on the norm bits",
        LESS,
        "clip",
    ),
    "tensorflow_privacy_76": Bug(
        bugs.RateByTrainingLoss(),
        "tensorflow/privacy 76: hyperparameters chosen on private data unpaid",
        LESS,
        "side channel",
    ),
    "tensorflow_federated_1080": Bug(
        bugs.AdaptiveClip(),
        "tensorflow-federated PR 1080: the quantile's share of the budget unpaid",
        LESS,
        "accountant",
    ),
    "optax_527": Bug(bugs.NoiseInEveryMicrostep(), "optax 527: noise before accumulation", MORE, ""),
    "jax_privacy_383": Bug(
        bugs.NoiseOfTheSumOnTheMean(), "jax_privacy 383: noise for the sum on the mean", MORE, ""
    ),
    "jax_privacy_338": Bug(
        bugs.ClippedByTheModule(),
        "jax_privacy PR 338, 385: sensitivity C claimed for clipping by the layer",
        LESS,
        "clip",
    ),
    "jax_privacy_keys": Bug(
        bugs.OneKeyForAnEpoch(), "jax_privacy pitfalls: noise repeats through reuse of a key", LESS, "noise"
    ),
    "jax_privacy_batch_norm": Bug(
        bugs.BatchNormalised(), "jax_privacy pitfalls: operations across examples", LESS, "clip"
    ),
    "jax_privacy_metrics": Bug(
        bugs.SelectedByTrainingLoss(),
        "jax_privacy pitfalls: exact metrics of members select the model",
        LESS,
        "side channel",
    ),
    "jax_privacy_not_finite": Bug(
        bugs.SkipsWhatIsNotFinite(), "jax_privacy pitfalls: gradients that are not finite", LESS, "clip"
    ),
    "jax_3646": Bug(
        bugs.OneKeyForAllTensors(), "jax PR 3646: one key for the noise of all tensors", LESS, "noise"
    ),
    "fedbiomed_1443_clip": Bug(
        bugs.ClippedByTheTensor(), "fedbiomed 1443: clips by the parameter", LESS, "clip"
    ),
    "fedbiomed_1443_noise": Bug(
        bugs.NoiseTwice(), "fedbiomed 1443: noise after training and after aggregation", MORE, ""
    ),
    "plato_194": Bug(
        bugs.FixedOrder(), "plato PR 194: another sampler in the place of Poisson's", LESS, "sampler"
    ),
    "dayu11_7": Bug(
        bugs.RawGradientBesides(),
        "Differentially-Private-Deep-Learning 7: raw mean gradient mixed in",
        LESS,
        "clip",
    ),
    "caamas_36": Bug(
        bugs.AggregateClipped(),
        "caamas 36: clips the aggregate, and scales the noise by the same number",
        LESS,
        "clip",
    ),
    "dpgan_4": Bug(
        bugs.WeightsClippedInstead(),
        "illidanlab/dpgan 4: noise first, then the weights are clipped",
        LESS,
        "clip",
    ),
    "sprint_gan_5": Bug(
        bugs.NoiseForTheSquare(),
        "SPRINT_gan 5: noise scaled by the square of the clipping norm",
        LESS,
        "accountant",
        stated=said(bugs.NoiseForTheSquare.clip),
        told="noise",
    ),
    "diffprivlib_20": Bug(
        bugs.BoundsFromData(), "diffprivlib 20: bounds read from the data", LESS, "side channel"
    ),
    "google_dp_378": Bug(
        Trainer(),
        "google/differential-privacy 378: sensitivity C instead of 2 C for replace-one",
        LESS,
        "accountant",
        claim=ADD_REMOVE.replace("add-remove", "replace-one"),
        stated=said(),
        told="accountant",
    ),
    "epochs_not_counted": Bug(
        bugs.OneEpochCounted(),
        "no report found: noise for one epoch of four",
        LESS,
        "accountant",
        verified=False,
        stated={"steps": bugs.EPOCH},
        told="accountant",
    ),
    "early_stopping": Bug(
        bugs.StopsByTrainingLoss(),
        "no report found: stops by the loss on the members",
        LESS,
        "side channel",
        verified=False,
    ),
    "averaged_with_raw": Bug(
        bugs.AveragedWithARawCopy(),
        "no report found: weights averaged with a copy that is not private",
        LESS,
        "side channel",
        verified=False,
    ),
    "raw_second_moments": Bug(
        bugs.RawSecondMoments(),
        "no report found: Adam's state fed with raw gradients",
        LESS,
        "side channel",
        verified=False,
    ),
    "raw_warm_up": Bug(
        bugs.RawWarmUp(),
        "no report found: first epoch without clipping and noise",
        LESS,
        "noise",
        verified=False,
    ),
    "pretrained": Bug(
        bugs.Pretrained(),
        "no report found: an epoch of another optimizer on the members",
        LESS,
        "noise",
        verified=False,
    ),
}
"""Each bug by the name of the module's function."""

globals().update({name: bug.trainer for name, bug in BUGS.items()})
