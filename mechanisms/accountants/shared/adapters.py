"""What the adapters to libraries share: they check a question and hand it to the library, kept quiet.

A library may be missing: it is imported when a question comes, never when accountants are listed. An adapter
says what it answers by its base classes, as the bench's protocols for accountants ask for.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from workbench.accounting.events import Event, Gaussian, Laplace, RandomisedResponse, SubsampledGaussian
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.questions import (
    Target,
    require_adjacency,
    require_delta,
    require_epsilon,
    require_fpr,
)

EXTRA = "lm-privacy-workbench[accountants]"
"""What to install for the optional accountants."""


def library(module: str, *, distribution: str) -> Any:
    """Import a module of a library that may not be installed.

    `module`: dotted name. `distribution`: name under which the library is installed. Raises
    `UnsupportedError`: the library is not installed, or does not import here.
    """
    # autodp appends ".." to the search path when it is imported; that would shadow a user's own packages.
    path = list(sys.path)
    try:
        with quiet():
            return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == root:
            raise UnsupportedError(f"{distribution} is not installed: pip install {EXTRA}") from error
        raise UnsupportedError(f"{distribution} does not import here: {error}") from error
    finally:
        sys.path[:] = path


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress a library's warnings, log lines and prints; its exceptions pass."""
    logger = logging.getLogger("absl")  # where dp-accounting says which Renyi orders it gave up
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class EpsilonAdapter(ABC):
    """Base class of an accountant that computes epsilon with a library.

    `name`: its registered name.
    """

    name: ClassVar[str]

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """The library's epsilon; the class says what it promises.

        Raises `InputError`: delta is outside (0, 1). `UnsupportedError`: another event or adjacency than the
        library's, or it is not installed.
        """
        require_delta(delta)
        with quiet():
            return float(self._epsilon(event, delta, adjacency))

    @abstractmethod
    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        """Ask the library."""


class DeltaAdapter(ABC):
    """Base class of an accountant that computes epsilon and delta with a library."""

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """The library's delta; the class says what it promises.

        Raises `InputError`: epsilon is negative or not finite. `UnsupportedError`: another event or adjacency
        than the library's, or it is not installed.
        """
        require_epsilon(epsilon)
        with quiet():
            return float(self._delta(event, epsilon, adjacency))

    @abstractmethod
    def _delta(self, event: Event, epsilon: float, adjacency: Adjacency) -> float:
        """Ask the library."""


class TradeoffAdapter(ABC):
    """Answers the trade-off curve, too."""

    def tpr(self, event: Event, *, fpr: float, adjacency: Adjacency) -> float:
        """1 less the library's false-negative rate at this false-positive rate.

        Raises `InputError`: fpr is outside [0, 1]. `UnsupportedError`: another event or adjacency than the
        library's, or it is not installed.
        """
        require_fpr(fpr)
        with quiet():
            return 1.0 - float(self._false_negative_rate(event, fpr, adjacency))

    @abstractmethod
    def _false_negative_rate(self, event: Event, fpr: float, adjacency: Adjacency) -> float:
        """Ask the library."""


class Calibrator(ABC):
    """Finds the noise for a budget, by the library's own search."""

    name: ClassVar[str]
    calibrates_under: ClassVar[tuple[Adjacency, ...]] = (Adjacency.ADD_REMOVE,)
    """The adjacencies that the search knows."""

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """The noise multiplier that the library finds; the class says how near.

        Raises `InputError`: an argument is out of range. `UnsupportedError`: another adjacency than the
        library's, or it is not installed.
        """
        target = Target(target_epsilon, delta, sampling_probability, steps)
        target.require_possible()
        require_adjacency(self.name, adjacency, *self.calibrates_under)
        with quiet():
            return float(self._noise_multiplier(target, adjacency))

    @abstractmethod
    def _noise_multiplier(self, target: Target, adjacency: Adjacency) -> float:
        """Ask the library."""


def elementary(
    name: str,
    event: Event,
    adjacency: Adjacency,
    *,
    gaussian: Callable[[float, float], Any],
    laplace: Callable[[float, float], Any],
    subsampled: Callable[[float, float], Any],
    response: Callable[[RandomisedResponse], Any],
    noun: str = "mechanism",
    most_categories: float = 2,
) -> Any:
    """The library's object for an elementary event.

    Args:
        name: Of the accountant, for messages.
        event: Without composition.
        adjacency: Of the question. Under replace-one a sum moves by twice a record's bound.
        gaussian: Makes it of a noise multiplier and the sensitivity, 1 or 2.
        laplace: Makes it of a scale and the sensitivity.
        subsampled: Makes it of a noise multiplier and a sampling probability.
        response: Makes it of a randomised response.
        noun: What the library calls its objects, for messages.
        most_categories: Of a randomised response.

    Raises `UnsupportedError`: the library has none for the event, or for this adjacency.
    """
    add_remove, replace_one = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
    sensitivity = 2.0 if adjacency is replace_one else 1.0
    if isinstance(event, Gaussian):
        require_adjacency(name, adjacency, add_remove, replace_one, of="Gaussian")
        return gaussian(event.noise_multiplier, sensitivity)
    if isinstance(event, Laplace):
        require_adjacency(name, adjacency, add_remove, replace_one, of="Laplace")
        return laplace(event.scale, sensitivity)
    if isinstance(event, SubsampledGaussian):
        require_adjacency(name, adjacency, add_remove, of="subsampled Gaussian")
        return subsampled(event.noise_multiplier, event.sampling_probability)
    if isinstance(event, RandomisedResponse) and event.categories <= most_categories:
        require_adjacency(name, adjacency, replace_one, of="randomised response")
        return response(event)
    raise UnsupportedError(f"{name} has no {noun} for {event.describe()}")
