"""What Shuffled DPSGD's formulas give, and say of each other: models counted, Theorem 6, Eq. 45.

Sizes of ViT-B/16: Dosovitskiy et al. 2021, Table 1; of BERT-base: Devlin et al. 2019, section 3; of
RoBERTa-base: Liu et al. 2019; of GPT-2 and GPT-2-large: Radford et al. 2019, Table 2. Vocabularies,
positions, poolers and heads are those of the named checkpoints of Hugging Face's transformers (Wolf et al.
2020). A block of width m with a hidden layer of 4 m has 12 m^2 weights and 13 m biases and normalisers:
Theorem 4 speaks of 4 m^2 of them (queries, keys, values, output), Theorem 3 of 8 m^2 and of the 4 m hidden
biases. With them must go the 3 m biases of queries, keys and values.

>>> round(MODELS["GPT-2"].count / 1e6), round(100 * MODELS["GPT-2"].share)
(124, 68)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.accounting.events import Gaussian, gaussian_run
from workbench.checks.published import PublishedPaper
from workbench.core.registry import create
from workbench.interfaces import Adjacency, FloatArray
from workbench.reports.papers.shuffled_dp_sgd.paper import (
    EPSILONS,
    VIT,
    delta_of,
    dimension_of,
    listed,
    parameters_of,
    words,
)
from workbench.reports.shared.context import Context
from workbench.reports.shared.grids import Row, table
from workbench.reports.shared.printed import Interval, cell, exactly, said, stands_for
from workbench.reports.shared.statements import Found
from workbench.studies.report import Cell, Table, Value

COUNT_TOLERANCE = 0.01
"""Relative difference from which a printed number of parameters is another model's: heads are below it."""

NULL_REPETITIONS = 200
"""Audits without a leak that are simulated."""

RELEASE_SIGMA = 0.24
"""Noise multiplier of the release at which two readings of Theorem 6 are compared; near where it acts."""

# The paper's models


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A transformer encoder or decoder.

    Attributes:
        layers: Blocks.
        outside: Trainable parameters outside the blocks: embeddings, last normaliser, pooler, classifier.
        tied: Parameters of an output layer that shares its weights with the embedding, so not in `outside`.
    """

    width: int
    layers: int
    heads: int
    outside: int
    tied: int = 0

    @property
    def count(self) -> int:
        """Trainable parameters, shared ones once."""
        return self.layers * (12 * self.width**2 + 13 * self.width) + self.outside

    @property
    def moved(self) -> int:
        """Parameters that a permutation of Theorem 3 or 4 moves, biases of queries, keys, values included."""
        return self.layers * (12 * self.width**2 + 7 * self.width)

    @property
    def share(self) -> float:
        """Share of the trainable parameters that a permutation moves."""
        return self.moved / self.count

    @property
    def places(self) -> tuple[int, int]:
        """Most places that a number of an MLP, and of an attention layer, can be moved to."""
        return 4 * self.width, self.width // self.heads

    @property
    def log_permutations(self) -> float:
        """Natural logarithm of the number of permutations, one P_2 for all heads of a block (Eq. 15)."""
        hidden, head = self.places
        return self.layers * (math.lgamma(hidden + 1) + (self.heads + 1) * math.lgamma(head + 1))


def _encoder(vocabulary: int, positions: int) -> Architecture:
    """A BERT-like model of 12 blocks with a pooler and two classes."""
    outside = (vocabulary + positions) * 768 + 2 * 768 + 768 * 769 + 2 * 769
    return Architecture(width=768, layers=12, heads=12, outside=outside)


def _decoder(width: int, layers: int, heads: int) -> Architecture:
    """A GPT-2."""
    outside = (50_257 + 1024) * width + 2 * width
    return Architecture(width=width, layers=layers, heads=heads, outside=outside, tied=50_257 * width)


MODELS = {
    "ViT": Architecture(
        width=768,
        layers=12,
        heads=12,
        outside=(16 * 16 * 3 + 1) * 768 + 768 + 197 * 768 + 2 * 768 + 100 * 769,
    ),
    "BERT": _encoder(30_522 + 2, 512),
    "RoBERTa": _encoder(50_265 + 1, 514),
    "GPT-2": _decoder(768, 12, 12),
    "GPT-2-large": _decoder(1280, 36, 20),
}
"""By the paper's names; ViT with 100 classes, BERT and RoBERTa with two."""

# Releases, trainings and audits


def release_epsilon(sigma: float, *, dimension: int, delta: float, zeta_2: str = "appendix") -> float:
    """Epsilon that Theorem 6 gives for one release, with half of delta (the other half is Theorem 1's).

    Args:
        sigma: Noise over the clip c, > 0; c' = c.
        dimension: d; 1 is the unshuffled Gaussian.
        delta: In (0, 1).
        zeta_2: `"appendix"` (Eq. 83) or `"main text"` (Eq. 26).
    """
    accountant = create("accountant", "shuffled_dp_sgd", dimension=dimension, zeta_2=zeta_2)
    release = Gaussian(noise_multiplier=sigma)
    return float(accountant.epsilon(release, delta=delta, adjacency=Adjacency.ADD_REMOVE))


def training_epsilon(name: str, sigma: float, *, rate: float, steps: int, delta: float) -> float:
    """Epsilon that a registered accountant gives for DP-SGD."""
    run = gaussian_run(noise_multiplier=sigma, sampling_probability=rate, steps=steps)
    return float(create("accountant", name).epsilon(run, delta=delta, adjacency=Adjacency.ADD_REMOVE))


def smallest_noise(dimension: int, delta: float, *, epsilon: float = 1.0) -> float:
    """Noise multiplier from which on Theorem 6 gives one release at most epsilon, to 0.001."""

    def enough(sigma: float) -> bool:
        return release_epsilon(sigma, dimension=dimension, delta=delta) <= epsilon

    return first_good(enough, [0.001 * k for k in range(100, 1000, 50)], 50)


def first_good(good: Callable[[float], bool], grid: list[float], parts: int) -> float:
    """Upper end of the last cell of a grid that is not good, cut into parts and searched again."""
    bad = max((k for k, value in enumerate(grid) if not good(value)), default=-1)
    if bad < 0 or bad + 1 == len(grid):
        return grid[min(bad + 1, len(grid) - 1)]
    low, high = grid[bad], grid[bad + 1]
    finer = [low + (high - low) * k / parts for k in range(parts + 1)]
    last = max(k for k, value in enumerate(finer) if k == 0 or not good(value))
    return finer[min(last + 1, parts)]


def eq_45(inside: FloatArray, outside: FloatArray, *, delta: float, floor: float) -> float:
    """Eq. 45's largest value over all thresholds at which neither error is below a floor.

    Args:
        delta: Of the claim, in [0, 1).
        floor: Errors below it are left out, > 0.

    Returns:
        At least 0. A point estimate: no confidence goes with it.
    """
    scores = np.concatenate([inside, outside])
    is_inside = np.concatenate([np.ones(inside.size), np.zeros(outside.size)])[np.argsort(-scores)]
    beta = (inside.size - np.cumsum(is_inside)) / inside.size
    alpha = np.cumsum(1.0 - is_inside) / outside.size
    kept = (alpha >= floor) & (beta >= floor)
    alpha, beta = alpha[kept], beta[kept]
    ratios = np.concatenate([(1.0 - alpha - delta) / beta, (1.0 - beta - delta) / alpha, [1.0]])
    return math.log(float(ratios.max()))


def null_audits(
    paper: PublishedPaper, *, repetitions: int = NULL_REPETITIONS, seed: int = 0
) -> tuple[float, float, float]:
    """Median, 5 % and 95 % quantile of Eq. 45 where canary and no canary have the same scores.

    Args:
        paper: For the number of observations (half with the canary), the floor and delta.
        repetitions: Audits.
        seed: Of the scores.
    """
    rng = np.random.default_rng(seed)
    half = round(said(paper, "section VI-F", "observations").value) // 2
    floor, delta = said(paper, "section VI-F", "alpha left out below").value, delta_of(paper)
    values = [eq_45(rng.random(half), rng.random(half), delta=delta, floor=floor) for _ in range(repetitions)]
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return float(middle), float(low), float(high)


# Distances


def two_layers_moved(*, each_its_own: bool, seed: int = 0) -> float:
    """Largest change of a random two-layer MLP's outputs when its hidden units are permuted.

    Args:
        each_its_own: The rows of the first layer and the columns of the second get indices of their own.
        seed: Of the network, the inputs and the indices.
    """
    rng = np.random.default_rng(seed)
    first, bias, second = rng.normal(size=(16, 8)), rng.normal(size=16), rng.normal(size=(4, 16))
    inputs = rng.normal(size=(32, 8))
    rows = rng.permutation(16)
    columns = rng.permutation(16) if each_its_own else rows
    before = np.tanh(inputs @ first.T + bias) @ second.T
    after = np.tanh(inputs @ first[rows].T + bias[rows]) @ second[:, columns].T
    return float(np.abs(after - before).max())


def plain_square(a: float, deviation: float) -> float:
    """Squared L2 distance of normals on the plane of a deviation, centred at (a, 0) and (-a, 0), a > 0."""
    return _square([(a, 0.0)], [(-a, 0.0)], deviation)


def shuffled_square(a: float, deviation: float) -> float:
    """The squared difference after a permutation: mixtures at (a, 0), (0, a) and at (-a, 0), (0, -a)."""
    return _square([(a, 0.0), (0.0, a)], [(-a, 0.0), (0.0, -a)], deviation)


def _square(ones: list[tuple[float, float]], others: list[tuple[float, float]], deviation: float) -> float:
    """Squared L2 distance of two even mixtures of round normals."""

    def product(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
        """Integral of the product of two mixtures."""
        squares = [(x - u) ** 2 + (y - v) ** 2 for x, y in first for u, v in second]
        mean = math.fsum(math.exp(-square / (4.0 * deviation**2)) for square in squares) / len(squares)
        return mean / (4.0 * math.pi * deviation**2)

    return product(ones, ones) + product(others, others) - 2.0 * product(ones, others)


# Checks of Table I


def _ratio(paper: PublishedPaper) -> Found:
    """Table I's shuffle ratios against what Theorems 3 and 4 move."""
    failed = []
    for name, model in MODELS.items():
        printed, share = cell(paper, "table-1", (name,), "shuffle ratio"), 100.0 * model.share
        if not exactly(share).meets(stands_for(printed)):
            failed.append({"model": name, "printed": printed.value, "share": share})
    return Found(len(MODELS), failed)


def _is_count(paper: PublishedPaper, name: str, model: Architecture) -> bool:
    return abs(parameters_of(paper, name).value * 1e6 - model.count) <= COUNT_TOLERANCE * model.count


def _count(paper: PublishedPaper) -> Found:
    """Table I's numbers of trainable parameters against the models' sizes."""
    failed = []
    for name, model in MODELS.items():
        if _is_count(paper, name, model):
            continue
        printed = parameters_of(paper, name)
        twice = bool(model.tied) and exactly((model.count + model.tied) / 1e6).meets(stands_for(printed))
        others = {
            other: architecture
            for other, architecture in MODELS.items()
            if architecture.tied and other != name
        }
        once = [other for other, architecture in others.items() if _is_count(paper, other, architecture)]
        failed.append({"printed": printed, "model": model, "twice": twice, "once": once})
    return Found(len(MODELS), failed)


def _permutations(paper: PublishedPaper) -> Found:
    """Section I's size of GPT-2's permutation space."""
    stated = said(paper, "section I", "GPT-2's permutations are the factorial of").value
    allowed, logarithm = MODELS["GPT-2"].log_permutations, math.lgamma(stated + 1.0)
    facts = {"power": math.log10(stated), "logarithm": logarithm, "allowed": allowed}
    return Found(1, [facts] if logarithm > 1.01 * allowed else [])


def _worst_case(paper: PublishedPaper) -> Found:
    """Theorem 6's least number of arrangements against the places that Theorems 3 and 4 leave."""
    if words(paper, "section IV-C", "number of permutations in the worst case") != "k = d":
        return Found(len(MODELS))
    failed = []
    for name, model in MODELS.items():
        printed = parameters_of(paper, name)
        if max(model.places) < printed.value * 1e6:
            failed.append({"printed": printed, "hidden": f"{model.places[0]:,}", "head": model.places[1]})
    return Found(len(MODELS), failed)


# Checks of formulas, titles and captions

_PRODUCTS = ("zeta_1", "zeta_2", "sigma_Z1, above", "sigma_Z1, below", "sigma_Z2, above", "sigma_Z2, below")


def _theorem_6(paper: PublishedPaper) -> Found:
    """Theorem 6 in the main text (Eq. 26) against its derivation (Eq. 83)."""
    failed: list[dict[str, Any]] = []
    for name in _PRODUCTS:
        main, appendix = (words(paper, place, f"product in {name}") for place in ("Eq. 26", "Eq. 83"))
        if main != appendix:
            failed.append({"name": name, "main": main, "appendix": appendix, "readings": ()})
    if failed:
        d, delta = dimension_of(paper), delta_of(paper)
        readings = [
            release_epsilon(RELEASE_SIGMA, dimension=d, delta=delta, zeta_2=name)
            for name in ("main text", "appendix")
        ]
        failed[-1] |= {"readings": readings, "d": d / 1e6, "sigma": RELEASE_SIGMA, "delta": delta}
    return Found(len(_PRODUCTS), failed)


def _sigma(paper: PublishedPaper) -> Found:
    """Whether sigma is one quantity in Theorem 6 and in Algorithm 1."""
    theorem = words(paper, "Theorem 6", "variance of the noise")
    algorithm = words(paper, "Algorithm 1, line 13", "variance of the noise")
    clips = {
        name: said(paper, "section VI-A", f"clip of {name}").value for name in ("all NLP tasks", "CV tasks")
    }
    apart = [f"{c:g} of it with c = {c:g} ({name})" for name, c in clips.items() if c != 1.0]
    facts = {"theorem": theorem, "algorithm": algorithm, "apart": listed(apart)}
    return Found(1, [facts] if theorem != algorithm and apart else [])


def _normalisation(paper: PublishedPaper) -> Found:
    """The power of 2 pi sigma^2 in the densities of d-dimensional normals."""
    places = [cell for cell in paper.table("texts").cells if cell.row[1] == "power of 2 pi sigma^2"]
    failed = [{"place": cell.row[0], "power": cell.printed} for cell in places if cell.printed != "d / 2"]
    right = listed([cell.row[0] for cell in places if cell.printed == "d / 2"])
    return Found(len(places), failed, {"right": right})


def _titles(paper: PublishedPaper) -> Found:
    """Which proofs the text sends to an appendix that says it proves something else."""
    sent = [proof for proof in paper.table("texts").cells if proof.row[1].endswith("'s proof")]
    failed = []
    for proof in sent:
        statement = proof.row[1].removesuffix("'s proof")
        title = words(paper, proof.printed.replace("Appendix", "appendix"), "title")
        if not title.endswith(f" {statement}"):
            failed.append({"statement": statement, "appendix": proof.printed, "title": title})
    return Found(len(sent), failed)


def _code(paper: PublishedPaper) -> Found:
    """Whether Appendix E's code, run on the layers of an MLP one by one, does what Theorem 3 asks."""
    separate, shared = (two_layers_moved(each_its_own=value) for value in (True, False))
    drawn = words(paper, "appendix E", "where the indices of a matrix are drawn")
    return Found(
        1, [{"change": separate}] if drawn.endswith("one matrix") and separate > 1e-9 > shared else []
    )


def _of_entries(name: str, entries: np.ndarray) -> float:
    """First entry of a function of a vector."""
    if name == "relu":
        return float(np.maximum(entries, 0.0)[0])
    shares = np.exp(entries)
    return float((np.tanh(entries) if name == "tanh" else shares / shares.sum())[0])


def _element_wise(paper: PublishedPaper) -> Found:
    """Which functions that Theorem 3 calls element-wise are not: an entry of theirs depends on another."""
    names = words(paper, "Theorem 3", "element-wise functions").replace(" and ", ", ").split(", ")
    failed = []
    for name in names:
        first, second = (_of_entries(name.lower(), np.array([0.0, other])) for other in (0.0, 1.0))
        if first != second:
            failed.append({"name": name, "first": first, "second": second})
    return Found(len(names), failed)


def _deltas(paper: PublishedPaper) -> Found:
    """Deltas of Table I against section VI-A's rule."""
    rule, cells = (
        words(paper, "section VI-A", "delta of all NLP tasks"),
        paper.table("table-1-datasets").cells,
    )
    generation = [stated for stated in cells if stated.column == "delta" and "GPT-2" in stated.row[0]]
    failed: list[dict[str, Any]] = []
    swapped = []
    for stated in generation:
        records = cell(paper, "table-1-datasets", stated.row, "training records").value
        delta = exactly(0.5 / records)
        if not delta.meets(stands_for(stated)):
            failed.append(
                {
                    "dataset": stated.row[1],
                    "printed": stated.printed,
                    "records": records,
                    "delta": delta.lower,
                }
            )
        swapped.append(all(delta.meets(stands_for(other)) for other in generation if other is not stated))
    formulas = [stated for stated in cells if stated.column == "delta, formula"]
    failed += [
        {"dataset": stated.row[1], "printed": stated.printed, "records": None}
        for stated in formulas
        if stated.printed != rule
    ]
    failed = [{**facts, "swapped": facts is failed[-1] and all(swapped)} for facts in failed]
    return Found(len(generation) + len(formulas), failed, {"rule": rule})


def _figure_1(paper: PublishedPaper) -> Found:
    """The two distances of Fig. 1 against each other."""
    a = said(paper, "figure 1", "coordinate of the two points").value
    deviation = said(paper, "figure 1", "standard deviation").value
    before, after = (
        said(paper, "figure 1", f"distance {name}") for name in ("of the Gaussians", "after shuffling")
    )
    exact = math.sqrt(plain_square(a, deviation) / shuffled_square(a, deviation))
    low, high = stands_for(before), stands_for(after)
    facts = {"before": before.value, "after": after.value, "exact": exact}
    is_right = Interval(low.lower / high.upper, low.upper / high.lower).meets(exactly(exact))
    return Found(1, [] if is_right else [facts])


CHECKS = {
    "shuffle ratio": _ratio,
    "worst case": _worst_case,
    "parameters": _count,
    "permutation space": _permutations,
    "Theorem 6": _theorem_6,
    "units of sigma": _sigma,
    "normalisation": _normalisation,
    "titles of proofs": _titles,
    "code": _code,
    "element-wise": _element_wise,
    "deltas": _deltas,
    "figure 1": _figure_1,
}

# Remarks


def _audit(paper: PublishedPaper) -> Mapping[str, Any]:
    """Table VI's audited epsilons beside what the estimator reads without a leak."""
    columns = ("theoretical epsilon", "audited epsilon")
    pairs = [[cell(paper, "table-6", (row,), name).value for name in columns] for row in ("first", "second")]
    middle, low, high = null_audits(paper)
    known = {claimed for claimed, _ in pairs}
    return {
        "found": listed([f"{audited:g} where {claimed:g} is claimed" for claimed, audited in pairs]),
        "parts": listed([f"{100 * audited / claimed:.0f} %" for claimed, audited in pairs]),
        "quantiles": (low, middle, high),
        "repetitions": NULL_REPETITIONS,
        "left_out": listed([text for text in EPSILONS if float(text) not in known]),
    }


def _approximation(paper: PublishedPaper) -> Mapping[str, Any]:
    """The spread at which Fig. 2 tests the approximation, beside that at which Theorem 6 uses it."""
    tested = said(paper, "figure 2", "sigma of the normals").value
    delta, d = delta_of(paper), dimension_of(paper)
    shuffled, plain = (release_epsilon(1.0 / tested, dimension=size, delta=delta) for size in (d, 1))
    used = smallest_noise(d, delta)
    return {"tested": tested, "delta": delta, "used": used, "shuffled": shuffled, "plain": plain}


def _accountants(paper: PublishedPaper) -> Mapping[str, Any]:
    """What the two accountants that the paper names for DP-SGD say of one noise, at the audited training."""
    steps = round(said(paper, "section VI-F", "training steps").value)
    records = cell(paper, "table-1-datasets", VIT, "training records").value
    rate, delta = said(paper, "section VI-F", "batch size").value / records, delta_of(paper)

    def epsilon_by(name: str, sigma: float) -> float:
        return training_epsilon(name, sigma, rate=rate, steps=steps, delta=delta)

    sigma = first_good(
        lambda value: epsilon_by("shuffled_dp_sgd_unshuffled", value) <= 1.0,
        [float(k) for k in range(2, 80)],
        20,
    )
    certified = epsilon_by("certified", sigma)
    return {"steps": steps, "rate": rate, "delta": delta, "sigma": sigma, "certified": certified}


REMARKS = {"audit": _audit, "approximation": _approximation, "accountants": _accountants}

# Tables


def _models(context: Context) -> Table | None:
    """The five models: printed and counted."""
    paper, rows = context.paper, list[Row]()
    for name, model in MODELS.items() if paper is not None else ():
        printed = [
            context.printed("table-1", (name,), column)
            for column in ("trainable parameters", "shuffle ratio")
        ]
        values = (model.count / 1e6, 100.0 * model.share)
        cells = [
            Cell(paper=cell, ours=Value(estimate=value)) for cell, value in zip(printed, values, strict=True)
        ]
        cells += [Cell(ours=Value(estimate=float(place)), why_blank="not printed") for place in model.places]
        rows.append(((name,), tuple(cells)))
    return table(context, "paper-models", rows)


TABLES = {"models": _models}
