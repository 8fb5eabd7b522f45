"""Proofs: true statements proven, false ones refuted at a confirmed point, the rest undecided."""

from __future__ import annotations

import doctest
import math
import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from compared_noise_scales import compare_on
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import finite_mechanisms
from oracles.finite_mechanisms import (
    finite_mechanism_delta,
    finite_mechanism_epsilon,
    prove_finite_mechanism,
)
from scipy.special import gammaln, ndtr

from workbench.attacks.accountant_checks import proof
from workbench.attacks.accountant_checks.proof import (
    And,
    Formula,
    Implies,
    Statement,
    TransitionSystem,
    exp,
    holds_under,
    integer,
    log,
    log_gamma,
    normal_cdf,
    number,
    prove,
    prove_by_balls,
    prove_invariant,
    real,
    sqrt,
    terms,
)
from workbench.attacks.accountant_checks.proof.evaluation import (
    Fact,
    curved_facts,
    decimals,
    facts,
    truth_at,
    value_bounds,
)
from workbench.attacks.claim_checks.dp_weights.composition import dp_weights_algorithm_2_as_printed
from workbench.core.errors import InputError
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Assumption, assume

X, Y = real("x"), real("y")
Z = real("z", low=0)
N = integer("n", low=1)

TRUE: dict[str, tuple[Formula, tuple[Formula, ...]]] = {
    "square": (X * X + Y * Y >= 2 * X * Y, ()),
    "integers": (N * N >= N, ()),
    "exp above its tangent": (exp(X) >= 1 + X, ()),
    "exp below a parabola that it touches": (exp(X) <= 1 + X + X * X, (X >= 0, X <= 1)),
    "log below its tangent": (log(1 + Z) <= Z, ()),
    "log strictly below it": (log(1 + Z) < Z, (Z > 0,)),
    "square root": (X * X <= 2, (sqrt(number(2)) >= X, X >= 0)),
    "normal concave": (normal_cdf(X) >= Fraction(1, 2) + X / 10, (X >= 0, X <= 3)),
    "log-gamma": (log_gamma(X) >= -Fraction(1, 8), (X >= 1, X <= 3)),
    "quotient": (1 / X > 0, (X > 0,)),
    "guarded logarithm": (Implies(X > 1, log(X) > 0), ()),
    "no variables": (exp(1) > Fraction("2.718281828"), ()),
}
FALSE: dict[str, tuple[Formula, tuple[Formula, ...]]] = {
    "square": (X * X > 2 * X, ()),
    "integers": (N * N > N, ()),
    "exp above a steeper line": (exp(X) >= 1 + 2 * X, ()),
    "exp below that parabola, further out": (exp(X) <= 1 + X + X * X, (X >= 0, X <= 2)),
    "log at its tangent": (log(1 + Z) < Z, ()),
    "square root": (sqrt(X + Y) >= sqrt(X) + sqrt(Y), (X >= 0, Y >= 0)),
    "normal": (normal_cdf(X) <= Fraction(9, 10), (X <= 3,)),
    "log-gamma": (log_gamma(X) >= -Fraction(1, 10), (X >= 1, X <= 3)),
    "quotient": (1 / X > 0, ()),
    "no variables": (exp(1) > Fraction("2.718281829"), ()),
}


def _statement(case: tuple[Formula, tuple[Formula, ...]], **more: Any) -> Statement:
    return Statement(name="claim", conclusion=case[0], assumptions=case[1], **more)


@pytest.mark.parametrize("case", TRUE.values(), ids=TRUE)
def test_true_statements_are_proven(case: tuple[Formula, tuple[Formula, ...]]) -> None:
    assert prove(_statement(case)).verdict is VerdictKind.PROVEN


@pytest.mark.parametrize("case", FALSE.values(), ids=FALSE)
def test_false_statements_are_refuted_at_a_point_that_fails(
    case: tuple[Formula, tuple[Formula, ...]],
) -> None:
    finding = prove(_statement(case))
    assert finding.verdict is VerdictKind.REFUTED
    point = {name: Fraction(str(value)) for name, value in finding.counterexample.items() if name != "found"}
    assert truth_at(case[0], point) is False
    assert all(truth_at(assumption, point) for assumption in case[1])


def test_a_limit_gives_undecided_and_is_named() -> None:
    powers = [integer(name, low=1) ** 3 for name in "abc"]
    finding = prove(
        Statement(name="no cubes", conclusion=~(powers[0] + powers[1]).equals(powers[2])), limit_seconds=1
    )
    assert finding.verdict is VerdictKind.UNDECIDED
    assert "within 1 s" in finding.summary


def test_the_same_verdict_and_point_come_again() -> None:
    for name in ("square", "square root", "exp below that parabola, further out"):
        case = FALSE[name]
        assert prove(_statement(case)).to_json() == prove(_statement(case)).to_json()


def test_an_irrational_counterexample_is_not_claimed() -> None:
    # Only x = sqrt(2) breaks it, and no rational point near it does.
    finding = prove(_statement((X * X < 2, (sqrt(number(2)) >= X, X >= 0))))
    assert finding.verdict is VerdictKind.UNDECIDED
    assert "not confirmed" in finding.summary


@pytest.mark.parametrize("opinion", [True, None])
def test_a_model_that_the_second_opinion_denies_is_not_believed(opinion: bool | None) -> None:
    asked: list[Mapping[str, Fraction]] = []

    def evaluate(point: Mapping[str, Fraction]) -> bool | None:
        asked.append(point)
        return opinion

    for name in ("square", "integers", "exp below that parabola, further out", "no variables"):
        finding = prove(_statement(FALSE[name], evaluate=evaluate), limit_seconds=1)
        assert finding.verdict is VerdictKind.UNDECIDED
    assert asked


def test_a_wrong_model_from_the_solver_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.attacks.accountant_checks.proof import solver

    def lie(self: Any, model: Any) -> list[dict[str, Fraction]]:
        return [{"x": Fraction(5)}]

    monkeypatch.setattr(solver.Translation, "points", lie)
    assert prove(_statement((X * X > 2 * X, ()))).verdict is VerdictKind.UNDECIDED


def test_contradicting_assumptions_prove_nothing() -> None:
    finding = prove(_statement((X > 1, (X > 2, X < 0))))
    assert finding.verdict is VerdictKind.UNDECIDED
    assert "contradict" in finding.summary


def open_to(text: str) -> Assumption:
    return assume(text, bool, left_open={text: (False, True)})


def test_holds_under_needs_the_assumption() -> None:
    bare = Statement(name="a square exceeds its root", conclusion=Z * Z >= Z)
    found = holds_under(bare, assumption=open_to("z >= 1"), formula=Z >= 1)
    assert found.verdict is VerdictKind.HOLDS_UNDER
    assert 0 < Fraction(str(found.counterexample["z"])) < 1
    assert holds_under(bare, assumption=open_to("z < 1"), formula=Z < 1).verdict is VerdictKind.REFUTED
    always = Statement(name="squares", conclusion=X * X >= 0)
    assert holds_under(always, assumption=open_to("x > 0"), formula=X > 0).verdict is VerdictKind.PROVEN


def test_inexact_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"exact|int, a Fraction"):
        X + 0.1  # type: ignore[operator]
    with pytest.raises(InputError, match="two domains"):
        Statement(name="two", conclusion=real("x", low=0) <= X)
    with pytest.raises(InputError, match="limit_seconds"):
        prove(Statement(name="x", conclusion=X > 0), limit_seconds=0)
    with pytest.raises(InputError, match="no truth value"):
        bool(X > 0)


def _obeys(fact: Fact, u: float, y: float) -> bool:
    if (fact.low is not None and u < fact.low) or (fact.high is not None and u > fact.high):
        return True
    line = float(fact.square) * (u - float(fact.centre)) ** 2 + float(fact.slope) * u + float(fact.intercept)
    slack = 1e-9 * max(1.0, abs(y), abs(line))
    return y <= line + slack if fact.relation in ("<=", "<") else y >= line - slack


REFERENCES = {"exp": math.exp, "log": math.log, "normal_cdf": ndtr, "log_gamma": gammaln}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(REFERENCES)),
    st.lists(st.fractions(-8, 8, max_denominator=64), min_size=1, max_size=6),
    st.lists(st.floats(-9, 9), min_size=1, max_size=10),
)
def test_every_fact_about_a_function_is_true(
    function: str, points: list[Fraction], arguments: list[float]
) -> None:
    known = [*facts(function, points), *curved_facts(function)]
    for argument in arguments:
        u = abs(argument) + 1e-3 if function in ("log", "log_gamma") else argument
        assert all(_obeys(fact, u, float(REFERENCES[function](u))) for fact in known)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(REFERENCES)), st.fractions(Fraction(1, 10), 20, max_denominator=1000))
def test_value_bounds_enclose_tightly(function: str, at: Fraction) -> None:
    low, high = value_bounds(function, at)
    reference = float(REFERENCES[function](float(at)))
    assert low <= high
    assert high - low <= Fraction(1, 10**15) * max(1, abs(high))
    assert float(low) == pytest.approx(reference, rel=1e-9, abs=1e-9)


def test_public_enclosures_are_outward() -> None:
    low, high = value_bounds("exp", Fraction(1))
    assert low < Fraction("2.718281828459045235360287") < high
    low, high = value_bounds("log", Fraction(2))[0], value_bounds("log", Fraction(3))[1]
    assert low < Fraction("0.6931471805599453094172321215")
    assert high > Fraction("1.098612288668109691395")


def test_balls_prove_refute_and_leave_open() -> None:
    box = {"x": (0, 3)}
    assert prove_by_balls("positive", exp(X) - X, box).verdict is VerdictKind.PROVEN
    found = prove_by_balls("crosses", exp(X) - 5 * X, box)
    assert found.verdict is VerdictKind.REFUTED
    point = {"x": Fraction(str(found.counterexample["x"]))}
    assert truth_at(exp(X) < 5 * X, point) is True
    touching = prove_by_balls(
        "touches", (X - 1) ** 2 * (exp(X) + 1), {"x": (0, Fraction(7, 3))}, limit_boxes=300
    )
    at_zero = prove_by_balls(
        "touches at an end", exp(X) - 1 - X, {"x": (-1, Fraction(2, 3))}, limit_boxes=300
    )
    assert touching.verdict is VerdictKind.UNDECIDED
    assert at_zero.verdict is VerdictKind.UNDECIDED
    assert "300 boxes" in at_zero.summary


def test_balls_take_a_function_and_two_dimensions() -> None:
    def difference(values: Mapping[str, Any]) -> Any:
        return values["p"].exp() + values["q"].exp() - values["p"] - values["q"] - 1

    box = {"p": (-2, 2), "q": ("-1", "1/2")}
    assert prove_by_balls("sum", difference, box).verdict is VerdictKind.PROVEN
    with pytest.raises(InputError, match="domain"):
        prove_by_balls("sum", difference)
    with pytest.raises(InputError, match="finite"):
        prove_by_balls("sum", exp(X))


def _counter(step: Any, **more: Any) -> TransitionSystem:
    return TransitionSystem(
        name="stays at or below 1",
        state=(X,),
        inputs=(real("u", low=0, high=1),),
        start=lambda _: {"x": number(0)},
        step=step,
        invariant=lambda now: now["x"] <= 1,
        **more,
    )


def test_invariants_hold_break_and_stay_open() -> None:
    good = _counter(lambda now: {"x": (now["x"] + now["u"]) / 2})
    assert prove_invariant(good).verdict is VerdictKind.PROVEN
    broken = prove_invariant(_counter(lambda now: {"x": now["x"] + now["u"] / 2}))
    assert broken.verdict is VerdictKind.REFUTED
    run = [Fraction(str(broken.counterexample[f"u@{k}"])) for k in (1, 2, 3)]
    assert sum(run) / 2 > 1
    slow = prove_invariant(_counter(lambda now: {"x": now["x"] + now["u"] / 100}))
    assert slow.verdict is VerdictKind.UNDECIDED  # breaks after 101 steps, beyond the search


def test_an_unreachable_state_refutes_no_invariant() -> None:
    # From x = 1 (never reached) a step leads to 3; from the start all runs stay at 0.
    system = _counter(lambda now: {"x": 3 * now["x"]})
    assert prove_invariant(system).verdict is VerdictKind.UNDECIDED
    carried = _counter(lambda now: {"x": 3 * now["x"]}, inductive=lambda now: And(now["x"].equals(0)))
    assert prove_invariant(carried).verdict is VerdictKind.PROVEN


COIN = {"no": (Fraction(3, 4), Fraction(1, 4)), "yes": (Fraction(1, 4), Fraction(3, 4))}
PAIR = [("no", "yes")]


def test_finite_mechanisms_are_exact() -> None:
    assert finite_mechanism_epsilon(COIN, PAIR).exp_epsilon == 3
    assert finite_mechanism_delta(COIN, PAIR, exp_epsilon=2).delta == Fraction(1, 4)
    half = finite_mechanism_epsilon(COIN, PAIR, delta=Fraction(1, 4))
    assert half.exp_epsilon == 2
    leak = {"a": (Fraction(1), Fraction(0)), "b": (Fraction(9, 10), Fraction(1, 10))}
    assert finite_mechanism_epsilon(leak, [("a", "b")]).exp_epsilon is None
    assert finite_mechanism_epsilon(leak, [("a", "b")], delta=Fraction(1, 20)).exp_epsilon is None
    assert finite_mechanism_epsilon(leak, [("a", "b")], delta=Fraction(1, 10)).exp_epsilon == 1
    between = finite_mechanism_epsilon(COIN, PAIR, delta=Fraction(1, 8))
    assert between.exp_epsilon == Fraction(5, 2)  # 3/4 - t/4 = 1/8
    same = {"a": COIN["no"], "b": COIN["no"]}
    assert finite_mechanism_epsilon(same, [("a", "b")], count=7).exp_epsilon == 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=4),
    st.integers(1, 4),
    st.fractions(1, 20, max_denominator=7),
)
def test_composition_equals_the_product_written_out(
    weights: list[tuple[int, int]], count: int, factor: Fraction
) -> None:
    totals = [sum(column) for column in zip(*weights, strict=True)]
    if 0 in totals:
        return
    p, q = ([Fraction(pair[side], totals[side]) for pair in weights] for side in (0, 1))
    table = {"a": p, "b": q}
    outcomes = [
        (
            math.prod((p[i] for i in path), start=Fraction(1)),
            math.prod((q[i] for i in path), start=Fraction(1)),
        )
        for path in product(range(len(p)), repeat=count)
    ]
    naive = max(
        sum(max(Fraction(0), a - factor * b) for a, b in outcomes),
        sum(max(Fraction(0), b - factor * a) for a, b in outcomes),
    )
    found = finite_mechanism_delta(table, [("a", "b")], exp_epsilon=factor, count=count)
    assert found.delta == naive
    back = finite_mechanism_epsilon(table, [("a", "b")], delta=min(naive, Fraction(99, 100)), count=count)
    assert back.exp_epsilon is None or back.exp_epsilon <= factor or naive >= 1


def test_a_solver_agrees_with_counting() -> None:
    # Tests are mixtures of events: a weight in [0, 1] an output.
    weights = [real(f"s{i}", low=0, high=1) for i in range(2)]
    left = sum((w * p for w, p in zip(weights, COIN["no"], strict=True)), number(0))
    right = sum((w * p for w, p in zip(weights, COIN["yes"], strict=True)), number(0))
    exact = prove(Statement(name="at the exact delta", conclusion=left <= 2 * right + Fraction(1, 4)))
    below = prove(Statement(name="below it", conclusion=left <= 2 * right + Fraction(24, 100)))
    assert (exact.verdict, below.verdict) == (VerdictKind.PROVEN, VerdictKind.REFUTED)


def test_finite_claims_are_proven_and_refuted_with_their_event() -> None:
    good = prove_finite_mechanism("coin", COIN, PAIR, epsilon=log(3))
    assert good.verdict is VerdictKind.PROVEN  # exactly at the boundary: the exponential of a logarithm
    touching = prove_finite_mechanism("coin", COIN, PAIR, epsilon=log(9) / 2)
    assert touching.verdict is VerdictKind.UNDECIDED  # the same number, but no ball can tell
    assert prove_finite_mechanism("coin", COIN, PAIR, epsilon=Fraction(11, 10)).verdict is VerdictKind.PROVEN
    bad = prove_finite_mechanism("coin", COIN, PAIR, epsilon=1, count=10)
    assert bad.verdict is VerdictKind.REFUTED
    once = prove_finite_mechanism("coin", COIN, PAIR, epsilon=1)
    assert once.counterexample["event"] == [0]
    assert once.counterexample["inputs"] == ["no", "yes"]
    with pytest.raises(InputError, match="sum to 1"):
        finite_mechanism_epsilon({"a": (Fraction(1, 2),), "b": (Fraction(1),)}, [("a", "b")])
    with pytest.raises(InputError, match="no variables"):
        prove_finite_mechanism("coin", COIN, PAIR, epsilon=X)


def test_dp_weights_printed_check_accepts_every_noise_scale() -> None:
    scales = ["0.01", "0.3", "1", "3.74", "5"]
    rows = compare_on(scales, sensitivity=1, epsilon=1, delta="1e-5", terms=6)
    # Truth, from the analytic Gaussian mechanism: the first scale that meets (1, 1e-5) is about 3.73.
    assert [row.private for row in rows] == [False, False, False, True, True]
    assert [row.printed for row in rows] == [True] * len(rows)
    assert [row.correct is VerdictKind.PROVEN for row in rows] == [row.private for row in rows]
    assert float(rows[2].exact_delta) == pytest.approx(ndtr(-0.5) - math.e * ndtr(-1.5), rel=1e-9)


def test_dp_weights_negated_series_rejects_good_noise() -> None:
    # Ten terms: the series is a polynomial of odd degree, and far out a "density" is negative.
    good = {"noise_scale": 5, "sensitivity": 1, "epsilon": 1, "delta": "1e-5"}
    assert dp_weights_algorithm_2_as_printed(**good, terms=10, negate=True) is False


def test_dp_weights_pointwise_condition_is_not_privacy() -> None:
    # Wide noise has densities below delta everywhere, however much wider the sensitivity is.
    (row,) = compare_on([300], sensitivity=1000, epsilon=1, delta="0.01", terms=5)
    assert row.pointwise is True
    assert row.private is False


def test_decimals_are_those_of_the_exact_value() -> None:
    assert decimals(number("1/3"), {}) == "1/3"
    assert decimals(sqrt(number(2)), {}, 12) == "1.41421356237"
    assert decimals(log(number(-1)), {}) == "undefined"


@pytest.mark.parametrize("module", [proof, terms, finite_mechanisms])
def test_examples_in_the_docstrings_run(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_importing_loads_neither_solver_nor_balls(tmp_path: Path) -> None:
    code = (
        "import sys; import workbench.attacks.accountant_checks.proof;"
        "print([name for name in ('z3', 'flint', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
