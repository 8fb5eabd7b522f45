"""Information inequalities: proofs with certificates, and exact values for finite laws.

A linear inequality between entropies that follows from Shannon's basic ones (every conditional mutual
information is at least 0) follows as a sum of them with non-negative weights. `certify` finds the weights and
adds the sum up again in exact rationals, so a certificate is a proof for *all* random variables that obey the
stated facts: finite ones directly, others because mutual information is the supremum over finite
quantisations. `None` says nothing: an inequality without a certificate may still be true.

`FiniteLaw` holds one joint law with rational probabilities; its entropies are balls in nats.

>>> two = information("A", "B") + information("A", "C", "B")
>>> certify(information("A", "BC") - two) is not None        # the chain rule, one way
True
>>> certify(entropy("A") - entropy("AB")) is None            # no proof that more variables have less entropy
True

Source: Yeung 1997 (Shannon-type inequalities are decided by linear programming).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Any

from workbench.core.errors import InputError

ABOUT_A_RECORD = (
    "the secret is one record, the other records are given (unless said otherwise); the adversary sees "
    "masks, directions and signs of every step; nats; exact proofs and ball arithmetic, no sampling error"
)
"""How FERRET counts leakage."""

ABOUT_A_SUBSET = (
    "the secret is which of M public candidate subsets was trained on, uniform beforehand; the adversary "
    "knows all candidates and sees every released bit; membership has prior 1/2; nats; proofs and ball "
    "arithmetic, no sampling error; no differential privacy"
)
"""How PACZero counts leakage."""

Atom = frozenset[str] | str
"""A joint entropy (the set of its variables, one letter each), or a named quantity."""


@dataclass(frozen=True)
class Form:
    """A linear combination of joint entropies and named quantities, all in nats."""

    coefficients: Mapping[Atom, Fraction] = field(default_factory=dict)

    def __add__(self, other: Form) -> Form:
        total = dict(self.coefficients)
        for atom, value in other.coefficients.items():
            total[atom] = total.get(atom, Fraction(0)) + value
        return Form({atom: value for atom, value in total.items() if value})

    def __mul__(self, factor: int | Fraction) -> Form:
        return Form({atom: value * factor for atom, value in self.coefficients.items() if value * factor})

    __rmul__ = __mul__

    def __neg__(self) -> Form:
        return self * -1

    def __sub__(self, other: Form) -> Form:
        return self + -other


def entropy(variables: str, given: str = "") -> Form:
    """H(variables | given), each variable one letter."""
    joint = Form({frozenset(variables + given): Fraction(1)})
    return joint - Form({frozenset(given): Fraction(1)}) if given else joint


def information(left: str, right: str, given: str = "") -> Form:
    """The conditional mutual information I(left; right | given) as a sum of entropies."""
    return entropy(left, given) - entropy(left, right + given)


def quantity(name: str) -> Form:
    """A named number, such as a bound."""
    return Form({name: Fraction(1)})


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Proof of an inequality as a sum of terms, each at least 0 (or, for an equation, equal to 0)."""

    terms: tuple[tuple[str, Fraction], ...]

    def describe(self) -> str:
        """The sum of inequalities in words: each one's weight and name."""
        return " + ".join(
            f"{weight} x [{name}]" if weight != 1 else f"[{name}]" for name, weight in self.terms
        )


def certify(
    claim: Form, *, facts: Mapping[str, Form] | None = None, equations: Mapping[str, Form] | None = None
) -> Certificate | None:
    """Prove that `claim` is at least 0 wherever the facts are at least 0 and the equations equal 0.

    Returns:
        A certificate whose sum was checked in exact rationals; None where Shannon's inequalities and the
        facts do not imply the claim.
    """
    import z3

    known = dict(facts or {})
    fixed = dict(equations or {})
    letters = sorted(
        {
            letter
            for form in (claim, *known.values(), *fixed.values())
            for atom in form.coefficients
            if isinstance(atom, frozenset)
            for letter in atom
        }
    )
    forms = {**dict(_basic(letters)), **known}
    # In a shared context, which certificate is found depends on what was solved before.
    context = z3.Context()
    solver = z3.Solver(ctx=context)
    solver.set("random_seed", 0)
    weights = {name: z3.Real(f"w{i}", context) for i, name in enumerate([*forms, *fixed])}
    solver.add(*(weights[name] >= 0 for name in forms))
    columns: dict[Atom, list[Any]] = {atom: [] for atom in claim.coefficients}
    for name, form in (*forms.items(), *fixed.items()):
        for atom, value in form.coefficients.items():
            columns.setdefault(atom, []).append(weights[name] * _rational(value, context))
    for atom, parts in columns.items():
        wanted = claim.coefficients.get(atom, Fraction(0))
        solver.add(z3.Sum(parts) == _rational(wanted, context))
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    terms = []
    for name, weight in weights.items():
        solution = model.eval(weight, model_completion=True)
        value = Fraction(solution.numerator_as_long(), solution.denominator_as_long())
        if value:
            terms.append((name, value))
    certificate = Certificate(terms=tuple(terms))
    _check(certificate, claim, forms, fixed)
    return certificate


def _rational(value: Fraction, context: Any) -> Any:
    """The value as a Z3 constant."""
    import z3

    return z3.RealVal(f"{value.numerator}/{value.denominator}", context)


def _basic(letters: list[str]) -> Iterator[tuple[str, Form]]:
    """The elemental inequalities: H(x | rest) >= 0 and I(x; y | any others) >= 0."""
    for letter in letters:
        rest = "".join(other for other in letters if other != letter)
        yield f"H({letter}|{rest}) >= 0", entropy(letter, rest)
    for first, second in combinations(letters, 2):
        others = [letter for letter in letters if letter not in (first, second)]
        for size in range(len(others) + 1):
            for chosen in combinations(others, size):
                given = "".join(chosen)
                bar = f"|{given}" if given else ""
                yield f"I({first};{second}{bar}) >= 0", information(first, second, given)


def _check(
    certificate: Certificate, claim: Form, forms: Mapping[str, Form], fixed: Mapping[str, Form]
) -> None:
    """Add the certificate up again, without the solver."""
    total = Form()
    for name, weight in certificate.terms:
        if name in forms and weight < 0:
            raise ArithmeticError(f"negative weight {weight} on {name}")
        total = total + weight * (forms[name] if name in forms else fixed[name])
    if (total - claim).coefficients:
        raise ArithmeticError("the certificate does not add up to the claim")


@dataclass(frozen=True)
class FiniteLaw:
    """A joint law of finitely many variables.

    Attributes:
        names: One letter a variable.
        law: Probability of each tuple of values, in the order of the names.

    Raises:
        InputError: probabilities are negative or do not sum to 1.
    """

    names: str
    law: Mapping[tuple[Any, ...], Fraction]

    def __post_init__(self) -> None:
        if any(value < 0 for value in self.law.values()) or sum(self.law.values()) != 1:
            raise InputError(f"law must be probabilities that sum to 1, got sum {sum(self.law.values())}")

    def probabilities(self, variables: str) -> dict[tuple[Any, ...], Fraction]:
        """The joint law of some of the variables."""
        places = [self.names.index(name) for name in variables]
        marginal: dict[tuple[Any, ...], Fraction] = {}
        for values, probability in self.law.items():
            key = tuple(values[place] for place in places)
            marginal[key] = marginal.get(key, Fraction(0)) + probability
        return marginal

    def entropy(self, variables: str, given: str = "") -> Any:
        """H(variables | given), a ball in nats."""
        from flint import arb

        if given:
            return self.entropy(variables + given) - self.entropy(given)
        total = arb(0)
        for probability in self.probabilities("".join(dict.fromkeys(variables))).values():
            if probability:
                ball = arb(probability.numerator) / probability.denominator
                total -= ball * ball.log()
        return total

    def information(self, left: str, right: str, given: str = "") -> Any:
        """I(left; right | given), a ball in nats."""
        return self.entropy(left, given) - self.entropy(left, right + given)

    def success(self, secret: str, seen: str) -> Fraction:
        """Largest probability with which anyone guesses the secret from what is seen."""
        best: dict[tuple[Any, ...], Fraction] = {}
        for values, probability in self.probabilities(seen + secret).items():
            key = values[: len(seen)]
            best[key] = max(best.get(key, Fraction(0)), probability)
        return sum(best.values(), Fraction(0))
