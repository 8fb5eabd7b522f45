"""The exact privacy of finite mechanisms: tables of rational probabilities, one row an input.

delta at a factor t = e^epsilon is the largest, over ordered pairs of neighbours, of the sum over outputs of
max(0, P(output) - t Q(output)): a rational for rational t, piecewise linear in t, so that the smallest t for
a delta is a rational too. k-fold composition multiplies distributions of the likelihood ratio P / Q: exact
counting, nothing is sampled or rounded.

>>> table = {"no": (Fraction(3, 4), Fraction(1, 4)), "yes": (Fraction(1, 4), Fraction(3, 4))}
>>> str(finite_mechanism_epsilon(table, [("no", "yes")]).exp_epsilon)
'3'
>>> str(finite_mechanism_epsilon(table, [("no", "yes")], count=10).exp_epsilon)
'59049'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from workbench.attacks.accountant_checks.proof.evaluation import ends, value_at
from workbench.attacks.accountant_checks.proof.statements import undecided
from workbench.attacks.accountant_checks.proof.terms import (
    Application,
    Constant,
    Term,
    TermLike,
    as_term,
    exp,
    variables_of,
)
from workbench.core.errors import InconclusiveError, InputError
from workbench.core.keys import JSON
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

Table = Mapping[str, Sequence[Fraction]]
"""Probabilities of each output, by the name of the input."""

Pairs = Iterable[tuple[str, str]]
"""Neighbouring inputs; each pair counts in both orders."""

_Masses = dict[Fraction | None, tuple[Fraction, Fraction]]
"""Mass under P and under Q of each likelihood ratio P / Q; the ratio is None where Q is 0."""

_MOST_RATIOS = 200_000
_PRECISIONS = (128, 512, 4096)


@dataclass(frozen=True, kw_only=True)
class FiniteEpsilon:
    """The exact epsilon of a finite mechanism at a delta.

    Attributes:
        exp_epsilon: e^epsilon, at least 1; None where epsilon is infinite.
        pair: Ordered pair of inputs that needs it.
    """

    exp_epsilon: Fraction | None
    delta: Fraction
    pair: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class FiniteDelta:
    """The exact delta of a finite mechanism at a factor e^epsilon.

    Attributes:
        delta: Largest over the ordered pairs.
        pair: Ordered pair of inputs that attains it.
        event: Indices of the outputs that tell the pair apart best; for a composition, None.
        least_ratio: The event as a test: all outcomes whose likelihood ratio is above the factor, the
            smallest of which is this; None where all of them have probability 0 under the second input.
    """

    delta: Fraction
    pair: tuple[str, str]
    event: tuple[int, ...] | None
    least_ratio: Fraction | None


def finite_mechanism_epsilon(
    table: Table, neighbours: Pairs, *, delta: Fraction | int = 0, count: int = 1
) -> FiniteEpsilon:
    """The smallest e^epsilon at which a finite mechanism, run `count` times, is (epsilon, delta)-DP; exact.

    Raises:
        InputError: a row holds no probabilities, a neighbour has no row, or delta or count is out of range.
    """
    delta = Fraction(delta)
    if not 0 <= delta < 1:
        raise InputError(f"delta must be in [0, 1), got {delta}")
    worst: FiniteEpsilon | None = None
    for pair, masses in _ordered(table, neighbours, count):
        factor = _factor(masses, delta)
        needed = FiniteEpsilon(exp_epsilon=factor, delta=delta, pair=pair)
        if factor is None:
            return needed
        if worst is None or worst.exp_epsilon is None or factor > worst.exp_epsilon:
            worst = needed
    if worst is None:
        raise InputError("neighbours must hold at least one pair, got none")
    return worst


def finite_mechanism_delta(
    table: Table, neighbours: Pairs, *, exp_epsilon: Fraction | int, count: int = 1
) -> FiniteDelta:
    """The smallest delta at a rational e^epsilon of a finite mechanism, run `count` times; exact.

    Raises:
        InputError: as for `finite_mechanism_epsilon`; the factor is below 1.
    """
    factor = Fraction(exp_epsilon)
    if factor < 1:
        raise InputError(f"exp_epsilon must be at least 1, got {factor}")
    worst: FiniteDelta | None = None
    for pair, masses in _ordered(table, neighbours, count):
        delta = _delta(masses, factor)
        if worst is None or delta > worst.delta:
            above = [ratio for ratio in masses if ratio is not None and ratio > factor]
            event = None
            if count == 1:
                rows = table[pair[0]], table[pair[1]]
                event = tuple(i for i, (p, q) in enumerate(zip(*rows, strict=True)) if p > factor * q)
            worst = FiniteDelta(delta=delta, pair=pair, event=event, least_ratio=min(above, default=None))
    if worst is None:
        raise InputError("neighbours must hold at least one pair, got none")
    return worst


def prove_finite_mechanism(
    name: str, table: Table, neighbours: Pairs, *, epsilon: TermLike, delta: TermLike = 0, count: int = 1
) -> Finding:
    """Decide whether a finite mechanism, run `count` times, is (epsilon, delta)-DP.

    e^epsilon is enclosed between rationals, and delta falls as it rises: below the claim at the lower end is
    a proof, above it at the upper end a refutation.

    Args:
        table, neighbours: The mechanism, and which inputs are neighbours.
        epsilon, delta: Exact numbers, or terms without variables (`sqrt(2 * log(number("1e5")))`).
        count: Number of runs on the same input.

    Returns:
        PROVEN; REFUTED, with the pair of inputs and the event; UNDECIDED where 4096 bits do not tell.

    Raises:
        InputError: the table or a number is unusable.
        InconclusiveError: epsilon or delta has no finite value.
    """
    epsilon, delta = as_term(epsilon), as_term(delta)
    if variables_of(epsilon, delta):
        raise InputError(f"epsilon and delta must hold no variables, got {epsilon} and {delta}")
    pairs = tuple(neighbours)
    for bits in _PRECISIONS:
        factors, deltas = _exponential(epsilon, bits), _closed(delta, bits)
        at_most = finite_mechanism_delta(table, pairs, exp_epsilon=max(factors[0], Fraction(1)), count=count)
        at_least = finite_mechanism_delta(table, pairs, exp_epsilon=max(factors[1], Fraction(1)), count=count)
        claim = f"epsilon = {_decimal(epsilon)}, delta = {_decimal(delta)}, {count} run(s)"
        if at_most.delta <= deltas[0]:
            return Finding(
                verdict=VerdictKind.PROVEN,
                summary=f"{name}: proven, the exact delta is {_float(at_most.delta)} ({claim})",
                evidence=(f"exact counting over all outcomes, e^epsilon enclosed to {bits} bits", claim),
            )
        if at_least.delta > deltas[1]:
            return _refuted(name, claim, at_least)
    why = f"the exact delta and the claimed one agree to {_PRECISIONS[-1]} bits"
    return undecided(name, why)


def randomised_response(exp_epsilon: Fraction | int, categories: int = 2) -> dict[str, tuple[Fraction, ...]]:
    """The table of k-ary randomised response with e^epsilon rational: the extreme (epsilon, 0)-DP mechanism.

    Raises:
        InputError: exp_epsilon is below 1, or there are fewer than two categories.
    """
    factor = Fraction(exp_epsilon)
    if factor < 1 or categories < 2:
        raise InputError(f"exp_epsilon must be >= 1 and categories >= 2, got {factor} and {categories}")
    whole = factor + categories - 1
    return {
        str(row): tuple((factor if row == column else Fraction(1)) / whole for column in range(categories))
        for row in range(categories)
    }


def _ordered(table: Table, neighbours: Pairs, count: int) -> Iterator[tuple[tuple[str, str], _Masses]]:
    """Each ordered pair of neighbours with the composed distribution of its likelihood ratio."""
    if count < 1:
        raise InputError(f"count must be >= 1, got {count}")
    for row in table.values():
        if any(not isinstance(value, Fraction | int) or value < 0 for value in row) or sum(row) != 1:
            raise InputError(f"table must hold exact probabilities that sum to 1, got {[*map(str, row)]}")
    for first, second in neighbours:
        for name in (first, second):
            if name not in table:
                raise InputError(f"neighbours must name rows of the table, got {name!r}")
        if len(table[first]) != len(table[second]):
            raise InputError(f"rows of the table must be equally long, got {first!r} and {second!r}")
        for pair in ((first, second), (second, first)):
            yield pair, _composed(_masses(table[pair[0]], table[pair[1]]), count)


def _masses(p: Sequence[Fraction], q: Sequence[Fraction]) -> _Masses:
    masses: _Masses = {}
    for a, b in zip(map(Fraction, p), map(Fraction, q), strict=True):
        if a or b:
            _add(masses, a / b if b else None, a, b)
    return masses


def _add(masses: _Masses, ratio: Fraction | None, p: Fraction, q: Fraction) -> None:
    known = masses.get(ratio, (Fraction(0), Fraction(0)))
    masses[ratio] = (known[0] + p, known[1] + q)


def _composed(masses: _Masses, count: int) -> _Masses:
    """The `count`-fold product, by repeated squaring."""
    result: _Masses = {Fraction(1): (Fraction(1), Fraction(1))}
    power = masses
    while count:
        if count & 1:
            result = _product(result, power)
        count >>= 1
        if count:
            power = _product(power, power)
    return result


def _product(left: _Masses, right: _Masses) -> _Masses:
    product: _Masses = {}
    for ratio_left, (p_left, q_left) in left.items():
        for ratio_right, (p_right, q_right) in right.items():
            p, q = p_left * p_right, q_left * q_right
            if p or q:
                infinite = ratio_left is None or ratio_right is None
                _add(product, None if infinite else (ratio_left or 0) * (ratio_right or Fraction(0)), p, q)
        if len(product) > _MOST_RATIOS:
            raise InputError(f"the composition has more than {_MOST_RATIOS} likelihood ratios")
    return product


def _delta(masses: _Masses, factor: Fraction) -> Fraction:
    return sum((max(Fraction(0), p - factor * q) for p, q in masses.values()), Fraction(0))


def _factor(masses: _Masses, delta: Fraction) -> Fraction | None:
    """The smallest t >= 1 with delta(t) <= delta: delta(t) is linear between likelihood ratios."""
    p_above, q_above = masses.get(None, (Fraction(0), Fraction(0)))
    if p_above > delta:
        return None
    ratios = sorted((ratio for ratio in masses if ratio is not None and ratio > 1), reverse=True)
    for here, below in pairwise([*ratios, Fraction(1)]):
        p_above, q_above = p_above + masses[here][0], q_above + masses[here][1]
        if p_above - below * q_above > delta:
            return (p_above - delta) / q_above
    return Fraction(1)


def _exponential(epsilon: Term, bits: int) -> tuple[Fraction, Fraction]:
    """Rationals around e^epsilon; the number itself where epsilon is the logarithm of one."""
    if isinstance(epsilon, Application) and epsilon.function == "log":
        inner = epsilon.argument
        if isinstance(inner, Constant) and inner.value > 0:
            return inner.value, inner.value
    return _closed(exp(epsilon), bits)


def _closed(term: Term, bits: int) -> tuple[Fraction, Fraction]:
    """Rationals around the value of a term without variables."""
    import flint

    with flint.ctx.workprec(bits):
        value = value_at(term, {})
        low, high = (None, None) if value is None else ends(value)
    if low is None or high is None:
        raise InconclusiveError(f"{term} has no finite value")
    return low, high


def _decimal(term: Term) -> str:
    return _float(_closed(term, 128)[0])


def _float(value: Fraction) -> str:
    return f"{float(value):.8g}"


def _refuted(name: str, claim: str, worst: FiniteDelta) -> Finding:
    event: JSON = (
        f"likelihood ratio at least {worst.least_ratio}"
        if worst.event is None
        else [int(index) for index in worst.event]
    )
    return Finding(
        verdict=VerdictKind.REFUTED,
        summary=f"{name}: the exact delta is at least {_float(worst.delta)} ({claim})",
        evidence=("exact counting over all outcomes, with e^epsilon rounded in the claim's favour", claim),
        counterexample={
            "inputs": list(worst.pair),
            "event": event,
            "delta_lower": _float(worst.delta),
            "claim": claim,
        },
    )
