"""Per-record gradients by book-keeping: one forward and one backward pass for norms and clipped sums.

The recorder (`workbench.training.recorder`) intercepts every operation on a trainable parameter (a linear
map, an embedding, a normalisation, ...), computes it with the parameter detached, and keeps its input and the
autograd edge of its output. One backward pass to these edges gives the errors; inputs and errors are the
factors of every record's gradient. After Bu et al. 2023, "Differentially private optimization on large model
at small cost" (book-keeping).

Three guards against wrong results:

- A parameter that is used in any other way stays in the autograd graph, is detected there, and refused.
- A stored input that was modified in place is refused.
- The first time that a module runs with a given pattern of uses, a random weighted sum is compared with
  autograd's (`workbench.training.verify`), which a wrong order of rows would fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from workbench.core.errors import InputError, UnsupportedError
from workbench.training.flat import FlatLayout, PerRecordSignals
from workbench.training.recorder import ParameterGradients, Recorder
from workbench.training.verify import random_state, verify_once

if TYPE_CHECKING:
    from workbench.interfaces import Model

_refused: WeakKeyDictionary[torch.nn.Module, set[tuple[str, ...]]] = WeakKeyDictionary()
"""Trainable names with which a module was refused, so that `"auto"` need not try again."""


def known_unsupported(module: torch.nn.Module, layout: FlatLayout) -> bool:
    """True where book-keeping has refused this module with these trainable parameters before."""
    return layout.names in _refused.get(module, ())


class BookKeepingSignals(PerRecordSignals):
    """Signals from stored inputs and errors; memory grows with the activations, not with n times d."""

    def __init__(self, layout: FlatLayout, gradients: list[ParameterGradients], losses: Tensor) -> None:
        """Signals from the collected gradients, one entry per parameter of `layout`."""
        self._gradients = gradients
        size = len(losses), len(gradients)
        by_parameter = torch.zeros(size, dtype=torch.float64, device=layout.device)
        squares = torch.zeros(len(losses), dtype=torch.float64, device=layout.device)
        for i, gradient in enumerate(gradients):
            gradient.settle()
            by_parameter[:, i] = gradient.squared_norms(len(losses))
            squares += by_parameter[:, i]
        # Gram sums may round to just below zero; NaN stays NaN under clamp.
        super().__init__(layout, losses, squares.clamp(min=0.0).sqrt().to(layout.dtype), by_parameter)

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`: their factors multiplied out."""
        rows = torch.zeros(self.n, self.dimension, dtype=self._layout.dtype, device=self._layout.device)
        for (place, _), gradient in zip(self._layout.places.values(), self._gradients, strict=True):
            gradient.write(rows[:, place])
        return rows

    def _summed(self, columns: Tensor, group_of: tuple[int, ...]) -> Tensor:
        total = self._layout.zeros()
        for (place, _), gradient, group in zip(self.layout.values(), self._gradients, group_of, strict=True):
            gradient.add_weighted(total[place], columns[group])
        return total


def book_keeping_signals(
    model: Model, batch: Mapping[str, Tensor], layout: FlatLayout, n: int
) -> BookKeepingSignals:
    """Signals of a batch of n > 0 records by book-keeping.

    Raises `UnsupportedError`: a use of a parameter is not covered, or the check against autograd failed.
    """
    before = random_state(layout.device)
    recorder = Recorder(layout, n)
    losses = _recorded_losses(model, batch, recorder)
    if losses.shape != (n,):
        raise InputError(f"losses must have shape ({n},), got {tuple(losses.shape)}")
    errors: list[Tensor | None] = [None] * len(recorder.uses)
    if losses.requires_grad:
        parameters = [get_gradient_edge(p) for p in layout.parameters]
        edges = [use.edge for use in recorder.uses] + parameters
        gradients = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
        errors = list(gradients[: len(errors)])
        _refuse_other_uses(model.module, layout, recorder, gradients[len(errors) :])
    signals = BookKeepingSignals(layout, _collect(layout, recorder, errors), losses.detach())
    pattern = ("book_keeping", model.module.training, tuple(recorder.pattern))
    verify_once(model, batch, signals, layout, pattern=pattern, state=before)
    return signals


def _recorded_losses(model: Model, batch: Mapping[str, Tensor], recorder: Recorder) -> Tensor:
    try:
        with torch.enable_grad(), recorder:
            return model.losses(batch)
    except RuntimeError as error:
        if not recorder.expanded:
            raise
        raise UnsupportedError(
            f"method 'book_keeping' cannot treat module {type(model.module).__name__}: its code does not "
            f"accept one row per record of {', '.join(sorted(recorder.expanded))}"
        ) from error


def _collect(layout: FlatLayout, recorder: Recorder, errors: list[Tensor | None]) -> list[ParameterGradients]:
    gradients = [ParameterGradients(p.shape) for p in layout.parameters]
    for i, use in enumerate(recorder.uses):
        error, errors[i] = errors[i], None  # frees each error as soon as possible
        if error is None:
            continue
        if not use.is_intact():
            raise UnsupportedError(
                f"method 'book_keeping': an input of the {use.operation} on {use.parameters} "
                "was modified in place"
            )
        for index, contribution in use.gradients(error.to(layout.dtype)):
            gradients[index].add(contribution)
    recorder.uses.clear()
    return gradients


def _refuse_other_uses(
    module: torch.nn.Module, layout: FlatLayout, recorder: Recorder, gradients: tuple[Tensor | None, ...]
) -> None:
    for name, parameter, gradient in zip(layout.names, layout.parameters, gradients, strict=True):
        if gradient is None:
            continue
        _refused.setdefault(module, set()).add(layout.names)
        owner = module.get_submodule(name.rpartition(".")[0])
        reason = recorder.reasons.get(id(parameter), "an operation that it does not know")
        raise UnsupportedError(
            f"method 'book_keeping' cannot treat parameter {name!r} of module {type(owner).__name__}: "
            f"it is used in {reason}; method 'vmap' may"
        )
