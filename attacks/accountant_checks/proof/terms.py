"""The language that claims are written in: exact terms and formulas over real and integer variables.

One expression is read by several evaluators that share no code with one another: Z3 (`solver`), exact
rationals and ball arithmetic (`evaluation`), and derivatives for branch and bound (`balls`).
A counterexample that the solver finds is therefore evaluated again by something else. Numbers are exact:
integers, `Fraction`, or decimal strings through `number("0.009760")`; a float is refused, for it is not the
number that was typed.

>>> x = real("x", low=0)
>>> print(Implies(x > 1, log(x) <= x - 1))
(x > 1 implies log(x) <= x - 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from workbench.core.errors import InputError

FUNCTIONS = ("exp", "log", "sqrt", "normal_cdf", "log_gamma")
"""Functions of one argument that terms may hold; `log` is the natural logarithm."""


class Term:
    """A real-valued expression; the usual operators build larger ones, comparisons build formulas."""

    def __add__(self, other: TermLike) -> Term:
        return Operation(operator="+", left=self, right=as_term(other))

    def __radd__(self, other: TermLike) -> Term:
        return as_term(other) + self

    def __sub__(self, other: TermLike) -> Term:
        return Operation(operator="-", left=self, right=as_term(other))

    def __rsub__(self, other: TermLike) -> Term:
        return as_term(other) - self

    def __mul__(self, other: TermLike) -> Term:
        return Operation(operator="*", left=self, right=as_term(other))

    def __rmul__(self, other: TermLike) -> Term:
        return as_term(other) * self

    def __truediv__(self, other: TermLike) -> Term:
        return Operation(operator="/", left=self, right=as_term(other))

    def __rtruediv__(self, other: TermLike) -> Term:
        return as_term(other) / self

    def __neg__(self) -> Term:
        return as_term(0) - self

    def __pow__(self, exponent: int) -> Term:
        """Integer powers only; others are `exp(a * log(x))`."""
        if not isinstance(exponent, int) or isinstance(exponent, bool):
            raise InputError(f"exponent must be an integer (write exp(a * log(x))), got {exponent!r}")
        if exponent < 0:
            return 1 / self**-exponent
        return Power(base=self, exponent=exponent)

    def __le__(self, other: TermLike) -> Formula:
        return Comparison(operator="<=", left=self, right=as_term(other))

    def __lt__(self, other: TermLike) -> Formula:
        return Comparison(operator="<", left=self, right=as_term(other))

    def __ge__(self, other: TermLike) -> Formula:
        return Comparison(operator=">=", left=self, right=as_term(other))

    def __gt__(self, other: TermLike) -> Formula:
        return Comparison(operator=">", left=self, right=as_term(other))

    def equals(self, other: TermLike) -> Formula:
        """Equality as a formula; `==` compares the expressions themselves."""
        return Comparison(operator="=", left=self, right=as_term(other))


@dataclass(frozen=True, kw_only=True, repr=False)
class Constant(Term):
    """A term that is a fixed rational number, kept exactly."""

    value: Fraction

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, kw_only=True, repr=False)
class Variable(Term):
    """A quantified variable with its domain.

    Attributes:
        name: Unique in a statement.
        integer: Over the integers; else over the reals.
        low, high: Closed ends of its domain; None is unbounded.

    Raises:
        InputError: the domain is empty.
    """

    name: str
    integer: bool = False
    low: Fraction | None = None
    high: Fraction | None = None

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InputError(f"high of {self.name} must be at least {self.low}, got {self.high}")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True, repr=False)
class Operation(Term):
    """A sum, difference, product or quotient."""

    operator: str
    left: Term
    right: Term

    def __str__(self) -> str:
        right = _wrap(self.right, self.operator, right=True)
        return f"{_wrap(self.left, self.operator)} {self.operator} {right}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Power(Term):
    """A non-negative integer power."""

    base: Term
    exponent: int

    def __str__(self) -> str:
        return f"{_wrap(self.base, '^')}^{self.exponent}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Application(Term):
    """A function of `FUNCTIONS` applied to a term."""

    function: str
    argument: Term

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise InputError(f"function must be one of {', '.join(FUNCTIONS)}, got {self.function!r}")

    def __str__(self) -> str:
        return f"{self.function}({self.argument})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Choice(Term):
    """`then` where the condition holds, `otherwise` elsewhere."""

    condition: Formula
    then: Term
    otherwise: Term

    def __str__(self) -> str:
        return f"(if {self.condition} then {self.then} else {self.otherwise})"


class Formula:
    """A statement about terms that is true or false at each point; `&`, `|` and `~` combine formulas."""

    def __and__(self, other: Formula) -> Formula:
        return Connective(operator="and", parts=(self, other))

    def __or__(self, other: Formula) -> Formula:
        return Connective(operator="or", parts=(self, other))

    def __invert__(self) -> Formula:
        return Connective(operator="not", parts=(self,))

    def __bool__(self) -> bool:
        raise InputError("a formula has no truth value by itself: combine with &, | and ~, and prove it")


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Formula):
    """A formula that compares two terms."""

    operator: str
    left: Term
    right: Term

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Connective(Formula):
    """`and`, `or` or `not` of formulas; an empty `and` is true, an empty `or` false."""

    operator: str
    parts: tuple[Formula, ...]

    def __str__(self) -> str:
        if self.operator == "not":
            return f"not ({self.parts[0]})"
        if not self.parts:
            return "true" if self.operator == "and" else "false"
        if self.operator == "or" and len(self.parts) == 2 and _is_negation(self.parts[0]):
            negated = self.parts[0]
            assert isinstance(negated, Connective)
            return f"({negated.parts[0]} implies {self.parts[1]})"
        return "(" + f" {self.operator} ".join(map(str, self.parts)) + ")"


TermLike = Term | int | Fraction
Expression = Term | Formula


def number(value: int | str | Fraction) -> Term:
    """An exact constant; a string is read as a decimal or a fraction.

    Raises:
        InputError: it is a float, or reads as no number.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | Fraction):
        raise InputError(f"a number must be an int, a Fraction or a decimal string, got {value!r}")
    try:
        return Constant(value=Fraction(value))
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"a number must read as a decimal or fraction, got {value!r}") from error


def as_term(value: TermLike) -> Term:
    """A term out of a term or an exact number.

    Raises:
        InputError: it is neither (a float is not exact).
    """
    return value if isinstance(value, Term) else number(value)


def _end(value: int | str | Fraction | None) -> Fraction | None:
    return None if value is None else Fraction(value)


def real(
    name: str, *, low: int | str | Fraction | None = None, high: int | str | Fraction | None = None
) -> Variable:
    """A real variable over [low, high]; open ends are assumptions (`x > 0`)."""
    return Variable(name=name, low=_end(low), high=_end(high))


def integer(
    name: str, *, low: int | str | Fraction | None = None, high: int | str | Fraction | None = None
) -> Variable:
    """An integer variable over [low, high]."""
    return Variable(name=name, integer=True, low=_end(low), high=_end(high))


def exp(argument: TermLike) -> Term:
    """The exponential function of a term."""
    return Application(function="exp", argument=as_term(argument))


def log(argument: TermLike) -> Term:
    """The natural logarithm; undefined at 0 and below."""
    return Application(function="log", argument=as_term(argument))


def sqrt(argument: TermLike) -> Term:
    """The square root; undefined below 0."""
    return Application(function="sqrt", argument=as_term(argument))


def normal_cdf(argument: TermLike) -> Term:
    """The standard normal distribution function."""
    return Application(function="normal_cdf", argument=as_term(argument))


def log_gamma(argument: TermLike) -> Term:
    """The logarithm of the gamma function; used at positive arguments only."""
    return Application(function="log_gamma", argument=as_term(argument))


def choose(condition: Formula, then: TermLike, otherwise: TermLike) -> Term:
    """`then` where the condition holds, `otherwise` elsewhere."""
    return Choice(condition=condition, then=as_term(then), otherwise=as_term(otherwise))


def maximum(left: TermLike, right: TermLike) -> Term:
    """The larger of two terms."""
    return choose(as_term(left) >= as_term(right), left, right)


def minimum(left: TermLike, right: TermLike) -> Term:
    """The smaller of two terms."""
    return choose(as_term(left) <= as_term(right), left, right)


def clamp(term: TermLike, low: TermLike, high: TermLike) -> Term:
    """The term, no lower than `low` and no higher than `high`."""
    return minimum(maximum(term, low), high)


def absolute(term: TermLike) -> Term:
    """The absolute value of a term."""
    return maximum(term, -as_term(term))


def And(*parts: Formula) -> Formula:  # noqa: N802 - a connective, written as mathematicians and Z3 do
    """A formula that is true where all its parts are true."""
    return Connective(operator="and", parts=parts)


def Or(*parts: Formula) -> Formula:  # noqa: N802
    """A formula that is true where at least one part is true."""
    return Connective(operator="or", parts=parts)


def Implies(condition: Formula, consequence: Formula) -> Formula:  # noqa: N802
    """True where the condition fails or the consequence holds."""
    return ~condition | consequence


def children(expression: Expression) -> tuple[Expression, ...]:
    """The direct parts of an expression."""
    match expression:
        case Operation(left=left, right=right) | Comparison(left=left, right=right):
            return (left, right)
        case Power(base=base):
            return (base,)
        case Application(argument=argument):
            return (argument,)
        case Choice(condition=condition, then=then, otherwise=otherwise):
            return (condition, then, otherwise)
        case Connective(parts=parts):
            return parts
        case _:
            return ()


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and everything in it, parts before the whole, each distinct one once."""
    seen: set[int] = set()
    stack: list[tuple[Expression, bool]] = [(expression, False)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((part, False) for part in children(node))


def numbered(expression: Expression) -> dict[int, int]:
    """A number for the id of everything in an expression; parts that read alike share theirs.

    Hashing the parts themselves would walk a shared part once for every path to it.
    """
    numbers: dict[int, int] = {}
    known: dict[tuple[object, ...], int] = {}
    for node in walk(expression):
        match node:
            case Constant(value=value):
                label: object = value
            case Variable(name=name):
                label = name
            case Operation(operator=label) | Comparison(operator=label) | Connective(operator=label):
                pass
            case Power(exponent=label) | Application(function=label):
                pass
            case _:
                label = None
        key = (type(node).__name__, label, *(numbers[id(part)] for part in children(node)))
        numbers[id(node)] = known.setdefault(key, len(known))
    return numbers


def variables_of(*expressions: Expression) -> tuple[Variable, ...]:
    """The variables of expressions, sorted by name.

    Raises:
        InputError: one name stands for two domains.
    """
    variables: dict[str, Variable] = {}
    for expression in expressions:
        for node in walk(expression):
            if isinstance(node, Variable) and variables.setdefault(node.name, node) != node:
                raise InputError(f"variable {node.name!r} has two domains in one statement")
    return tuple(variables[name] for name in sorted(variables))


_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 4}


def _wrap(term: Term, operator: str, *, right: bool = False) -> str:
    """The text of a part, in parentheses where its operator binds less than the one around it."""
    if isinstance(term, Operation):
        inner = _STRENGTH[term.operator]
        if inner < _STRENGTH[operator] or (right and inner == _STRENGTH[operator]):
            return f"({term})"
    if isinstance(term, Constant) and (term.value < 0 or term.value.denominator != 1) and operator != "+":
        return f"({term})"
    return str(term)


def _is_negation(formula: Formula) -> bool:
    return isinstance(formula, Connective) and formula.operator == "not"
