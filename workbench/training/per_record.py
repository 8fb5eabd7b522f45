"""Per-record gradients: the norms and weighted sums that a privatise step asks for.

`per_record_signals` runs one forward pass of a batch and answers as `workbench.interfaces.Signals`. Three
methods compute the same numbers:

- ``book_keeping`` keeps the inputs and back-propagated errors of every operation on a trainable parameter
  (Bu et al. 2023, "Differentially private optimization on large model at small cost"), so that norms and
  clipped sums need no second backward pass (`workbench.training.book_keeping`);
- ``vmap`` maps the gradient of one record over the batch (`workbench.training.vmap`): any module, slower;
- ``one_at_a_time`` is the naive twin, one backward pass a record: for tests.

None of them answers in silence where it could be wrong: what it cannot do is an `UnsupportedError`.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> linear = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.ones_(linear.weight)
    >>> model = SimpleNamespace(module=linear, losses=lambda batch: linear(batch["x"])[:, 0])
    >>> signals = per_record_signals(model, {"x": torch.tensor([[3.0, 4.0], [0.0, 2.0]])})
    >>> signals.norms()
    tensor([5., 2.])
    >>> signals.weighted_sum(torch.tensor([0.2, 0.5]))
    tensor([0.6000, 1.8000])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from workbench.core.errors import UnsupportedError, unknown_name
from workbench.interfaces import Groups, Signals
from workbench.training.book_keeping import book_keeping_signals, known_unsupported
from workbench.training.flat import FlatLayout, batch_size, squared_norms
from workbench.training.groups import Grouping, squares_by_parameter
from workbench.training.vmap import vmap_signals

if TYPE_CHECKING:
    from workbench.interfaces import Model

METHODS = ("auto", "book_keeping", "vmap", "one_at_a_time")
"""What `per_record_signals` takes as `method`."""


class PerRecordSignals(Signals, Protocol):
    """`Signals` of real records, with the losses that their forward pass found."""

    @property
    def losses(self) -> Tensor:
        """Per-record losses, shape `(n,)`, detached."""


def per_record_signals(
    model: Model, batch: Mapping[str, Tensor], *, method: str = "auto"
) -> PerRecordSignals:
    """Gradients of each record's loss over the trainable parameters, as norms and weighted sums.

    The flat vector holds the parameters with `requires_grad`, in the order of
    `model.module.named_parameters()`. A parameter under two names (tied weights) appears once, and its
    gradient is that of both uses. The parameters' `.grad` is left alone.

    Args:
        model: Its `losses(batch)` must give shape `(n,)`, row i from record i alone.
        batch: Tensors that share their first dimension n; n = 0 is legal.
        method: `"book_keeping"`, `"vmap"`, `"one_at_a_time"`, or `"auto"`: book-keeping where every use of
            a trainable parameter is supported, else vmap.

    Returns:
        The signals, with `losses` beside them; in float32 at least, on the parameters' device.

    Raises:
        InputError: unknown method, no trainable parameter, or tensors of unequal first dimension.
        UnsupportedError: the method cannot treat this module; the message names the module.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    layout = FlatLayout.of(model.module)
    _refuse_mixed_records(model.module)
    n = batch_size(batch)
    if n == 0:
        return EmptySignals(layout)
    if method == "one_at_a_time":
        return one_at_a_time(model, batch, layout, n)
    _refuse_checkpointing(model.module)
    if method == "vmap":
        return vmap_signals(model, batch, layout, n)
    if method == "book_keeping":
        return book_keeping_signals(model, batch, layout, n)
    if known_unsupported(model.module, layout):
        return vmap_signals(model, batch, layout, n)
    try:
        return book_keeping_signals(model, batch, layout, n)
    except UnsupportedError as first:
        try:
            return vmap_signals(model, batch, layout, n)
        except UnsupportedError as second:
            raise UnsupportedError(f"{first}; {second}") from second


class EmptySignals:
    """The signals of an empty Poisson sample: no norms, and sums of zero."""

    def __init__(self, layout: FlatLayout) -> None:
        """Signals of zero records over the parameters of `layout`."""
        self._layout = layout
        self.losses = torch.zeros(0, dtype=layout.dtype, device=layout.device)

    @property
    def n(self) -> int:
        """0."""
        return 0

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return self._layout.dimension

    @property
    def layout(self) -> Mapping[str, tuple[slice, torch.Size]]:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self._layout.places

    def norms(self) -> Tensor:
        """Shape `(0,)`."""
        return self.losses.clone()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Zeros of shape `(d,)`; weights of shape `(0,)`."""
        self._layout.check_weights(weights, 0)
        return self._layout.zeros()

    def gradients(self) -> Tensor:
        """Shape `(0, d)`."""
        return self._layout.zeros().expand(0, -1)

    def group_norms(self, groups: Groups) -> Tensor:
        """Shape `(0, G)`."""
        return self.losses.new_zeros(0, Grouping.of(groups, self._layout.places).size)

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        """Zeros of shape `(d,)`; weights of shape `(0, G)`."""
        Grouping.of(groups, self._layout.places).check_weights(weights, 0)
        return self._layout.zeros()


class MatrixSignals:
    """Signals that hold the gradients themselves, an `(n, d)` matrix: small models and tests."""

    def __init__(self, layout: FlatLayout, gradients: Tensor, losses: Tensor) -> None:
        """Signals of the rows of `gradients`, shape `(n, d)`."""
        self._layout = layout
        self._gradients = gradients
        self.losses = losses

    @property
    def n(self) -> int:
        """Number of records."""
        return len(self._gradients)

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return self._layout.dimension

    @property
    def layout(self) -> Mapping[str, tuple[slice, torch.Size]]:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self._layout.places

    def norms(self) -> Tensor:
        """Euclidean norm of each record's gradient, shape `(n,)`."""
        return squared_norms(self._gradients).sqrt().to(self._gradients)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`; weights of shape `(n,)`."""
        self._layout.check_weights(weights, self.n)
        return weights.to(self._gradients) @ self._gradients

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`."""
        return self._gradients.clone()

    def group_norms(self, groups: Groups) -> Tensor:
        """Norm of each group's part of each record's gradient, shape `(n, G)`."""
        places = self._layout.places
        squares = squares_by_parameter(self._gradients, places)
        return Grouping.of(groups, places).norms(squares, self._gradients.dtype)

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        """Sum over records, each group's part weighted by its own column, shape `(d,)`."""
        places = self._layout.places
        grouping = Grouping.of(groups, places)
        grouping.check_weights(weights, self.n)
        columns = weights.to(self._gradients).T
        total = self._gradients.new_zeros(self.dimension)
        for (place, _), group in zip(places.values(), grouping.of_parameter, strict=True):
            total[place] = columns[group] @ self._gradients[:, place]
        return total


def one_at_a_time(model: Model, batch: Mapping[str, Tensor], layout: FlatLayout, n: int) -> MatrixSignals:
    """The naive twin: one forward and backward pass a record; holds `(n, d)` numbers."""
    rows, losses = [], []
    for i in range(n):
        with torch.enable_grad():
            loss = model.losses({name: tensor[i : i + 1] for name, tensor in batch.items()}).sum()
        gradients = torch.autograd.grad(loss, layout.parameters, allow_unused=True)
        rows.append(layout.flatten(gradients))
        losses.append(loss.detach())
    return MatrixSignals(layout, torch.stack(rows), torch.stack(losses))


def _refuse_mixed_records(module: torch.nn.Module) -> None:
    """Batch statistics make a record's loss depend on the others: no per-record gradient exists."""
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and (
            part.training or part.running_mean is None
        ):
            raise UnsupportedError(
                f"module {name!r} ({type(part).__name__}) normalises over the batch: "
                "per-record gradients need records that do not depend on each other"
            )


def _refuse_checkpointing(module: torch.nn.Module) -> None:
    """A forward pass that is run again in the backward pass is not the one that was recorded."""
    for name, part in module.named_modules():
        if part.training and getattr(part, "gradient_checkpointing", False) is True:
            raise UnsupportedError(
                f"module {name!r} ({type(part).__name__}) has gradient checkpointing on: "
                "only method 'one_at_a_time' can treat it"
            )
