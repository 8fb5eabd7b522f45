"""Claims proven or refuted: a claim is a quantified formula, and its proof is that its negation has no model.

A `Statement` says: for all values of its variables in their domains, the assumptions imply the conclusion.
`prove` hands the negation to Z3. No model: PROVEN. A model: it is evaluated again in exact rationals and ball
arithmetic, by code that shares nothing with the solver, and only what that confirms is a counterexample
(REFUTED). Anything else is UNDECIDED, with the limit that was reached. Transcendental functions reach the
solver as facts with outward-rounded rational coefficients (`_proof_enclosure`), never as a truncated series.
Where a term is undefined (a division by zero, the logarithm of a negative number), a statement says nothing.

>>> x = real("x", low=0)
>>> str(prove(Statement(name="exp is above its tangent", conclusion=exp(x) >= 1 + x)).verdict)
'PROVEN'
>>> finding = prove(Statement(name="exp is below it", conclusion=exp(x) <= 1 + x))
>>> str(finding.verdict), finding.counterexample["x"] != "0"
('REFUTED', True)

What is here, all of it importable from this module:

- `prove`, and `holds_under`: which unstated assumption rescues a refuted statement;
- `prove_by_balls`: branch and bound in ball arithmetic, where Z3 is the wrong tool;
- `prove_invariant`: budgets, clamps and schedules, by induction over the steps;
- `finite_mechanism_epsilon`, `finite_mechanism_delta`, `prove_finite_mechanism`, `randomised_response`: the
  exact privacy of tables of rationals, composed exactly;
- `dp_weights_algorithm_2_as_printed`, `compare_on`: DP-Weights' own Z3 check, beside a correct one.

Ready statements from the papers are in `_proof_library`.
"""

from __future__ import annotations

from workbench.attacks.accountant_checks.proof.balls import prove_by_balls
from workbench.attacks.accountant_checks.proof.dp_weights import compare_on, dp_weights_algorithm_2_as_printed
from workbench.attacks.accountant_checks.proof.enclosure import exp_between, log_between
from workbench.attacks.accountant_checks.proof.finite import (
    FiniteDelta,
    FiniteEpsilon,
    finite_mechanism_delta,
    finite_mechanism_epsilon,
    prove_finite_mechanism,
    randomised_response,
)
from workbench.attacks.accountant_checks.proof.invariants import TransitionSystem, prove_invariant
from workbench.attacks.accountant_checks.proof.statements import Statement, holds_under, prove
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
    "FiniteDelta",
    "FiniteEpsilon",
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
    "compare_on",
    "dp_weights_algorithm_2_as_printed",
    "exp",
    "exp_between",
    "finite_mechanism_delta",
    "finite_mechanism_epsilon",
    "holds_under",
    "integer",
    "log",
    "log_between",
    "log_gamma",
    "maximum",
    "minimum",
    "normal_cdf",
    "number",
    "prove",
    "prove_by_balls",
    "prove_finite_mechanism",
    "prove_invariant",
    "randomised_response",
    "real",
    "sqrt",
]
