"""Where Shuffled DPSGD's formulas, titles and captions say different things of one quantity."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import cell, check, said, stands_for, words
from workbench.reports.shared.published_checks import Check, Interval

FloatArray = npt.NDArray[np.float64]

RELEASE_SIGMA = 0.24
"""Noise multiplier of the release at which two readings of Theorem 6 are compared; near where it acts."""

_PRODUCTS = ("zeta_1", "zeta_2", "sigma_Z1, above", "sigma_Z1, below", "sigma_Z2, above", "sigma_Z2, below")


def titles_check(paper: PublishedPaper) -> Check:
    """Which proofs the text sends to an appendix that says it proves something else."""
    sent = [one for one in paper.table("texts").cells if one.row[1].endswith("'s proof")]
    failed = []
    for one in sent:
        statement = one.row[1].removesuffix("'s proof")
        title = words(paper, one.printed.replace("Appendix", "appendix"), "title")
        if not title.endswith(f" {statement}"):
            failed.append(f'{statement} to {one.printed}, "{title}"')
    start = (
        "Proofs that the text sends to an appendix with another title (Theorems 1 and 2 are the cited "
        "composition and subsampling): "
    )
    return check("titles of proofs", len(sent), failed, start=start)


def theorem_6_check(paper: PublishedPaper) -> Check:
    """Theorem 6 in the main text (Eq. 26) against its derivation (Eq. 83)."""
    failed = []
    for name in _PRODUCTS:
        main, appendix = (words(paper, place, f"product in {name}") for place in ("Eq. 26", "Eq. 83"))
        if main != appendix:
            failed.append(f"the exponent of {name} has {main} in Eq. 26 and {appendix} in Eq. 83")
    if failed:
        d = round(1e6 * cell(paper, "table-1", ("ViT",), "trainable parameters").value)
        delta = said(paper, "section VI-A", "delta of CV tasks").value
        first, second = (
            release_epsilon(RELEASE_SIGMA, dimension=d, delta=delta, zeta_2=name)
            for name in ("main text", "appendix")
        )
        failed[-1] += (
            f" (one release in ViT's d = {d / 1e6:g} million at sigma = {RELEASE_SIGMA:g} c, c' = c, delta "
            f"{delta:g}, has epsilon {first:.3g} by the one and {second:.3g} by the other)"
        )
    return check(
        "Theorem 6",
        len(_PRODUCTS),
        failed,
        right="Theorem 6 has the same six exponents in Eqs. 26 and 83",
        start="Theorem 6 differs between the main text and its proof: ",
    )


def normalisation_check(paper: PublishedPaper) -> Check:
    """The power of 2 pi sigma^2 in the densities of d-dimensional normals."""
    places = [one for one in paper.table("texts").cells if one.row[1] == "power of 2 pi sigma^2"]
    failed = [f"{one.row[0]} has {one.printed}" for one in places if one.printed != "d / 2"]
    right = _and([one.row[0] for one in places if one.printed == "d / 2"])
    start = (
        f"A normal density on R^d is divided by (2 pi sigma^2)^(d / 2), as in {right}; with the number of "
        "permutations for d it does not integrate to 1: "
    )
    return check("normalisation", len(places), failed, start=start)


def sigma_check(paper: PublishedPaper) -> Check:
    """Whether sigma is one quantity in Theorem 6 and in Algorithm 1."""
    theorem = words(paper, "Theorem 6", "variance of the noise")
    algorithm = words(paper, "Algorithm 1, line 13", "variance of the noise")
    source = words(paper, "section V-B", "where sigma comes from")
    clips = {
        name: said(paper, "section VI-A", f"clip of {name}").value for name in ("all NLP tasks", "CV tasks")
    }
    failed = []
    if theorem != algorithm:
        apart = [f"{c:g} of it with c = {c:g} ({name})" for name, c in clips.items() if c != 1.0]
        if apart:
            failed.append(
                f"sigma is two things: Theorem 6 has noise of variance {theorem} for queries c apart, "
                f"section V-B takes sigma from it ({source}), and Algorithm 1 adds noise of variance "
                f"{algorithm}. The standard deviation that Theorem 6 asks for is thus, by the letter, added "
                f"only with c = 1, and {_and(apart)}; section VI-D drops c and c' "
                f"({words(paper, 'section VI-D', 'the term with d')}), so a sigma in units of c, with c' = "
                "c, may be meant"
            )
    return check("units of sigma", 1, failed)


def delta_check(paper: PublishedPaper) -> Check:
    """Deltas of Table I against section VI-A's rule."""
    rule = words(paper, "section VI-A", "delta of all NLP tasks")
    table = paper.table("table-1-datasets")
    failed, checked, swapped = [], 0, []
    generation = [one for one in table.cells if one.column == "delta" and "GPT-2" in one.row[0]]
    for one in generation:
        checked += 1
        records = cell(paper, table.id, one.row, "training records").value
        delta = 0.5 / records
        if not Interval(delta, delta).meets(stands_for(one)):
            failed.append(
                f"{one.row[1]} {one.printed} printed, 1/(2 x {records:g}) = {delta:.3g} by the rule"
            )
        others = [other for other in generation if other is not one]
        swapped.append(all(Interval(delta, delta).meets(stands_for(other)) for other in others))
    for one in [one for one in table.cells if one.column == "delta, formula"]:
        checked += 1
        if one.printed != rule:
            failed.append(f"{one.row[1]} {one.printed}, by the rule {rule}")
    if failed and all(swapped):
        failed[-1] += " (the two printed numbers fit the rule if they are exchanged)"
    start = f"Section VI-A fixes delta to {rule} for all NLP tasks; Table I differs: "
    return check("deltas", checked, failed, start=start)


def element_wise_check(paper: PublishedPaper) -> Check:
    """Which functions that Theorem 3 calls element-wise are not: an entry of theirs depends on another."""
    listed = words(paper, "Theorem 3", "element-wise functions").replace(" and ", ", ").split(", ")
    before, after = np.array([0.0, 0.0]), np.array([0.0, 1.0])
    failed = []
    for name in listed:
        first, second = (float(_FUNCTIONS[name.lower()](entries)[0]) for entries in (before, after))
        if first != second:
            failed.append(
                f"{name} of an entry 0 is {first:.3g} beside 0 and {second:.3g} beside 1 (it permutes with "
                "its input all the same, which the proof needs)"
            )
    return check("element-wise", len(listed), failed, start="Theorem 3 lists as element-wise what is not: ")


def code_check(paper: PublishedPaper) -> Check:
    """Whether Appendix E's code, run on the layers of an MLP one by one, does what Theorem 3 asks."""
    failed = []
    if words(paper, "appendix E", "where the indices of a matrix are drawn").endswith("one matrix"):
        own, shared = (two_layers_moved(each_its_own=value) for value in (True, False))
        if own > 1e-9 > shared:
            failed.append(
                "Appendix E draws new indices in every call, a call a matrix. Theorem 3 needs the same in "
                f"W_t, b_t and W_(t+1): a random MLP's outputs change by up to {own:.2g} if each matrix has "
                "its own, and by rounding alone if they share them"
            )
    return check("code", 1, failed)


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


def figure_1_check(paper: PublishedPaper) -> Check:
    """The two distances of Fig. 1 against each other."""
    a = said(paper, "figure 1", "coordinate of the two points").value
    deviation = said(paper, "figure 1", "standard deviation").value
    before, after = (
        stands_for(said(paper, "figure 1", name))
        for name in ("distance of the Gaussians", "distance after shuffling")
    )
    exact = math.sqrt(plain_square(a, deviation) / shuffled_square(a, deviation))
    failed = []
    if not Interval(before.lower / after.upper, before.upper / after.lower).meets(Interval(exact, exact)):
        printed = [said(paper, "figure 1", f"distance {name}").value for name in _DISTANCES]
        failed.append(
            f"Fig. 1's distances {printed[0]:g} and {printed[1]:g} have the ratio "
            f"{printed[0] / printed[1]:.3f}. On any fine grid the Frobenius norm is the L2 distance of the "
            f"densities over the grid's step, and shuffling divides the L2 distance by {exact:.3f} (the "
            "square root of 2, at every standard deviation): "
            f"beside {printed[0]:g} it is {printed[0] / exact:.2f}. Histograms of samples, whose noise adds "
            "to both, could print such numbers"
        )
    return check("figure 1", 1, failed)


def plain_square(a: float, deviation: float) -> float:
    """Squared L2 distance of normals on the plane, centred at (a, 0) and (-a, 0).

    Args:
        a: > 0.
        deviation: Of each coordinate, > 0.
    """
    return _square([(a, 0.0)], [(-a, 0.0)], deviation)


def shuffled_square(a: float, deviation: float) -> float:
    """The same after the coordinates are permuted: mixtures at (a, 0), (0, a) and at (-a, 0), (0, -a)."""
    return _square([(a, 0.0), (0.0, a)], [(-a, 0.0), (0.0, -a)], deviation)


def release_epsilon(sigma: float, *, dimension: int, delta: float, zeta_2: str = "appendix") -> float:
    """Epsilon that Theorem 6 gives for one release, with half of delta (the other half is Theorem 1's).

    Args:
        sigma: Noise over the clip c, > 0; c' = c.
        dimension: d; 1 is the unshuffled Gaussian.
        delta: In (0, 1).
        zeta_2: `"appendix"` (Eq. 83) or `"main text"` (Eq. 26).
    """
    from workbench.accounting.events import Gaussian
    from workbench.core.registry import create
    from workbench.interfaces import Adjacency

    accountant = create("accountant", "shuffled_dp_sgd", dimension=dimension, zeta_2=zeta_2)
    run = Gaussian(noise_multiplier=sigma)
    return float(accountant.epsilon(run, delta=delta, adjacency=Adjacency.ADD_REMOVE))


def weights_remark(paper: PublishedPaper) -> str:
    """What the printed distance of ViT's weights is a weight."""
    distance = said(paper, "section VI-B", "distance between the weights of ViT").value
    d = 1e6 * cell(paper, "table-1", ("ViT",), "trainable parameters").value
    return (
        f"The distance {distance:g} between ViT's weights with and without shuffling is "
        f"{distance / math.sqrt(d):.3f} a weight (root of the mean square over {d / 1e6:g} million). It says "
        "that weights were moved, not that nobody can move them back"
    )


def _softmax(entries: FloatArray) -> FloatArray:
    shares = np.exp(entries)
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def _relu(entries: FloatArray) -> FloatArray:
    return np.maximum(entries, 0.0)


_FUNCTIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "relu": _relu,
    "tanh": np.tanh,
    "softmax": _softmax,
}

_DISTANCES = ("of the Gaussians", "after shuffling")


def _square(ones: list[tuple[float, float]], others: list[tuple[float, float]], deviation: float) -> float:
    """Squared L2 distance of two even mixtures of round normals."""

    def product(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
        """Integral of the product of two mixtures."""
        squares = [(x - u) ** 2 + (y - v) ** 2 for x, y in first for u, v in second]
        mean = math.fsum(math.exp(-square / (4.0 * deviation**2)) for square in squares) / len(squares)
        return mean / (4.0 * math.pi * deviation**2)

    return product(ones, ones) + product(others, others) - 2.0 * product(ones, others)


def _and(names: list[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))
