"""The paper's five models counted: parameters, what Theorems 3 and 4 move, and to how many places.

Sizes of ViT-B/16: Dosovitskiy et al. 2021, Table 1; of BERT-base: Devlin et al. 2019, section 3; of
RoBERTa-base: Liu et al. 2019; of GPT-2 and GPT-2-large: Radford et al. 2019, Table 2. Vocabularies,
positions, poolers and heads are those of the named checkpoints of Hugging Face's transformers (Wolf et al.
2020).

A block of width m with a hidden layer of 4 m has 12 m^2 weights and 13 m biases and normalisers: Theorem 4
speaks of 4 m^2 of them (queries, keys, values, output), Theorem 3 of 8 m^2 and of the 4 m hidden biases. With
them must go the 3 m biases of queries, keys and values.

>>> round(MODELS["GPT-2"].count / 1e6), round(100 * MODELS["GPT-2"].share)
(124, 68)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import cell, check, said, stands_for, words
from workbench.reports.shared.published_checks import Check, Interval
from workbench.studies.report import Cell, Table, Value


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A transformer encoder or decoder.

    Attributes:
        width: Of the model (m).
        layers: Blocks.
        heads: Of each block.
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
        """Moved of all."""
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


def _embeddings(vocabulary: int, positions: int, width: int) -> int:
    return (vocabulary + positions) * width


MODELS = {
    "ViT": Architecture(
        width=768,
        layers=12,
        heads=12,
        outside=(16 * 16 * 3 + 1) * 768 + 768 + 197 * 768 + 2 * 768 + 100 * 769,
    ),
    "BERT": Architecture(
        width=768,
        layers=12,
        heads=12,
        outside=_embeddings(30_522 + 2, 512, 768) + 2 * 768 + 768 * 769 + 2 * 769,
    ),
    "RoBERTa": Architecture(
        width=768,
        layers=12,
        heads=12,
        outside=_embeddings(50_265 + 1, 514, 768) + 2 * 768 + 768 * 769 + 2 * 769,
    ),
    "GPT-2": Architecture(
        width=768, layers=12, heads=12, outside=_embeddings(50_257, 1024, 768) + 2 * 768, tied=50_257 * 768
    ),
    "GPT-2-large": Architecture(
        width=1280,
        layers=36,
        heads=20,
        outside=_embeddings(50_257, 1024, 1280) + 2 * 1280,
        tied=50_257 * 1280,
    ),
}
"""By the paper's names; ViT with 100 classes, BERT and RoBERTa with two."""

COUNT_TOLERANCE = 0.01
"""Relative difference from which a printed number of parameters is another model's: heads are below it."""


def ratio_check(paper: PublishedPaper) -> Check:
    """Table I's shuffle ratios against what Theorems 3 and 4 move."""
    failed = []
    for name, model in MODELS.items():
        printed = cell(paper, "table-1", (name,), "shuffle ratio")
        share = 100.0 * model.share
        if not Interval(share, share).meets(stands_for(printed)):
            failed.append(f"{name} {printed.value:g} % printed, {share:.1f} % moved")
    start = (
        "Table I's shuffle ratio is said to be the share of the model's weights that is shuffled; counted by "
        "the models' sizes, Theorems 3 and 4 move less (not embeddings, normalisers, biases after a layer, "
        "poolers, classifiers): "
    )
    return check("shuffle ratio", len(MODELS), failed, start=start)


def count_check(paper: PublishedPaper) -> Check:
    """Table I's numbers of trainable parameters against the models' sizes."""
    failed = []
    for name, model in MODELS.items():
        printed = cell(paper, "table-1", (name,), "trainable parameters")
        middle = printed.value * 1e6
        if abs(middle - model.count) <= COUNT_TOLERANCE * model.count:
            continue
        text = f"{name} has {model.count / 1e6:.1f} million trainable parameters, {printed.value:g} printed"
        untied = (model.count + model.tied) / 1e6
        if model.tied and Interval(untied, untied).meets(stands_for(printed)):
            text += (
                f": that is the sum with the output layer, whose {model.tied / 1e6:.1f} million are the "
                "embedding's and counted twice"
            )
            once = [other for other, one in MODELS.items() if one.tied and other != name]
            text += "".join(f" (in {other} they are counted once)" for other in once if _once(paper, other))
        failed.append(text)
    return check("parameters", len(MODELS), failed, start="Table I's numbers of parameters: ")


def permutations_check(paper: PublishedPaper) -> Check:
    """Section I's size of GPT-2's permutation space."""
    stated = said(paper, "section I", "GPT-2's permutations are the factorial of").value
    model, printed = MODELS["GPT-2"], cell(paper, "table-1", ("GPT-2",), "trainable parameters")
    logarithm = math.lgamma(stated + 1.0)
    failed = []
    if logarithm > 1.01 * model.log_permutations:
        failed.append(
            f"Section I gives GPT-2, of the billion level, 10^{math.log10(stated):g}! permutations (natural "
            f"logarithm {logarithm:.2g}). Table I gives it {printed.value:g} million parameters, and "
            f"Theorems 3 and 4 allow a number whose logarithm is {model.log_permutations:.2g}, "
            f"{logarithm / model.log_permutations:,.0f} times smaller"
        )
    return check("permutation space", 1, failed)


def worst_case_check(paper: PublishedPaper) -> Check:
    """Theorem 6's least number of arrangements against the places that Theorems 3 and 4 leave."""
    failed = []
    if words(paper, "section IV-C", "number of permutations in the worst case") == "k = d":
        for name, model in MODELS.items():
            d = cell(paper, "table-1", (name,), "trainable parameters").value
            hidden, head = model.places
            if max(hidden, head) < d * 1e6:
                failed.append(f"{name} {hidden:,} (attention {head}) against d = {d:g} million")
    start = (
        "Theorem 6 takes a vector with one entry unlike the others, whose k = d arrangements it calls the "
        "fewest. Permutations of Theorems 3 and 4 move a single number of an MLP to at most as many places "
        "as there are hidden units (the bias of one; in a row of W_t it keeps its column), and of an "
        "attention layer to as many as a head is wide: "
    )
    return check("worst case", len(MODELS), failed, start=start)


def models_table(paper: PublishedPaper) -> Table:
    """The five models: printed and counted."""
    columns = ("parameters, millions", "moved, percent", "places, MLP", "places, attention")
    rows = []
    for name, model in MODELS.items():
        hidden, head = model.places
        cells = (
            Cell(
                paper=cell(paper, "table-1", (name,), "trainable parameters"),
                ours=Value(estimate=model.count / 1e6),
            ),
            Cell(
                paper=cell(paper, "table-1", (name,), "shuffle ratio"),
                ours=Value(estimate=100.0 * model.share),
            ),
            Cell(ours=Value(estimate=float(hidden)), why_blank="not printed"),
            Cell(ours=Value(estimate=float(head)), why_blank="not printed"),
        )
        rows.append(((name,), cells))
    return Table(
        id="paper-models",
        title="The paper's models: parameters, and what Theorems 3 and 4 move",
        row_headers=("model",),
        columns=columns,
        rows=tuple(rows),
        notes=(
            '"Ours" is counted from the models\' published sizes, nothing is measured; shared parameters '
            'count once. "Places" is to how many positions a permutation can move one number: Theorem 6 '
            "takes it to be all of them.",
        ),
        decimals=dict(zip(columns, (1, 1, 0, 0), strict=True)),
    )


def _once(paper: PublishedPaper, name: str) -> bool:
    """Whether a model's printed number counts shared parameters once."""
    model, printed = MODELS[name], cell(paper, "table-1", (name,), "trainable parameters")
    return abs(printed.value * 1e6 - model.count) <= COUNT_TOLERANCE * model.count
