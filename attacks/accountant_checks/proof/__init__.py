"""Proves or refutes quantified claims: a claim is proven when its negation has no model.

A `Statement` says: for all values of its variables in their domains, the assumptions imply the conclusion.
`prove` hands the negation to Z3. No model: PROVEN. A model: it is evaluated again in exact rationals and ball
arithmetic, by code that shares nothing with the solver, and only what that confirms is a counterexample
(REFUTED). Anything else is UNDECIDED, with the limit that was reached. Transcendental functions reach the
solver as facts with outward-rounded rational coefficients, never as a truncated series. Where a term is
undefined (a division by zero, the logarithm of a negative number), a statement says nothing.

>>> x = real("x", low=0)
>>> str(prove(Statement(name="exp is above its tangent", conclusion=exp(x) >= 1 + x)).verdict)
'PROVEN'
>>> finding = prove(Statement(name="exp is below it", conclusion=exp(x) <= 1 + x))
>>> str(finding.verdict), finding.counterexample["x"] != "0"
('REFUTED', True)

`holds_under` finds out whether an unstated assumption rescues a refuted statement; `prove_by_balls` is branch
and bound in ball arithmetic, where Z3 is the wrong tool; `prove_invariant` proves budgets, clamps and
schedules by induction over the steps.
"""

from __future__ import annotations

from workbench.attacks.accountant_checks.proof.statements import (
    Statement,
    TransitionSystem,
    holds_under,
    prove,
    prove_by_balls,
    prove_invariant,
)
from workbench.attacks.accountant_checks.proof.terms import (
    And,
    Formula,
    Implies,
    Or,
    Term,
    Variable,
    absolute,
    choose,
    clamp,
    exp,
    integer,
    log,
    log_gamma,
    maximum,
    minimum,
    normal_cdf,
    number,
    real,
    sqrt,
)

__all__ = [
    "And",
    "Formula",
    "Implies",
    "Or",
    "Statement",
    "Term",
    "TransitionSystem",
    "Variable",
    "absolute",
    "choose",
    "clamp",
    "exp",
    "holds_under",
    "integer",
    "log",
    "log_gamma",
    "maximum",
    "minimum",
    "normal_cdf",
    "number",
    "prove",
    "prove_by_balls",
    "prove_invariant",
    "real",
    "sqrt",
]
