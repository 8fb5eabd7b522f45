"""Coverage and mean bound of every epsilon estimator on releases of known epsilon.

Writes `benchmarks/results/estimators.json`: for each estimator, truth, number of scores and kind of labels
the share of bounds above the truth, the share refused, the mean bound and the milliseconds a call (tables
that repetitions share are reused); then the share of a Gaussian step's true epsilon that each audits, and
the same coverage of the bound of mu from one run; and after how many scores a sequential test refutes
claims, true ones at their boundary among them; and the share of randomised response that is audited with
100,000 scores; and the bound that decides where the supplier of scores declares them Gaussian, for truths
that are and others; and the bounds of a Rényi divergence, for either kind of trials. Takes about half an
hour on one core.

    python benchmarks/estimators.py [--repetitions 2000] [--only gdp_one_run]
    python benchmarks/estimators.py --only peers --peer WHEEL

With `--only` the other estimators' rows stay as the file has them. Peers are what others offer: the Bayesian
interval of Zanella-Béguelin et al. (2023, "Bayesian estimation of differential privacy") at the best
threshold, which is known here, and the functions of jax-privacy's wheel, where one is given.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from shared import auditor_of

from workbench.accounting import ApproximateDP
from workbench.accounting.gaussian import delta_of_epsilon, mu_of_epsilon
from workbench.core.errors import UnsupportedError
from workbench.estimation import (
    ESTIMATORS,
    clopper_pearson,
    gdp_one_run,
    renyi_lower,
    renyi_one_run,
    sequential,
)
from workbench.estimation.deciding import deciding_tests
from workbench.estimation.renyi import binary_renyi
from workbench.interfaces import BoolArray, Evidence, Family, FloatArray, GameTerms, Trials

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from oracles.known_truths import known_truths

DELTA, CONFIDENCE, SEED = 1e-5, 0.95, 2026
RESULTS = Path(__file__).parent / "results" / "estimators.json"
NEEDS_GAUSSIAN = ("gaussian_location", "gaussian_rank", "gdp_one_run")
"""Estimators whose epsilon is a bound for Gaussian trade-off curves alone."""

LIBRARY = {"clopper_pearson": 1.05, "gaussian": 3.08}
"""Mean bounds at 1,000 scores on 1-GDP of the best public auditing library, measured beforehand."""

DRAWS = 20_000
"""Of a posterior."""

Lower = Callable[[FloatArray, BoolArray, np.random.Generator], float]


def estimators() -> dict[str, Lower]:
    """Every estimator as a function to its lower bound; NaN where it refuses."""

    def fixed(scores: FloatArray, members: BoolArray, generator: np.random.Generator) -> float:
        return clopper_pearson(scores, members, threshold=1.0, delta=DELTA, confidence=CONFIDENCE).lower

    def by_name(name: str) -> Lower:
        def lower(scores: FloatArray, members: BoolArray, generator: np.random.Generator) -> float:
            try:
                return ESTIMATORS[name](
                    scores, members, delta=DELTA, confidence=CONFIDENCE, generator=generator
                ).lower
            except UnsupportedError:
                return math.nan

        return lower

    return {"clopper_pearson": fixed} | {name: by_name(name) for name in ESTIMATORS}


def zanella_beguelin(scores: FloatArray, members: BoolArray, generator: np.random.Generator) -> float:
    """The 5 % quantile of epsilon's posterior at the known threshold, Jeffreys priors on both error rates."""
    told = scores >= 1.0
    missed, found = int(np.sum(members & ~told)), int(np.sum(members & told))
    false, right = int(np.sum(~members & told)), int(np.sum(~members & ~told))
    fnr = generator.beta(0.5 + missed, 0.5 + found, DRAWS)
    fpr = generator.beta(0.5 + false, 0.5 + right, DRAWS)
    with np.errstate(divide="ignore"):
        either = np.maximum(
            np.log(np.maximum(1 - DELTA - fpr, 0) / fnr), np.log(np.maximum(1 - DELTA - fnr, 0) / fpr)
        )
    return float(np.quantile(np.maximum(either, 0.0), 1 - CONFIDENCE))


def peers_of(wheel: Path | None) -> dict[str, tuple[Lower, str]]:
    """What others offer: a lower end, and the kind of trials that it is for."""
    found: dict[str, tuple[Lower, str]] = {"zanella_beguelin": (zanella_beguelin, "independent")}
    if wheel is None:
        return found
    auditor = auditor_of(wheel)

    def of(name: str) -> Lower:
        def lower(scores: FloatArray, members: BoolArray, generator: np.random.Generator) -> float:
            asked = getattr(auditor(scores[members], scores[~members]), name)
            return float(asked(significance=1 - CONFIDENCE, delta=DELTA))

        return lower

    kinds = {
        "epsilon_clopper_pearson": "independent",
        "epsilon_one_run": "one-run",
        "epsilon_one_run_fdp": "one-run",
    }
    return found | {f"jax_privacy.{name}": (of(name), kind) for name, kind in kinds.items()}


def peers(wheel: Path | None, repetitions: int) -> Iterator[dict[str, Any]]:
    """One row for each peer, truth and number of scores, with coins."""
    cells = itertools.product(peers_of(wheel).items(), known_truths(), (100, 1000))
    for number, ((name, (lower, trials)), truth, n) in enumerate(cells):

        def draw(
            generator: np.random.Generator, n: int = n, sample: Any = truth.sample
        ) -> tuple[FloatArray, BoolArray]:
            members = draw_labels(n, "coins", generator)
            return sample(members, generator), members

        in_family = truth.is_gaussian or not name.endswith("dp")
        row = {"estimator": name, "truth": truth.name, "trials": trials, "in_family": in_family, "n": n}
        times = min(repetitions, 100) if name.endswith("fdp") else repetitions  # Half a second a call.
        bounds, milliseconds = measure(lower, draw, times, [SEED, 7, number])
        yield row | {"repetitions": times} | summary(bounds, milliseconds, truth.epsilon(DELTA))


def draw_labels(n: int, kind: str, generator: np.random.Generator, prior: float = 0.5) -> BoolArray:
    """Half members (`"fixed"`), or coins with both sides present (`"coins"`)."""
    while True:
        members = np.arange(n) < n // 2 if kind == "fixed" else generator.random(n) < prior
        if members.any() and not members.all():
            return members


def measure(
    lower: Lower, draw: Callable[[np.random.Generator], Any], repetitions: int, seed: list[int]
) -> Any:
    """Bounds of many repetitions and the mean milliseconds a call."""
    generator = np.random.default_rng(seed)
    bounds, seconds = np.empty(repetitions), 0.0
    for i in range(repetitions):
        scores, members = draw(generator)
        start = time.perf_counter()
        bounds[i] = lower(scores, members, generator)
        seconds += time.perf_counter() - start
    return bounds, 1e3 * seconds / repetitions


def summary(bounds: FloatArray, milliseconds: float, epsilon: float) -> dict[str, float | None]:
    """Named numbers of one cell; the mean bound is None where all were refused."""
    kept = bounds[~np.isnan(bounds)]
    return {
        "epsilon": round(epsilon, 6),
        "share_above_truth": round(float(np.mean(bounds > epsilon)), 5),
        "share_refused": round(float(np.mean(np.isnan(bounds))), 5),
        "mean_bound": round(float(kept.mean()), 4) if kept.size else None,
        "standard_deviation": round(float(kept.std()), 4) if kept.size else None,
        "milliseconds_a_call": round(milliseconds, 3),
    }


def coverage(repetitions: int, only: str | None) -> Iterator[dict[str, Any]]:
    """One row for each estimator (or the one), truth, number of scores and kind of labels."""
    cells = itertools.product(estimators().items(), known_truths(), (100, 1000), ("fixed", "coins"))
    for number, ((name, lower), truth, n, kind) in enumerate(cells):
        if only not in (None, name):
            continue

        def draw(
            generator: np.random.Generator, n: int = n, kind: str = kind, sample: Any = truth.sample
        ) -> tuple[FloatArray, BoolArray]:
            members = draw_labels(n, kind, generator)
            return sample(members, generator), members

        in_family = truth.is_gaussian or name not in NEEDS_GAUSSIAN
        row = {"estimator": name, "truth": truth.name, "in_family": in_family, "n": n, "labels": kind}
        bounds, milliseconds = measure(lower, draw, repetitions, [SEED, number])
        yield row | summary(bounds, milliseconds, truth.epsilon(DELTA))


def coverage_of_mu(repetitions: int) -> Iterator[dict[str, Any]]:
    """The bound of mu from one run: one row for each truth, number of scores and probability of the coin."""

    def lower(scores: FloatArray, members: BoolArray, generator: np.random.Generator, prior: float) -> float:
        return gdp_one_run(
            scores, members, confidence=CONFIDENCE, prior=prior, quantity="mu", generator=generator
        ).lower

    cells = itertools.product(known_truths(), (100, 1000, 10_000), (0.5, 0.2))
    for number, (truth, n, prior) in enumerate(cells):

        def draw(
            generator: np.random.Generator, n: int = n, prior: float = prior, sample: Any = truth.sample
        ) -> tuple[FloatArray, BoolArray]:
            members = draw_labels(n, "coins", generator, prior)
            return sample(members, generator), members

        row = {"estimator": "gdp_one_run", "truth": truth.name, "n": n, "prior": prior}
        bounds, milliseconds = measure(partial(lower, prior=prior), draw, repetitions, [SEED, 2, number])
        cell = summary(bounds, milliseconds, truth.mu)
        yield row | {"mu": cell.pop("epsilon")} | cell


def true_renyi(name: str, alpha: float) -> float:
    """Divergence of a known truth in nats, the same both ways (Mironov 2017, propositions 5 to 7)."""
    if name == "gaussian":
        return alpha / 2.0
    if name == "randomised_response":
        return binary_renyi(math.e / (math.e + 1.0), 1.0 / (math.e + 1.0), alpha)
    if name == "laplace":
        near, far = alpha * math.exp(alpha - 1.0), (alpha - 1.0) * math.exp(-alpha)
        return math.log((near + far) / (2.0 * alpha - 1.0)) / (alpha - 1.0)
    return 0.0


def renyi() -> Iterator[dict[str, Any]]:
    """The bounds of a Rényi divergence: a row for each truth, order, number of scores and kind of trials."""
    truths = [truth for truth in known_truths() if truth.name != "subsampled_gaussian"]
    sizes = ((100, 200), (1000, 100))
    for number, (truth, alpha, (n, repetitions), trials) in enumerate(
        itertools.product(truths, (2.0, 32.0), sizes, Trials)
    ):
        estimator = renyi_lower if trials is Trials.INDEPENDENT else renyi_one_run

        def lower(
            scores: FloatArray,
            members: BoolArray,
            generator: np.random.Generator,
            estimator: Any = estimator,
            alpha: float = alpha,
        ) -> float:
            bound = estimator(scores, members, alpha=alpha, confidence=CONFIDENCE, generator=generator)
            return float(bound.lower)

        def draw(
            generator: np.random.Generator, n: int = n, sample: Any = truth.sample
        ) -> tuple[FloatArray, BoolArray]:
            members = draw_labels(n, "coins", generator)
            return sample(members, generator), members

        row = {"estimator": "renyi", "truth": truth.name, "alpha": alpha, "n": n, "trials": str(trials)}
        bounds, milliseconds = measure(lower, draw, repetitions, [SEED, 5, number])
        cell = summary(bounds, milliseconds, true_renyi(truth.name, alpha))
        yield row | {"repetitions": repetitions, "divergence": cell.pop("epsilon")} | cell


PLAN = 1000
"""Scores of the fixed plan with which the sequential test is compared."""


def declared() -> Iterator[dict[str, Any]]:
    """The better deciding bound of scores whose supplier declares them Gaussian, for both kinds of trials."""
    claim = ApproximateDP(epsilon=1.0, delta=DELTA)

    def lower(
        scores: FloatArray, members: BoolArray, generator: np.random.Generator, trials: Trials
    ) -> float:
        terms = GameTerms(description="benchmark", trials=trials, family=Family.GAUSSIAN)
        evidence = Evidence(scores=scores, members=members, game=terms, attack="benchmark")
        bounds = []
        for test in deciding_tests(claim, evidence, CONFIDENCE, generator):
            with suppress(UnsupportedError):
                bounds.append(test(scores).lower)
        return max(bounds)

    for number, (truth, trials) in enumerate(itertools.product(known_truths(), Trials)):

        def draw(generator: np.random.Generator, sample: Any = truth.sample) -> tuple[FloatArray, BoolArray]:
            members = draw_labels(PLAN, "coins", generator)
            return sample(members, generator), members

        row = {"estimator": "declared", "truth": truth.name, "in_family": truth.is_gaussian, "n": PLAN}
        repetitions = 4000 if truth.name == "gaussian" and trials is Trials.INDEPENDENT else 400
        bounds, milliseconds = measure(partial(lower, trials=trials), draw, repetitions, [SEED, 4, number])
        row |= {"trials": str(trials), "repetitions": repetitions}
        yield row | summary(bounds, milliseconds, truth.epsilon(DELTA))


def stopping() -> Iterator[dict[str, Any]]:
    """The sequential test: how often and when it refutes false claims, and true ones on their boundary."""

    def no_noise(members: BoolArray, generator: np.random.Generator) -> FloatArray:
        return members + 1e-6 * generator.random(members.size)

    truths = {truth.name: truth.sample for truth in known_truths()}
    false = [(no_noise, "no noise", epsilon, DELTA) for epsilon in (1.0, 2.0, 4.0)]
    false += [(truths["gaussian"], "gaussian", epsilon, DELTA) for epsilon in (0.25, 0.5, 1.0)]
    false += [
        (truths["randomised_response"], "randomised_response", epsilon, DELTA) for epsilon in (0.25, 0.5)
    ]
    true = [
        (truths["gaussian"], "gaussian", epsilon, delta_of_epsilon(1.0, epsilon)) for epsilon in (0.5, 1.5)
    ]
    true.append((truths["randomised_response"], "randomised_response", 1.0, 0.0))
    cells = [
        (case, n, repetitions)
        for cases, n, repetitions in ((false, PLAN, 100), (true, 300, 400))
        for case in cases
    ]
    for number, (((sample, name, epsilon, delta), n, repetitions), trials) in enumerate(
        itertools.product(cells, Trials)
    ):
        generator, watched = np.random.default_rng([SEED, 3, number]), []
        start = time.perf_counter()
        for _ in range(repetitions):
            members = draw_labels(n, "coins", generator)
            bound = sequential(
                sample(members, generator),
                members,
                epsilon=epsilon,
                delta=delta,
                confidence=CONFIDENCE,
                trials=trials,
                generator=generator,
            )
            watched.append(bound.n if bound.lower > epsilon else n + 1)
        seconds = time.perf_counter() - start
        median = float(np.median(watched))
        yield {
            "estimator": "sequential",
            "truth": name,
            "claim": epsilon,
            "delta": round(delta, 6),
            "trials": str(trials),
            "n": n,
            "repetitions": repetitions,
            "share_refuted": round(float(np.mean(np.asarray(watched) <= n)), 5),
            "median_scores_to_refute": median if median <= n else None,
            "milliseconds_a_call": round(1e3 * seconds / repetitions, 3),
        }


def gaussian_step(only: str | None) -> Iterator[dict[str, Any]]:
    """Audited share of the true epsilon of a Gaussian step, with 10,000 and 100,000 observations in all."""
    sizes = ((10_000, 100), (100_000, 20))
    cells = itertools.product(estimators().items(), sizes, (1.0, 4.0))
    for number, ((name, lower), (n, repetitions), epsilon) in enumerate(cells):
        if only not in (None, name):
            continue

        def draw(
            generator: np.random.Generator, n: int = n, mu: float = mu_of_epsilon(epsilon, DELTA)
        ) -> tuple[FloatArray, BoolArray]:
            members = np.arange(n) < n // 2
            return generator.normal(size=n) + mu * members, members

        bounds, milliseconds = measure(lower, draw, repetitions, [SEED, 1, number])
        cell = summary(bounds, milliseconds, epsilon)
        share = None if cell["mean_bound"] is None else round(cell["mean_bound"] / epsilon, 4)
        yield {"estimator": name, "n": n, "repetitions": repetitions, "audited_share": share} | cell


def large() -> Iterator[dict[str, Any]]:
    """Audited share of the epsilon of randomised response with 100,000 scores, without a family."""
    (truth,) = (truth for truth in known_truths() if truth.name == "randomised_response")
    n, repetitions, epsilon = 100_000, 100, truth.epsilon(DELTA)

    def draw(generator: np.random.Generator) -> tuple[FloatArray, BoolArray]:
        members = draw_labels(n, "coins", generator)
        return truth.sample(members, generator), members

    for number, name in enumerate(("one_run", "clopper_pearson_all")):
        lower = estimators()[name]
        bounds, milliseconds = measure(lower, draw, repetitions, [SEED, 6, number])
        cell = summary(bounds, milliseconds, epsilon)
        share = None if cell["mean_bound"] is None else round(cell["mean_bound"] / epsilon, 4)
        row = {"estimator": name, "truth": truth.name, "n": n}
        yield row | {"repetitions": repetitions, "audited_share": share} | cell


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument(
        "--only",
        choices=[*estimators(), "sequential", "declared", "renyi", "large", "peers"],
        help="measure this estimator alone",
    )
    parser.add_argument("--peer", type=Path, help="jax-privacy's wheel, for its functions among the peers")
    options = parser.parse_args()
    only, parts = (
        options.only,
        {
            "coverage": [],
            "gaussian_step": [],
            "coverage_of_mu": [],
            "stopping": [],
            "declared": [],
            "renyi": [],
            "large": [],
            "peers": [],
        },
    )
    if only is not None:
        before = json.loads(RESULTS.read_text())
        parts = {
            name: [r for r in before.get(name, []) if only not in (r["estimator"], name)] for name in parts
        }
    rows = {
        "coverage": coverage(options.repetitions, only),
        "gaussian_step": gaussian_step(only),
        "stopping": stopping() if only in (None, "sequential") else (),
        "renyi": renyi() if only in (None, "renyi") else (),
        "large": large() if only in (None, "large") else (),
        "peers": peers(options.peer, min(options.repetitions, 400)) if only in (None, "peers") else (),
        "declared": declared() if only in (None, "declared") else (),
        "coverage_of_mu": coverage_of_mu(options.repetitions) if only in (None, "gdp_one_run") else (),
    }
    for name, measured in rows.items():
        for row in measured:
            parts[name].append(row)
            print(" ".join(f"{value}" for value in row.values()), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    document = {
        "delta": DELTA,
        "confidence": CONFIDENCE,
        "repetitions": options.repetitions,
        "seed": SEED,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "public_library_mean_bound_at_1000_on_gaussian": LIBRARY,
        **parts,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
