"""What `workbench.accounting` offers a stranger: four questions, on numbers and arrays, and on DpEvents."""

from __future__ import annotations

import subprocess
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event as theirs
from dp_accounting.pld import PLDAccountant
from scipy import stats

from workbench import accounting
from workbench.accounting.certified import delta_bounds, epsilon_bounds, tpr_bounds
from workbench.core.errors import InputError, UnsupportedError

RUN = accounting.gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)


def test_all_names_are_there_and_no_framework_is_loaded() -> None:
    assert all(getattr(accounting, name) is not None for name in accounting.__all__)
    program = "import sys; from workbench.accounting import epsilon; print('torch' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout == "False\n"
    with pytest.raises(AttributeError, match="no attribute 'epsilons'"):
        _ = accounting.epsilons


def test_arrays_are_answered_as_their_numbers() -> None:
    asked = np.array([[1e-5, 1e-6], [1e-3, 0.1]])
    found = accounting.epsilon(RUN, asked)
    assert isinstance(found, accounting.BoundsArray)
    assert found.lower.shape == found.upper.shape == (2, 2)
    assert found.rigorous
    for place, value in np.ndenumerate(asked):
        single = epsilon_bounds(RUN, float(value))
        assert found.lower[place] <= single.upper
        assert single.lower <= found.upper[place] <= 1.001 * found.lower[place]
    assert accounting.epsilon(RUN, 1e-5) == epsilon_bounds(RUN, 1e-5)
    assert accounting.delta(RUN, 1) == delta_bounds(RUN, 1.0)
    assert accounting.tpr(RUN, np.float64(0.1)) == tpr_bounds(RUN, 0.1)
    several = accounting.delta(RUN, (0.5, 1.0), adjacency="replace-one")
    assert isinstance(several, accounting.BoundsArray)
    replaced = delta_bounds(RUN, 1.0, adjacency="replace-one")  # type: ignore[arg-type]
    assert several.lower[1] <= replaced.upper
    assert replaced.lower <= several.upper[1] <= 1.001 * several.lower[1]


@pytest.mark.parametrize("width", [1e-3, 1e-5, 1e-6])
def test_bounds_are_refined_to_the_width_that_is_asked_for(width: float) -> None:
    loose, found = accounting.epsilon(RUN, 1e-5), accounting.epsilon(RUN, 1e-5, relative_width=width)
    assert isinstance(found, accounting.Bounds)
    assert isinstance(loose, accounting.Bounds)
    assert found.relative_width <= width
    assert loose.lower <= found.lower <= found.upper <= loose.upper
    for question, value in ((accounting.delta, 1.0), (accounting.tpr, 0.01)):
        bounds = question(RUN, value, relative_width=width)
        assert isinstance(bounds, accounting.Bounds)
        assert bounds.relative_width <= max(width, 5e-6)  # What is left of a small delta is round-off.


EVENTS = [
    RUN,
    accounting.Gaussian(noise_multiplier=2.0),
    accounting.Composed(
        events=(
            (accounting.Laplace(scale=20.0), 5),
            (accounting.SubsampledGaussian(noise_multiplier=0.8, sampling_probability=0.02), 50),
            (accounting.Gaussian(noise_multiplier=9.0), 1),
        )
    ),
]


@pytest.mark.parametrize(
    "event",
    [
        accounting.Composed(
            events=((accounting.DiscreteLaplace(noise_parameter=0.3, largest_contribution=2), 3),)
        ),
        accounting.SubsampledLaplace(scale=2.0, sampling_probability=0.1),
        accounting.CappedPoisson(
            noise_multiplier=2.0, sampling_probability=0.1, dataset_size=100, largest_batch=15
        ),
        accounting.FixedBatch(noise_multiplier=3.0, dataset_size=100, batch_size=10),
        accounting.GaussianMixturePair(
            p_means=(0.0, 1.0, 2.5),
            p_weights=(0.5, 0.25, 0.25),
            q_means=(0.0,),
            q_weights=(1.0,),
            standard_deviation=2.0,
        ),
    ],
    ids=lambda event: event.describe()[:30],
)
def test_samples_and_integer_noise_come_back_as_they_went(event: accounting.Event) -> None:
    assert accounting.event_of(accounting.to_dp_event(event)) == event


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.describe()[:30])
def test_events_there_and_back_are_the_same(event: accounting.Event) -> None:
    there = accounting.to_dp_event(event)
    assert isinstance(there, dp_accounting.DpEvent)
    assert accounting.epsilon(there, 1e-5) == accounting.epsilon(event, 1e-5)
    accountant = PLDAccountant().compose(there)
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon_bounds(event, 1e-5).upper, rel=2e-3)


def test_anybodys_event_tree_is_read() -> None:
    sampled = theirs.PoissonSampledDpEvent(0.01, theirs.GaussianDpEvent(1.0))
    parts = [theirs.SelfComposedDpEvent(sampled, count) for count in (600, 400)]
    tree = theirs.ComposedDpEvent([parts[0], theirs.NoOpDpEvent(), parts[1]])
    assert accounting.epsilon(tree, 1e-5) == accounting.epsilon(RUN, 1e-5)
    mixture = theirs.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.99, 0.01])
    own = accounting.SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.01)
    seen, known = accounting.epsilon(mixture, 1e-5), accounting.epsilon(own, 1e-5)
    assert isinstance(seen, accounting.Bounds)
    assert isinstance(known, accounting.Bounds)
    assert seen.lower <= known.upper
    assert known.lower <= seen.upper
    hidden = theirs.RandomizedResponseDpEvent(0.5, 4)
    truth = accounting.epsilon(hidden, 1e-9, adjacency="replace-one")
    assert isinstance(truth, accounting.Bounds)
    # The truth is answered with probability 1/2 + 1/8, another category with 1/8.
    assert truth.upper == pytest.approx(np.log(5.0))


def test_gaussians_on_one_sample_are_as_many_coordinates_of_one() -> None:
    inner = theirs.ComposedDpEvent([theirs.GaussianDpEvent(1.5), theirs.GaussianDpEvent(2.0)])
    event = theirs.PoissonSampledDpEvent(0.1, inner)
    x, y = np.meshgrid(*2 * [np.linspace(-10, 10, 2001)])
    without = stats.norm.pdf(x) * stats.norm.pdf(y)
    mixed = 0.9 * without + 0.1 * stats.norm.pdf(x - 1 / 1.5) * stats.norm.pdf(y - 1 / 2.0)
    for epsilon in (0.05, 0.2, 0.5):
        for direction, p, q in (("remove", mixed, without), ("add", without, mixed)):
            area = np.maximum(p - np.exp(epsilon) * q, 0).sum() * 0.01**2
            bounds = accounting.delta(event, epsilon, direction=direction)
            assert isinstance(bounds, accounting.Bounds)
            assert area == pytest.approx(bounds.upper, rel=1e-3, abs=1e-9)
    quarter = theirs.PoissonSampledDpEvent(0.1, theirs.SelfComposedDpEvent(theirs.GaussianDpEvent(2.0), 4))
    assert accounting.event_of(quarter, adjacency="zero-out") == accounting.SubsampledGaussian(
        noise_multiplier=1.0, sampling_probability=0.1
    )
    none = theirs.SelfComposedDpEvent(theirs.GaussianDpEvent(1e-300), 0)
    one = theirs.PoissonSampledDpEvent(0.1, theirs.ComposedDpEvent([none, theirs.GaussianDpEvent(2.0)]))
    assert accounting.event_of(one) == accounting.SubsampledGaussian(
        noise_multiplier=2.0, sampling_probability=0.1
    )
    with pytest.raises(UnsupportedError, match="releases nothing"):
        accounting.event_of(theirs.PoissonSampledDpEvent(0.1, none))
    with pytest.raises(UnsupportedError, match="of replacing a record, for one"):
        accounting.event_of(quarter, adjacency="replace-one")


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_a_batch_of_everybody_is_the_event_on_all_records(adjacency: str) -> None:
    everybody = theirs.SampledWithoutReplacementDpEvent(100, 100, theirs.GaussianDpEvent(2.0))
    assert accounting.event_of(everybody, adjacency=adjacency) == accounting.Gaussian(noise_multiplier=2.0)
    on_a_sample = theirs.PoissonSampledDpEvent(0.1, theirs.ComposedDpEvent([everybody]))
    with pytest.raises(UnsupportedError, match="Poisson samples are bounded for one Laplace each"):
        accounting.event_of(on_a_sample, adjacency=adjacency)


@pytest.mark.parametrize(
    ("event", "kind", "message"),
    [
        (theirs.NoOpDpEvent(), UnsupportedError, "releases nothing"),
        (theirs.NonPrivateDpEvent(), UnsupportedError, "no certified bounds for"),
        (
            theirs.PoissonSampledDpEvent(0.1, theirs.SelfComposedDpEvent(theirs.LaplaceDpEvent(1.0), 2)),
            UnsupportedError,
            "one Laplace each",
        ),
        (
            theirs.PoissonSampledDpEvent(
                0.1, theirs.ComposedDpEvent([theirs.GaussianDpEvent(1.0), theirs.LaplaceDpEvent(1.0)])
            ),
            UnsupportedError,
            "one Laplace each",
        ),
        (theirs.GaussianDpEvent(-1.0), InputError, "noise_multiplier must be"),
        (
            theirs.SampledWithoutReplacementDpEvent(100, 10, theirs.LaplaceDpEvent(1.0)),
            UnsupportedError,
            "fixed batches are bounded for one Gaussian each",
        ),
        (
            theirs.SampledWithoutReplacementDpEvent(10, 10, theirs.GaussianDpEvent(1.0)),
            InputError,
            r"sample_size must be below source_dataset_size \(10\) under add-remove",
        ),
        (
            theirs.SampledWithoutReplacementDpEvent(10, 11, theirs.GaussianDpEvent(1.0)),
            InputError,
            r"sample_size must be at most source_dataset_size \(10\), got 11",
        ),
        (
            theirs.SampledWithoutReplacementDpEvent(10, 0, theirs.GaussianDpEvent(1.0)),
            InputError,
            "sample_size must be a whole number >= 1, got 0",
        ),
        (theirs.MixtureOfGaussiansDpEvent(1.0, b"1", b"1"), InputError, "sampling_probs must be a row"),
        ("a run", InputError, "event must be an Event, got"),
        (theirs.SelfComposedDpEvent(theirs.GaussianDpEvent(1.0), "3"), InputError, "count must be"),
        (theirs.SelfComposedDpEvent(theirs.GaussianDpEvent(1.0), True), InputError, "count must be"),
        (theirs.ComposedDpEvent(3), InputError, "events must be a row of events, got 3"),
        (
            theirs.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [1.0]),
            InputError,
            "sampling_probs must be as many",
        ),
        (theirs.MixtureOfGaussiansDpEvent(1.0, 1.0, 1.0), InputError, "sampling_probs must be a row"),
    ],
)
def test_what_cannot_be_read_is_named(event: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        accounting.epsilon(event, 1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delta": ["1e-5"]}, "delta must be a number or an array of numbers"),
        ({"delta": [[1e-5], [1e-5, 1e-6]]}, "delta must be a number or an array of numbers"),
        ({"delta": [None]}, "delta must be a number or an array of numbers"),
        ({"delta": [True]}, "delta must be a number or an array of numbers"),
        ({"delta": np.ma.array([1e-5, 1e-6], mask=[0, 1])}, "delta must be a number or an array of numbers"),
        ({"delta": []}, "delta must be a number or an array of numbers"),
        ({"delta": [0.1, 2.0]}, "delta must be"),
        ({"delta": 0.1, "adjacency": "neighbour"}, "adjacency"),
        ({"delta": 0.1, "relative_width": 0}, "relative_width must be"),
    ],
)
def test_arguments_out_of_range_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        accounting.epsilon(RUN, **given)  # type: ignore[call-overload]


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_a_mixture_is_the_poisson_sample_that_it_says_and_nothing_else(adjacency: str) -> None:
    sampled = theirs.PoissonSampledDpEvent(0.1, theirs.GaussianDpEvent(1.0))
    mixture = theirs.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.9, 0.1])
    four = [theirs.SelfComposedDpEvent(event, 4) for event in (sampled, mixture)]
    known = accounting.epsilon(four[0], 1e-5, adjacency=adjacency)
    assert isinstance(known, accounting.Bounds)
    if adjacency == "replace-one":
        for event in (four[1], theirs.ComposedDpEvent(four)):
            with pytest.raises(UnsupportedError, match="about adding a record, not about replacing one"):
                accounting.epsilon(event, 1e-5, adjacency=adjacency)
        return
    seen = accounting.epsilon(four[1], 1e-5, adjacency=adjacency)
    assert isinstance(seen, accounting.Bounds)
    assert seen.lower <= known.upper
    assert known.lower <= seen.upper
    assert seen.relative_width < 2e-3


def test_pairs_without_a_counterpart_are_refused() -> None:
    pair = accounting.FinitePair(p=(0.5, 0.5), q=(0.25, 0.75))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="dp-accounting has no event for pair of finite"):
        accounting.to_dp_event(pair)


BY_NOISE = {
    "Gaussian run": (None, {"sampling_probability": 0.02, "steps": 300}),
    "Gaussian once": (None, {}),
    "Gaussian run, replaced": (None, {"sampling_probability": 0.1, "steps": 40, "adjacency": "replace-one"}),
    "Gaussian run, added": (None, {"sampling_probability": 0.4, "steps": 40, "direction": "add"}),
    "Laplace": (lambda b: accounting.Composed(events=((accounting.Laplace(scale=b), 10),)), {}),
    "two kinds": (
        lambda s: accounting.Composed(
            events=((accounting.Gaussian(noise_multiplier=s), 3), (accounting.Laplace(scale=2 * s), 2))
        ),
        {},
    ),
    "a DpEvent": (
        lambda s: theirs.SelfComposedDpEvent(
            theirs.PoissonSampledDpEvent(0.1, theirs.GaussianDpEvent(s)), 50
        ),
        {},
    ),
}


@pytest.mark.parametrize("target", [0.3, 2.0])
@pytest.mark.parametrize("kind", BY_NOISE)
def test_calibration_keeps_the_target_above_and_breaks_it_below(kind: str, target: float) -> None:
    make, options = BY_NOISE[kind]
    found = accounting.calibrate(make, target_epsilon=target, target_delta=1e-6, **options)
    assert 0 < found.lower <= found.upper <= found.lower * (1 + 1e-3)
    assert found.rigorous
    run = {name: options[name] for name in ("sampling_probability", "steps") if name in options}
    ask = {name: value for name, value in options.items() if name not in run}

    def bounds(noise: float) -> accounting.Bounds:
        full = {"sampling_probability": 1.0, "steps": 1} | run
        event = make(noise) if make else accounting.gaussian_run(noise_multiplier=noise, **full)
        answer = accounting.epsilon(event, 1e-6, relative_width=1e-4, **ask)
        assert isinstance(answer, accounting.Bounds)
        return answer

    assert bounds(found.upper).upper <= target < bounds(found.lower).lower
    assert bounds(found.upper * 1.01).upper < target < bounds(found.lower / 1.01).lower
    assert any("does not rise" in text for text in found.assumptions) == (make is not None)


@pytest.mark.slow
def test_calibration_agrees_with_dp_accounting() -> None:
    found = accounting.calibrate(
        target_epsilon=1, target_delta=1e-5, sampling_probability=0.01, steps=1000, relative_width=1e-4
    )
    assert found.relative_width <= 1e-4
    noise = dp_accounting.calibrate_dp_mechanism(
        PLDAccountant,
        lambda s: theirs.SelfComposedDpEvent(
            theirs.PoissonSampledDpEvent(0.01, theirs.GaussianDpEvent(s)), 1000
        ),
        1.0,
        1e-5,
        tol=1e-6,
    )
    assert found.lower <= noise <= found.upper * 1.001  # Theirs is an upper end on a coarser grid.


def test_calibration_refuses_what_it_cannot_mean() -> None:
    target = {"target_epsilon": 1.0, "target_delta": 1e-5}
    with pytest.raises(InputError, match="steps are the Gaussian run's"):
        accounting.calibrate(lambda b: accounting.Laplace(scale=b), steps=3, **target)
    with pytest.raises(InputError, match=r"event must make an event from a noise, got 1\.5"):
        accounting.calibrate(1.5, **target)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="target_epsilon 1 is met by any noise"):
        accounting.calibrate(lambda b: accounting.PrivateStep(epsilon=0.5, delta=0.0), **target)
    with pytest.raises(UnsupportedError):
        accounting.calibrate(
            lambda b: accounting.RandomisedResponse(noise_parameter=0.5, categories=3), **target
        )
