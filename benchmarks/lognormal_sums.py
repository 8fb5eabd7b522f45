"""Errors of the approximations of a sum of lognormals, by sigma and d, and what that is to Theorem 6.

Writes `lognormal_sums.json` and `.md` to `benchmarks/results`, or to another folder:

- sup |F - F_S| of Fenton-Wilkinson, Schwartz-Yeh, least squares and kernel density, with 95 % intervals, over
  sigma and d, and the sigma at which each stops being good; Fig. 2's curves at sigma = 0.25;
- least squares by a line through the probability plot, by the distribution function, and by a parabola (LSQ);
- draws term by term against draws by counts: time, memory, and the distance of the two samples;
- Schwartz-Yeh one term at a time against doubling;
- Theorem 6: Lemma 1's probabilities of Eqs. 32 and 33 against draws of the dependent sum, at the noise that
  the theorem asks for; and small dependent sums.

Takes some eight minutes on one core; with `--largest 1e8` some thirteen.

    python benchmarks/lognormal_sums.py [--largest 1e8] [--repeats 4000] [--part orders] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from workbench.core.errors import InconclusiveError
from workbench.mechanisms.accountants.shuffled_dp_sgd import step_budget
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums import (
    METHODS,
    Comparison,
    CountedSum,
    ErrorInterval,
    LognormalSum,
    compare,
    error,
    fenton_wilkinson,
    least_squares,
    monte_carlo,
    schwartz_yeh,
)

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from oracles.dependent_lognormals import SIDES, DependentSum, WorstPairSum
from oracles.lognormal_judging import (
    ProbabilityInterval,
    largest_good_sigma,
    least_squares_of_distribution,
    least_squares_quadratic,
    tail_ratio,
)
from oracles.lognormal_reference import reference_error
from oracles.shuffled_curves import AUDIT_BATCH, noise_curve, paper_run

SEED, CONFIDENCE, TOLERANCE = 2026, 0.95, 0.05
RESULTS = Path(__file__).parent / "results"
SIGMAS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
COUNTS = (10, 10**2, 10**3, 10**4, 10**5, 10**6, 10**7, 10**8)
SQUARES_COUNTS, SQUARES_SIGMAS = (10, 1000, 10**5, 10**8), (0.25, 2.0, 4.0)
FIGURE_2_SIGMA = 0.25
COUNTED_FROM, TAIL = 10**5, 10_000
PAPER_SECONDS, PAPER_DRAWS = 62 * 60, 1000
"""Section VI-C: 1,000 draws at d = 1e8."""


def short(value: float) -> float:
    """A number rounded to four significant digits."""
    return float(f"{value:.4g}")


def ends(found: ErrorInterval | ProbabilityInterval) -> list[float]:
    """Lower end, estimate, upper end."""
    return [short(found.lower), short(found.estimate), short(found.upper)]


def reference(approximation: Any, law: LognormalSum) -> float | None:
    """The error by the characteristic function, where that answers."""
    try:
        return short(reference_error(approximation, law, points=201))
    except InconclusiveError:
        return None


def errors(largest: int, repeats: int) -> Iterator[tuple[dict[str, Any], Comparison]]:
    """One row for each d and sigma."""
    for i, count in enumerate(count for count in COUNTS if count <= largest):
        for j, sigma in enumerate(SIGMAS):
            law = LognormalSum.identical(count, sigma)
            draws = CountedSum(law=law, tail=TAIL) if count >= COUNTED_FROM else law
            start = time.perf_counter()
            seed = SEED + 100 + 2 * (i * len(SIGMAS) + j)
            found = compare(law, seed=seed, repeats=repeats, draws=draws, confidence=CONFIDENCE)
            wilkinson = fenton_wilkinson(law)
            tail = tail_ratio(wilkinson, found.sample, 0.01, confidence=CONFIDENCE)
            row = {
                "d": count,
                "sigma": sigma,
                "drawn": "by counts" if count >= COUNTED_FROM else "term by term",
                "half_width": short(found.sample.half_width(CONFIDENCE)),
                "errors": {name: ends(value) for name, value in found.errors.items()},
                "reference": {
                    "fenton_wilkinson": reference(wilkinson, law),
                    "schwartz_yeh": reference(schwartz_yeh(law), law),
                },
                "true_over_fitted_at_fenton_wilkinson_1_percent": ends(tail),
                "seconds": round(time.perf_counter() - start, 2),
            }
            yield row, found


def limits(rows: list[tuple[dict[str, Any], Comparison]]) -> Iterator[dict[str, Any]]:
    """For each method and d, the sigmas between which it stops being good."""
    for method in METHODS:
        for count in sorted({row["d"] for row, _ in rows}):
            by_sigma = {row["sigma"]: found.errors[method] for row, found in rows if row["d"] == count}
            good, bad = largest_good_sigma(by_sigma, TOLERANCE)
            yield {"method": method, "d": count, "good_up_to_sigma": good, "not_good_from_sigma": bad}


def squares(largest: int, repeats: int) -> Iterator[dict[str, Any]]:
    """The errors of the three readings of "least squares", each learned from draws of its own."""
    for i, count in enumerate(count for count in SQUARES_COUNTS if count <= largest):
        for j, sigma in enumerate(SQUARES_SIGMAS):
            law = LognormalSum.identical(count, sigma)
            draws = CountedSum(law=law, tail=TAIL) if count >= COUNTED_FROM else law
            seed = SEED + 400 + 2 * (i * len(SQUARES_SIGMAS) + j)
            learned, judged = (monte_carlo(draws, repeats=repeats, seed=seed + k) for k in (0, 1))
            fits = {
                "line": least_squares(learned.log_sums),
                "distribution_function": least_squares_of_distribution(learned.log_sums),
                "parabola (LSQ)": least_squares_quadratic(learned.log_sums),
            }
            yield {
                "d": count,
                "sigma": sigma,
                "draws": repeats,
                **{name: ends(error(fit, judged, confidence=CONFIDENCE)) for name, fit in fits.items()},
            }


def figure_2(found: Comparison) -> dict[str, Any]:
    """The curves of one comparison."""
    return {
        "d": found.law.count,
        "sigma": found.law.sigma,
        "log_sum": [float(value) for value in found.log_sums],
        "monte_carlo": [short(value) for value in found.monte_carlo],
        "band_lower": [short(value) for value in found.band[0]],
        "band_upper": [short(value) for value in found.band[1]],
        "curves": {name: [short(value) for value in curve] for name, curve in found.curves.items()},
    }


def peak_megabytes() -> float:
    """Largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def drawing(largest: int, plain_repeats: int) -> Iterator[dict[str, Any]]:
    """Draws term by term and by counts at the largest d: time, memory, distance of the samples."""
    sizes = {10**6: 500} if largest >= 10**6 else {}
    for count, terms in ({largest: plain_repeats} | sizes).items():
        for sigma in (FIGURE_2_SIGMA, 4.0):
            law = LognormalSum.identical(count, sigma)
            memory = peak_megabytes()
            start = time.perf_counter()
            plain = monte_carlo(law, repeats=terms, seed=SEED + 2)
            plain_seconds = (time.perf_counter() - start) / terms
            grown = peak_megabytes() - memory
            start = time.perf_counter()
            counted = monte_carlo(CountedSum(law=law), repeats=2000, seed=SEED + 3)
            counted_seconds = (time.perf_counter() - start) / 2000
            both = np.concatenate([plain.log_sums, counted.log_sums])
            distance = float(np.max(np.abs(plain.cdf(both) - counted.cdf(both))))
            yield {
                "d": count,
                "sigma": sigma,
                "draws_term_by_term": terms,
                "seconds_a_draw_term_by_term": short(plain_seconds),
                "seconds_a_draw_by_counts": short(counted_seconds),
                "memory_grew_by_megabytes": round(grown, 1),
                "counts_bias_bound": short(counted.bias),
                "distance_of_samples": short(distance),
                "distance_to_expect_at_most_95_percent": short(
                    math.sqrt(math.log(2 / 0.05) / 2 * (1 / terms + 1 / 2000)) + counted.bias
                ),
                "fenton_wilkinson_error_term_by_term": ends(error(fenton_wilkinson(law), plain)),
            }


def orders() -> Iterator[dict[str, Any]]:
    """Schwartz-Yeh's error by the number of terms that are added one at a time."""
    for sigma in (FIGURE_2_SIGMA, 1.0, 2.0):
        for count in (1000, 30_000, 10**6):
            law = LognormalSum.identical(count, sigma)
            for one_by_one in sorted({1, 32, min(1024, count), count}):
                start = time.perf_counter()
                fit = schwartz_yeh(law, one_by_one=one_by_one)
                yield {
                    "d": count,
                    "sigma": sigma,
                    "one_by_one": one_by_one,
                    "mu": fit.mu,
                    "fitted_sigma": short(fit.sigma),
                    "error": reference(fit, law),
                    "seconds": round(time.perf_counter() - start, 3),
                }


def at_its_noise() -> Iterator[tuple[dict[str, Any], float, float]]:
    """Settings of Theorem 6: a row's first columns, the noise multiplier and a step's epsilon."""
    for name, epsilons in (("ViT, CIFAR100", (0.1, 1.0, 4.0)), ("GPT-2-large, E2E", (1.0,))):
        run = paper_run(name)
        curve = noise_curve(run, epsilons=epsilons)
        probability, steps = run.schedule(AUDIT_BATCH)
        for epsilon, noise in zip(curve.epsilons.tolist(), curve.shuffled.tolist(), strict=True):
            step, share = step_budget(
                epsilon=epsilon, delta=run.delta, sampling_probability=probability, steps=steps, slack=0.5
            )
            row: dict[str, Any] = {
                "run": name,
                "d": run.dimension,
                "epsilon": epsilon,
                "noise_multiplier": short(noise),
                "lognormal_sigma": short(1 / noise),
                "step_epsilon": short(step),
                "step_delta": short(share),
            }
            yield row, noise, step


def theorem_6(repeats: int) -> Iterator[dict[str, Any]]:
    """Eqs. 32 and 33 at the noise of Theorem 6: Lemma 1's probability against the dependent sum's."""
    for row, noise, step in at_its_noise():
        for side, key in zip(SIDES, ("eq_32", "eq_33"), strict=True):
            pair = WorstPairSum(dimension=row["d"], noise_multiplier=noise, side=side)
            truth = pair.probability(step, repeats=repeats, seed=SEED + 4, confidence=CONFIDENCE)
            row[f"{key}_lemma_1"] = short(pair.lemma_1_probability(step))
            row[f"{key}_drawn"] = ends(truth)
        law = WorstPairSum(dimension=row["d"], noise_multiplier=noise).as_independent
        sample = monte_carlo(CountedSum(law=law), repeats=repeats, seed=SEED + 5)
        row["fenton_wilkinson_error"] = ends(error(fenton_wilkinson(law), sample, confidence=CONFIDENCE))
        yield row


def theorem_6_bounds() -> Iterator[dict[str, Any]]:
    """The same probabilities, bounded without draws (Chernoff)."""
    for row, noise, step in at_its_noise():
        for side, key in zip(SIDES, ("eq_32", "eq_33"), strict=True):
            pair = WorstPairSum(dimension=row["d"], noise_multiplier=noise, side=side)
            row[f"{key}_lemma_1"] = short(pair.lemma_1_probability(step))
            row[f"{key}_at_most"] = short(pair.probability_bound(step))
        yield row


def pairs(dimension: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Pairs of queries f and g of l2 norm 1, each with its name."""
    rng = np.random.default_rng([SEED, dimension])
    one = np.eye(dimension)[0]
    worst = (one - 1 / dimension) * math.sqrt(dimension / (dimension - 1))
    equal = np.full(dimension, 1 / math.sqrt(dimension))
    half = np.where(np.arange(dimension) < dimension // 2, 1.0, -1.0) / math.sqrt(dimension)
    random = rng.standard_normal(dimension)
    yield "Eqs. 43 and 44", worst, worst
    yield "Dirac, f = g", one, one
    yield "balanced signs, f = g", half, half
    yield "random, f = g", random / np.linalg.norm(random), random / np.linalg.norm(random)
    yield "random f, equal entries in g", random / np.linalg.norm(random), equal


def dependent() -> Iterator[dict[str, Any]]:
    """Small sums of Eq. 34: the variance that Eq. 35 gives, the sum's own, and the errors of both fits."""
    for dimension in (2, 4, 6):
        for noise in (0.27, 1.0):
            for name, f, g in pairs(dimension):
                law = DependentSum.of_permutations(f, g, noise=noise)
                sample = monte_carlo(law, repeats=20_000, seed=SEED + 6)
                printed, own = law.as_if_independent(), law.matched()
                yield {
                    "pair": name,
                    "d": dimension,
                    "terms": law.means.size,
                    "noise_multiplier": noise,
                    "sigma_of_eq_35": short(printed.sigma),
                    "sigma_of_own_moments": short(own.sigma),
                    "standard_deviation_of_log_sum": short(float(sample.log_sums.std(ddof=1))),
                    "error_of_eq_35": ends(error(printed, sample, confidence=CONFIDENCE)),
                    "error_of_own_moments": ends(error(own, sample, confidence=CONFIDENCE)),
                }


def cell(value: Any) -> str:
    """A value as text: an interval is estimate [lower, upper]."""
    if isinstance(value, list):
        return f"{value[1]:.3g} [{value[0]:.3g}, {value[2]:.3g}]"
    if value is None:
        return "–"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of rows with the same keys."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *[[cell(row[name]) for name in names] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of errors, as the page shows it."""
    return {
        "d": row["d"],
        "sigma": row["sigma"],
        **row["errors"],
        "FW, computed": row["reference"]["fenton_wilkinson"],
        "S-Y, computed": row["reference"]["schwartz_yeh"],
        "P / 1 % of FW": row["true_over_fitted_at_fenton_wilkinson_1_percent"],
    }


def page(document: dict[str, Any]) -> str:
    """The results as the text of a Markdown file."""
    parts = [
        "# Sums of lognormals",
        f"Python {document['python']}, numpy {document['numpy']}, scipy {document['scipy']}, "
        f"{document['machine']}; 95 % intervals a cell (DKW, at once over the methods of a cell; "
        f"Clopper-Pearson for single probabilities), {sum(document['seconds'].values()):.0f} s in all, on a "
        "machine with other work.",
        "sigma is that of the exponents. In Theorem 6 it is one over the noise multiplier: Fig. 2's 0.25 is "
        "for a noise multiplier of 4.",
    ]
    for part in PARTS:
        if part in document:
            parts += [*sections(part, document)]
    return "\n\n".join(parts) + "\n"


def sections(part: str, document: dict[str, Any]) -> list[str]:
    """Headings, words and tables of one part."""
    if part == "errors":
        return [
            "## sup |F - F_S|",
            f"{document['repeats']:,} draws a cell. Schwartz-Yeh adds 1,024 terms one at a time and doubles "
            "from there on; the paper's order has a table of its own. Computed: by the characteristic "
            "function, where that answers. Last column: "
            "the probability at Fenton-Wilkinson's 1 % quantile, over 1 %.",
            table([flat(row) for row in document["errors"]]),
            f"## Where each stops being good (tolerance {document['tolerance']:g})",
            "Good: the whole interval is at most the tolerance; not good: all of it is above.",
            table(document["limits"]),
        ]
    seconds = document["paper_seconds"] / document["paper_draws"]
    words = {
        "squares": "What the paper calls LSQ is in the literature the parabola through the normal scores "
        "(Zhao and Ding 2007). The method above is the straight line.",
        "drawing": f"The paper reports {seconds:.2f} s a draw at d = 1e8 "
        "on its own machine (62 minutes for 1,000).",
        "theorem_6": f"c' = c, delta split in halves, batches of {document['batch']:,} (the only size in the "
        "paper). Lemma 1's probability of the sum being at most C(epsilon), "
        "and the same by draws of the dependent sum.",
        "theorem_6_bounds": "The probabilities of Theorem 6 at its own noise, bounded by Chernoff.",
    }
    text = [f"## {HEADINGS[part]}", words.get(part, ""), table(document[part])]
    return [own for own in text if own]


HEADINGS = {
    "squares": "Three readings of least squares",
    "drawing": "Draws",
    "orders": "Schwartz-Yeh: one term at a time, and doubling",
    "theorem_6": "Theorem 6 at its own noise",
    "theorem_6_bounds": "Theorem 6 without draws",
    "dependent": "Small dependent sums (c = c' = 1)",
}
PARTS = ("errors", *HEADINGS)


def measured(part: str, largest: int, repeats: int, plain_repeats: int) -> dict[str, Any]:
    """The results of one part of the benchmark."""
    if part == "drawing":
        return {part: list(drawing(largest, plain_repeats))}
    if part == "errors":
        rows = []
        for row, found in errors(largest, repeats):
            rows.append((row, found))
            print(row, flush=True)
        curves = next(figure_2(found) for _, found in rows[::-1] if found.law.sigma == FIGURE_2_SIGMA)
        return {part: [row for row, _ in rows], "limits": list(limits(rows)), "figure_2": curves}
    if part == "squares":
        return {part: list(squares(largest, repeats))}
    if part == "theorem_6":
        return {part: list(theorem_6(max(1, repeats // 2)))}
    others = {"orders": orders, "theorem_6_bounds": theorem_6_bounds, "dependent": dependent}
    return {part: list(others[part]())}


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--largest", type=float, default=1e6, help="largest d (default 1e6; the paper has 1e8)"
    )
    parser.add_argument("--repeats", type=int, default=4000, help="draws a cell")
    parser.add_argument("--plain-repeats", type=int, default=20, help="draws term by term at the largest d")
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="measure only this, and keep the file's other parts"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    for name, least in (("largest", COUNTS[0]), ("repeats", 20), ("plain_repeats", 1)):
        if not least <= getattr(options, name) <= 10**12:
            option = name.replace("_", "-")
            parser.error(f"--{option} must be in {least}..1e12, got {getattr(options, name):g}")
    path = options.out / "lognormal_sums.json"
    kept = options.part and path.exists()
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if kept else {}
    seconds = document.get("seconds", {})
    document |= {
        "confidence": CONFIDENCE,
        "tolerance": TOLERANCE,
        "seed": SEED,
        "batch": AUDIT_BATCH,
        "paper_seconds": PAPER_SECONDS,
        "paper_draws": PAPER_DRAWS,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
    for part in options.part or PARTS:
        start = time.perf_counter()
        document |= measured(part, int(options.largest), options.repeats, options.plain_repeats)
        seconds[part] = round(time.perf_counter() - start, 1)
        if part == "errors":
            document["repeats"] = options.repeats
        print(part, seconds[part], flush=True)
    document["seconds"] = seconds
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (options.out / "lognormal_sums.md").write_text(page(document), encoding="utf-8")


if __name__ == "__main__":
    main()
