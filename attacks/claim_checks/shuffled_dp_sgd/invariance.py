"""Shuffled DPSGD, sections I, IV-B and VI: which permutations leave a network as it is, and how many.

Networks of a few units in exact integers (or balls), every permutation that the theorems allow enumerated. A
permuted network must give the same outputs, and its gradients must be the permuted gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    ball,
    counterexample_if,
    setting,
    settle,
    show,
    tail,
)
from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.interfaces.findings import Finding

Matrix = list[list[Any]]

EXACT = "no privacy notion: a network before and after a permutation of its weights; exact integers or balls"


def _times(a: Matrix, b: Matrix) -> Matrix:
    return [
        [sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a
    ]


def _same(a: Matrix, b: Matrix) -> bool:
    """Whether two matrices are equal; balls, where they overlap."""
    return all(
        x.overlaps(y) if hasattr(x, "overlaps") else x == y
        for left, right in zip(a, b, strict=True)
        for x, y in zip(left, right, strict=True)
    )


def _relu(values: list[Any]) -> list[Any]:
    return [max(value, 0) for value in values]


def _softmax(values: list[Any]) -> list[Any]:
    grown = [ball(value).exp() for value in values]
    return [value / sum(grown, ball(0)) for value in grown]


def _gated(values: list[Any]) -> list[Any]:
    """Half of the units gate the other half, as in GLU layers; the gate is a ReLU."""
    half = len(values) // 2
    return [max(gate, 0) * value for gate, value in zip(values[:half], values[half:], strict=True)]


ACTIVATIONS: Mapping[str, Callable[[list[Any]], list[Any]]] = {
    "relu": _relu,
    "softmax": _softmax,
    "gated": _gated,
}
FIRST: Matrix = [[1, -2, 3], [2, 1, -1], [-3, 2, 5], [1, 4, -2]]
BIAS = [1, -1, 2, 0]
SECOND: Matrix = [[2, -1, 3, 1], [-2, 5, 1, -3]]
INPUTS = ([1, 2, -1], [3, -2, 2], [-1, 1, 1])


def _perceptron(first: Matrix, bias: list[Any], second: Matrix, activation: str, x: list[Any]) -> list[Any]:
    inner = [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(first, bias, strict=True)]
    hidden = ACTIVATIONS[activation](inner)
    return [sum(w * v for w, v in zip(row, hidden, strict=True)) for row in second]


def _relu_gradients(first: Matrix, bias: list[Any], second: Matrix, x: list[Any]) -> tuple[Matrix, Matrix]:
    """Gradients of half the squared output by the first layer (its bias last) and by the second."""
    inner = [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(first, bias, strict=True)]
    hidden, output = _relu(inner), _perceptron(first, bias, second, "relu", x)
    back = [
        sum(row[unit] * value for row, value in zip(second, output, strict=True)) * (inner[unit] > 0)
        for unit in range(len(inner))
    ]
    return [[g * v for v in (*x, 1)] for g in back], [[o * h for h in hidden] for o in output]


@register("claim_check", "shuffled_theorem_3")
@setting(EXACT)
def theorem_3(*, activations: Sequence[str] = ("relu", "softmax")) -> Finding:
    """Theorem 3: hidden units of a perceptron may be permuted, forwards and backwards, for any permutation.

    `activations`: of the hidden layer: `"relu"`, `"softmax"` (which the theorem calls element-wise; it is
    none, but moves with its arguments), or `"gated"`, where half of the units multiply the other half.
    """
    lines: list[str] = []
    wrong: Counterexample | None = None
    for name in activations:
        if name not in ACTIVATIONS:
            raise unknown_name("activation", name, ACTIVATIONS)
        broken = 0
        second = [row[:2] for row in SECOND] if name == "gated" else SECOND
        for order in permutations(range(len(FIRST))):
            first, bias = [FIRST[unit] for unit in order], [BIAS[unit] for unit in order]
            after = second if name == "gated" else [[row[unit] for unit in order] for row in second]
            changed = [
                x
                for x in INPUTS
                if not _same(
                    [_perceptron(FIRST, BIAS, second, name, x)], [_perceptron(first, bias, after, name, x)]
                )
            ]
            if name == "relu":
                changed += [x for x in INPUTS if not _gradients_move(order, x)]
            broken += bool(changed)
            if changed and wrong is None:
                wrong = Counterexample(
                    f"with {name} units the order {list(order)} of the first layer's rows changes the "
                    "output: a "
                    "unit and its gate have to move together, so that half as many indices are free",
                    {"activation": name, "order": list(order), "input": changed[0]},
                )
        lines.append(
            f"{name}: {math.factorial(len(FIRST))} orders of 4 hidden units, {broken} change something"
        )
    return settle(
        "h(P z) = P h(z) for a map of each entry for itself, and P^T P = 1: the sum over hidden units is "
        "taken "
        "in another order, forwards and in each product of the chain rule",
        *lines,
        "enumerated for a network of 3 inputs, 4 hidden units and 2 outputs, with a bias; three inputs",
        proof="Every permutation of the hidden units keeps outputs, and permutes the gradients",
        proven=wrong is None,
        counterexample=wrong,
    )


def _gradients_move(order: Sequence[int], x: list[Any]) -> bool:
    """Whether the permuted network's gradients are the permuted ones."""
    first, second = _relu_gradients(FIRST, BIAS, SECOND, x)
    moved = _relu_gradients(
        [FIRST[unit] for unit in order],
        [BIAS[unit] for unit in order],
        [[row[unit] for unit in order] for row in SECOND],
        x,
    )
    return _same(moved[0], [first[unit] for unit in order]) and _same(
        moved[1], [[row[unit] for unit in order] for row in second]
    )


TOKENS: Matrix = [[1, 2], [-1, 3], [2, 0]]
HEADS = 2
QUERIES: list[Matrix] = [[[1, 0, 2, -1], [1, 1, 0, 2]], [[0, 1, 1, 1], [2, -1, 1, 0]]]
KEYS: list[Matrix] = [[[2, 1, 0, 1], [-1, 0, 1, 1]], [[1, 1, -1, 0], [0, 2, 1, -1]]]
VALUES: list[Matrix] = [[[1, 2], [0, -1]], [[2, 1], [1, -3]]]
OUTPUT: Matrix = [[1, 0], [2, -1], [0, 3], [1, 1]]


def _turned(rows: Matrix) -> Matrix:
    """Rotary positions: pairs of entries of row m turned by m quarter turns, exactly."""
    result = []
    for position, row in enumerate(rows):
        new = list(row)
        for _ in range(position):
            for pair in range(0, len(new), 2):
                new[pair], new[pair + 1] = -new[pair + 1], new[pair]
        result.append(new)
    return result


def _attention(
    queries: list[Matrix], keys: list[Matrix], values: list[Matrix], output: Matrix, positions: str
) -> Matrix:
    heads = []
    for q, k, v in zip(queries, keys, values, strict=True):
        asked, given = _times(TOKENS, q), _times(TOKENS, k)
        if positions == "rotary":
            asked, given = _turned(asked), _turned(given)
        scores = _times(asked, [list(column) for column in zip(*given, strict=True)])
        heads.append(_times([_softmax(row) for row in scores], _times(TOKENS, v)))
    joined = [[value for head in heads for value in head[row]] for row in range(len(TOKENS))]
    return _times(joined, output)


@register("claim_check", "shuffled_theorem_4")
@setting(EXACT)
def theorem_4(*, positions: str = "none", values: str = "one order for all heads") -> Finding:
    """Theorem 4: queries and keys of a head may be permuted together, and values with the output's rows.

    `positions`: `"none"` as in Definition 4, or `"rotary"`, which turns pairs of a query's and key's entries.
    `values`: Eq. 15's P_3 repeats `"one order for all heads"`; `"unmoved output"` leaves P_3 out.
    """
    plain = _attention(QUERIES, KEYS, VALUES, OUTPUT, positions)
    tried = broken = 0
    wrong: Counterexample | None = None
    for first, second, third in product(
        permutations(range(4)), ((0, 1, 2, 3), (3, 1, 0, 2)), permutations(range(2))
    ):
        orders = (first, second)
        queries, keys = (
            [[[row[i] for i in order] for row in head] for head, order in zip(matrices, orders, strict=True)]
            for matrices in (QUERIES, KEYS)
        )
        moved = [[[row[i] for i in third] for row in head] for head in VALUES]
        rows = [2 * head + i for head in range(HEADS) for i in third]
        output = OUTPUT if values == "unmoved output" else [OUTPUT[row] for row in rows]
        tried += 1
        if not _same(plain, _attention(queries, keys, moved, output, positions)):
            broken += 1
            wrong = wrong or Counterexample(
                f"with positions {positions!r} and {values!r}, the orders {[list(o) for o in orders]} of "
                "the heads' "
                f"queries and keys and {list(third)} of the values change the output",
                {"query_orders": [list(order) for order in orders], "value_order": list(third)},
            )
    return settle(
        "Q P P^T K^T = Q K^T, and A V P P^T W = A V W, where P commutes with what stands between them",
        f"two heads of 4 query entries and 2 values, three tokens: {tried} choices of orders, {broken} "
        "change the "
        "output; integers before the softmax, balls after it",
        "rotary positions turn pairs of entries between Q and K^T, so that only orders that keep the pairs "
        "do: "
        "Llama and Mistral have them (values and outputs may still move)",
        proof="Every choice of orders keeps the block's output",
        proven=broken == 0,
        counterexample=wrong,
    )


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """Sizes of a published model, from its configuration; a block has biases and two normalisations.

    Attributes:
        others: Numbers outside the blocks: embeddings, positions, the last normalisation, an own head.
    """

    layers: int
    width: int
    hidden: int
    heads: int
    others: int

    @property
    def covered(self) -> int:
        """Numbers that Eqs. 13 and 14 move: queries, keys, values, output, both MLP layers, their biases."""
        matrices = 4 * self.width * self.width + 2 * self.width * self.hidden
        return self.layers * (matrices + 3 * self.width + self.hidden)

    @property
    def total(self) -> int:
        """All trainable numbers."""
        return (
            self.layers * (4 * self.width**2 + 2 * self.width * self.hidden + 9 * self.width + self.hidden)
            + self.others
        )

    @property
    def log_permutations(self) -> Any:
        """Logarithm of the number of choices that Theorems 3 and 4 leave, a ball."""
        from flint import arb

        def factorial(count: int) -> Any:
            return (arb(count) + 1).lgamma()

        size = self.width // self.heads
        return self.layers * (factorial(self.hidden) + (self.heads + 1) * factorial(size))


MODELS: Mapping[str, Transformer] = {
    "ViT-B/16": Transformer(
        layers=12, width=768, hidden=3072, heads=12, others=(3 * 256 + 1 + 1 + 197 + 2 + 100) * 768 + 100
    ),
    "BERT-base": Transformer(
        layers=12, width=768, hidden=3072, heads=12, others=(30_522 + 512 + 2 + 2) * 768 + 768 * 769
    ),
    "GPT-2": Transformer(layers=12, width=768, hidden=3072, heads=12, others=(50_257 + 1024 + 2) * 768),
    "GPT-2-large": Transformer(
        layers=36, width=1280, hidden=5120, heads=20, others=(50_257 + 1024 + 2) * 1280
    ),
    "GPT-2-xl": Transformer(layers=48, width=1600, hidden=6400, heads=25, others=(50_257 + 1024 + 2) * 1600),
}
"""Sizes in the models' published configurations; GPT-2's output layer is its embedding."""


@register("claim_check", "shuffled_share")
@setting(EXACT)
def shuffle_ratio(
    *, percent: str = "100", models: Sequence[str] = ("ViT-B/16", "BERT-base", "GPT-2", "GPT-2-large")
) -> Finding:
    """Table I: this share of the weights is shuffled, in every model.

    `percent`: of the trainable numbers, to half a unit. `models`: of Table I.
    """
    lines, wrong = [], None
    for name in models:
        model = MODELS[name]
        share = 100 * ball(model.covered) / model.total
        lines.append(f"{name}: {model.covered:,} of {model.total:,} numbers, {show(share, 4)} %")
        if not share >= ball(percent) - ball("0.5") and (wrong is None or share < wrong[0]):
            wrong = (
                share,
                f"of {name}'s {model.total:,} trainable numbers the permutations of Theorems 3 and 4 move "
                f"{show(share, 4)} %, not {percent} %: embeddings, positions and normalisations have none",
            )
    return settle(
        *lines,
        proof=f"At least {percent} % of each model's numbers are moved",
        proven=wrong is None,
        counterexample=wrong and Counterexample(wrong[1], {"percent": show(wrong[0], 4), "claimed": percent}),
    )


@register("claim_check", "shuffled_space")
@setting(EXACT)
def permutation_space(*, entries: int = 10**9, model: str = "GPT-2-xl", fraction: str = "1") -> Finding:
    """Section I: the permutations of a billion-level model such as GPT-2 are as many as 10^9!.

    `entries`: whose factorial is claimed. `model`: the largest GPT-2 has 1.56 billion numbers. `fraction`: of
    the logarithm of the factorial that is claimed.
    """
    from flint import arb

    found, claimed = MODELS[model].log_permutations, ball(fraction) * (arb(entries) + 1).lgamma()
    return settle(
        f"{model}: {MODELS[model].total:,} numbers; the orders of hidden units, of each head's queries and "
        "keys, "
        f"and of the values: exp({show(found)})",
        f"{entries:,}! = exp({show((arb(entries) + 1).lgamma())}); Theorem 3 moves whole rows, so that the "
        "number of units counts, not that of the weights",
        proof=f"There are at least so many permutations: exp({show(found)})",
        proven=found >= claimed,
        counterexample=counterexample_if(
            found < claimed,
            f"Theorems 3 and 4 leave {model} exp({show(found)}) permutations; {entries:,}! is "
            f"exp({show(claimed)})" + ("" if fraction == "1" else f" to the power {fraction}"),
            {"model": model, "log_permutations": show(found), "claimed_log": show(claimed)},
        ),
    )


@register("claim_check", "shuffled_equivalent_training")
@setting("no privacy notion: a perceptron's training, permuted after every step or not, in exact rationals")
def equivalent_training(*, momentum: str = "0", state: str = "left", steps: int = 4) -> Finding:
    """Section VI-B: with shuffling after every step a model is trained equivalently to one without.

    `momentum`: of the optimizer, as a fraction; Adam's moments are kept in the same way. `state`: of the
    optimizer, when the weights are permuted: `"left"` where it is, as Algorithm 1 permutes weights alone, or
    `"moved"` along. `steps`: of training.
    """
    from fractions import Fraction

    orders = [(1, 0, 3, 2), (2, 3, 0, 1), (3, 0, 1, 2), (1, 2, 3, 0)]
    kept, rate = Fraction(momentum), Fraction(1, 1000)

    def trained(shuffled: bool) -> list[Any]:
        first: Matrix = [[*row, bias] for row, bias in zip(FIRST, BIAS, strict=True)]
        second = SECOND
        moments: list[Matrix] = [[[0] * 4 for _ in range(4)], [[0] * 4 for _ in range(2)]]
        for step in range(steps):
            x = INPUTS[step % len(INPUTS)]
            slopes = _relu_gradients([row[:-1] for row in first], [row[-1] for row in first], second, x)
            moments = [
                [
                    [kept * m + g for m, g in zip(*rows, strict=True)]
                    for rows in zip(moment, slope, strict=True)
                ]
                for moment, slope in zip(moments, slopes, strict=True)
            ]
            first, second = (
                [
                    [w - rate * m for w, m in zip(*rows, strict=True)]
                    for rows in zip(weights, moment, strict=True)
                ]
                for weights, moment in zip((first, second), moments, strict=True)
            )
            if shuffled:
                order = orders[step % len(orders)]
                first, second = [first[i] for i in order], [[row[i] for i in order] for row in second]
                if state == "moved":
                    moments = [
                        [moments[0][i] for i in order],
                        [[row[i] for i in order] for row in moments[1]],
                    ]
        return [
            value
            for x in INPUTS
            for value in _perceptron(
                [row[:-1] for row in first], [row[-1] for row in first], second, "relu", x
            )
        ]

    plain, permuted = trained(False), trained(True)
    gap = max(abs(a - b) for a, b in zip(plain, permuted, strict=True))
    return settle(
        f"{steps} steps, momentum {momentum}, the optimizer's state {state}: outputs {float(gap):.3g} apart",
        "a step's gradient is permuted with the weights (Theorem 3); a moment that stays is another unit's",
        proof="Outputs after training are the same, exactly",
        proven=gap == 0,
        counterexample=counterexample_if(
            gap,
            f"with momentum {momentum} whose state is {state}, {steps} permuted steps end {float(gap):.3g} "
            "from the "
            "unpermuted ones",
            {"momentum": momentum, "state": state, "steps": steps, "gap": float(gap)},
        ),
    )


@register("claim_check", "shuffled_lognormal_fit")
@setting(
    "no privacy notion: the law of a sum of independent lognormals of one variance; balls, nothing is sampled"
)
def lognormal_fit(
    *, variances: Sequence[str] = ("13", "15", "18"), terms: int = 85_800_000, tolerance: str = "0.05"
) -> Finding:
    """Lemma 1: a sum of lognormals is approximately the printed lognormal, at the mechanism's own variances.

    `variances`: of the normals, 1 / sigma^2 of Theorem 6: 13 to 18 at the noise multipliers 0.28 to 0.24.
    `terms`: d. `tolerance`: the largest difference of the distribution functions that counts as
    approximate; ours.
    """
    lines, wrong = [], None
    for variance in variances:
        gap, sentence = largest_gap(ball(variance), terms)
        lines.append(f"variance {variance}: {sentence}")
        wrong = wrong or counterexample_if(
            gap > ball(tolerance),
            f"at variance {variance} and {terms:,} terms the distribution functions are at least "
            f"{show(gap, 3)} "
            f"apart: {sentence}",
            {"variance": variance, "terms": terms, "gap_at_least": show(gap, 4)},
        )
    return settle(
        "no term exceeds K but with probability d Pr[Y > ln K]; the sum of terms cut at K has an exact "
        "mean and "
        "variance, and Chebyshev's inequality (one-sided) bounds its tails",
        *lines,
        counterexample=wrong,
    )


def largest_gap(variance: Any, terms: int) -> tuple[Any, str]:
    """A lower bound on the distance of both distribution functions, and where it is reached."""
    deviation, count = variance.sqrt(), ball(terms)
    total = count * (variance / 2).exp()
    fitted = (1 + (variance.exp() - 1) / count).log()
    best = (ball(0), "no difference shown")
    for tenths in range(40, 75, 2):
        cut = ball(tenths) / 10
        missed = count * tail(cut)
        mean = total * (1 - tail(cut - deviation))
        square = count * (2 * variance).exp() * (1 - tail(cut - 2 * deviation))
        for percent in (50, 60, 70, 80, 90, 110, 120, 130, 150, 200):
            level = total * percent / 100
            apart = (level - mean) ** 2
            tail_most = square / (square + apart)  # Cantelli's inequality.
            normal = ((ball(percent) / 100).log() + fitted / 2) / fitted.sqrt()
            below = 1 - tail(normal)
            # The sum is at least the cut one, and equals it unless a term is cut.
            if level > mean:
                gap = (1 - tail_most - missed) - below
                side = "at least"
                chance = 1 - tail_most - missed
            else:
                gap = below - tail_most
                side = "at most"
                chance = tail_most
            if gap > best[0]:
                best = (
                    gap,
                    f"the sum is below {percent} % of its mean with probability {side} {show(chance, 3)}, "
                    "the fitted "
                    f"lognormal with {show(below, 3)}",
                )
    return best
