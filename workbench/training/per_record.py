"""Per-record gradients of a batch: the norms and weighted sums that a privatise step needs.

`per_record_signals` returns `workbench.interfaces.Signals`, by one of two methods that compute the same
numbers:

- ``book_keeping`` (Bu et al. 2023, "Differentially private optimization on large model at small cost"): the
  recorder (`workbench.training.recorder`) intercepts every operation on a trainable parameter, computes it
  with the parameter detached, and keeps its input and the autograd edge of its output. One backward pass to
  these edges gives the errors; inputs and errors are the factors of every record's gradient;
- ``vmap`` maps the gradient of one record over the batch by `torch.func`: any module, 1.5 to 2.6 times the
  time of a plain step, and memory for one gradient a record of a block.

What a method cannot treat is an `UnsupportedError`, never a wrong number:

- A parameter that is used in any other way than the recorder's stays in the autograd graph, is detected
  there, and refused; so is a stored input that was modified in place.
- The first time that a module runs with a given pattern of uses, a sum with random weights w is compared with
  autograd's: sum_i w_i G_i must equal the gradient of sum_i w_i loss_i. Both sides are linear in w, so they
  agree only where every G_i is the gradient of its own loss_i: a gradient ascribed to the wrong record, or
  records that depend on each other, fail. The check costs one plain step, with the dropout masks of the first
  pass: torch's random stream is saved and replayed.

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

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call, grad_and_value, vmap
from torch.linalg import vector_norm
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.interfaces import Signals
from workbench.training.devices import wide_dtype
from workbench.training.flat import (
    FlatLayout,
    PerRecordSignals,
    batch_size,
    check_weights,
    squared_norms,
    squares_by_parameter,
)
from workbench.training.hugging_face import eager_attention, is_checkpointing
from workbench.training.recorder import ParameterGradients, Recorder

if TYPE_CHECKING:
    from workbench.interfaces import Model

METHODS = ("auto", "book_keeping", "vmap")


def per_record_signals(
    model: Model, batch: Mapping[str, Tensor], *, method: str = "auto"
) -> PerRecordSignals:
    """Gradients of each record's loss over the trainable parameters, as norms and weighted sums.

    The flat vector holds the parameters with `requires_grad`, in the order of
    `model.module.named_parameters()`; tied weights appear once, with the gradient of both uses. No
    parameter's `.grad` is touched. Signals are in float32 at least, on the parameters' device.

    Args:
        model: Its `losses(batch)` must give shape `(n,)`, row i from record i alone.
        batch: Tensors that share their first dimension n; n = 0 is legal.
        method: One of `METHODS`; `"auto"` is book-keeping where every use of a trainable parameter is
            supported, else vmap.

    Raises `InputError`: unknown method, no trainable parameter, or tensors of unequal first dimension.
    `UnsupportedError`: the method cannot treat this module; the message names the module.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    layout = FlatLayout.of(model.module)
    _refuse_mixed_records(model.module)
    n = batch_size(batch)
    if n == 0:
        return EmptySignals(layout)
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


class EmptySignals(PerRecordSignals):
    """The signals of an empty Poisson sample: no norms, and sums of zero."""

    def __init__(self, layout: FlatLayout) -> None:
        """Signals of zero records over the parameters of `layout`."""
        nothing = torch.zeros(0, dtype=layout.dtype, device=layout.device)
        super().__init__(layout, nothing, nothing, nothing.new_zeros(0, len(layout.names)))

    def gradients(self) -> Tensor:
        """The gradients of no record, shape `(0, d)`."""
        return self._layout.zeros().expand(0, -1)

    def _summed(self, columns: Tensor, group_of: tuple[int, ...]) -> Tensor:
        del columns, group_of
        return self._layout.zeros()


class MatrixSignals(PerRecordSignals):
    """Signals that hold the gradients as an `(n, d)` matrix: for small models and tests."""

    def __init__(self, layout: FlatLayout, gradients: Tensor, losses: Tensor) -> None:
        """Signals of the rows of `gradients`, shape `(n, d)`."""
        norms = squared_norms(gradients).sqrt().to(gradients)
        super().__init__(layout, losses, norms, squares_by_parameter(gradients, layout.places))
        self._gradients = gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`, by a single product."""
        check_weights(weights, self.n)
        return weights.to(self._gradients) @ self._gradients

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`."""
        return self._gradients.clone()

    def _summed(self, columns: Tensor, group_of: tuple[int, ...]) -> Tensor:
        total = self._gradients.new_zeros(self.dimension)
        for (place, _), group in zip(self.layout.values(), group_of, strict=True):
            total[place] = columns[group] @ self._gradients[:, place]
        return total


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
    """Checkpointing runs a second forward pass, whose operations are not those that were recorded."""
    for name, part in module.named_modules():
        if part.training and is_checkpointing(part):
            raise UnsupportedError(
                f"module {name!r} ({type(part).__name__}) has gradient checkpointing on: "
                "switch it off for per-record gradients"
            )


_BLOCK_ELEMENTS = 2**26
"""Largest number of gradient entries held at once: 256 MiB of float32."""


class _Losses(torch.nn.Module):
    """The model's losses as a module's forward, so that `functional_call` can swap the parameters."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.inner = model.module
        self._model = [model]  # in a list: a model that is itself a module must not be registered twice

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self._model[0].losses(batch)


class VmapSignals(PerRecordSignals):
    """Signals whose gradients are computed in blocks of records.

    A batch of several blocks is computed again for each sum, with the same dropout masks, so that what is
    summed is what was measured and clipped. Sums raise an `UnsupportedError` if the parameters were updated
    since.
    """

    def __init__(self, model: Model, batch: Mapping[str, Tensor], layout: FlatLayout, n: int) -> None:
        """Run forward and backward of all records once, for their norms and losses."""
        self._layout = layout
        self._batch = batch
        self._wrapped = _Losses(model)
        self._n = n
        self._block = max(1, min(n, _BLOCK_ELEMENTS // layout.dimension))
        self._random = random_state(layout.device)
        self._versions = [p._version for p in layout.parameters]
        self._kept: tuple[Tensor, ...] | None = None
        norms, losses, kept = [], [], []
        for _, gradients, values in self._blocks():
            squares = torch.stack([squared_norms(g.flatten(1).to(layout.dtype)) for g in gradients])
            norms.append(squares.sum(0).sqrt().to(layout.dtype))
            kept.append(squares.T)
            losses.append(values)
            if self._block == n:
                self._kept = gradients
        super().__init__(layout, torch.cat(losses), torch.cat(norms), torch.cat(kept))

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`."""
        stacked = torch.zeros(self._n, self.dimension, dtype=self._layout.dtype, device=self._layout.device)
        for rows, gradients in self._again():
            for (place, _), gradient in zip(self.layout.values(), gradients, strict=True):
                stacked[rows, place] = gradient.flatten(1).to(stacked)
        return stacked

    def _summed(self, columns: Tensor, group_of: tuple[int, ...]) -> Tensor:
        total = self._layout.zeros()
        for rows, gradients in self._again():
            for (place, _), gradient, group in zip(self.layout.values(), gradients, group_of, strict=True):
                total[place] += columns[group, rows] @ gradient.flatten(1).to(total)
        return total

    def _again(self) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """The gradients of each block: those that were kept, or the same computed again."""
        if self._kept is not None:
            yield slice(0, self._n), self._kept
            return
        if self._versions != [p._version for p in self._layout.parameters]:
            raise UnsupportedError("method 'vmap' cannot sum gradients after the parameters were updated")
        with with_random_state(self._random, self._layout.device):
            for rows, gradients, _ in self._blocks():
                yield rows, gradients

    def _blocks(self) -> Iterator[tuple[slice, tuple[Tensor, ...], Tensor]]:
        """Rows, gradients by parameter of shape `(rows, *shape)`, and losses, block by block."""
        names = self._layout.names
        values = {f"inner.{name}": p.detach() for name, p in zip(names, self._layout.parameters, strict=True)}

        def loss(parameters: dict[str, Tensor], record: dict[str, Tensor]) -> Tensor:
            batch_of_one = {name: tensor.unsqueeze(0) for name, tensor in record.items()}
            return cast("Tensor", functional_call(self._wrapped, parameters, (batch_of_one,)).sum())

        mapped = vmap(grad_and_value(loss), in_dims=(None, 0), randomness="different")
        for start in range(0, self._n, self._block):
            rows = slice(start, min(self._n, start + self._block))
            try:
                # Neither the fused kernels nor the masks of "sdpa" can be mapped.
                with eager_attention(self._wrapped.inner), sdpa_kernel(SDPBackend.MATH):
                    gradients, losses = mapped(values, {k: v[rows] for k, v in self._batch.items()})
            except RuntimeError as error:
                name = type(self._wrapped.inner).__name__
                raise UnsupportedError(
                    f"method 'vmap' cannot treat module {name}: {_shortened(error)}"
                ) from error
            yield rows, tuple(gradients[f"inner.{name}"].detach() for name in names), losses.detach()


def _shortened(error: Exception) -> str:
    """The start of an error's message: torch's run over many lines."""
    line = str(error).split("\n", maxsplit=1)[0]
    return line if len(line) <= 160 else line[:160] + "..."


RandomState: TypeAlias = tuple[Tensor, Tensor | None]
"""State of the CPU's generator, and of the accelerator's."""


def random_state(device: torch.device) -> RandomState:
    """The current state of the random streams that computations on `device` draw from."""
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    return torch.get_rng_state(), torch.mps.get_rng_state() if device.type == "mps" else None


def _set_random_state(state: RandomState, device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
    elif state[1] is not None:
        torch.mps.set_rng_state(state[1])


@contextmanager
def with_random_state(state: RandomState, device: torch.device) -> Iterator[None]:
    """Run a block from a saved random state, and restore the streams afterwards."""
    before = random_state(device)
    _set_random_state(state, device)
    try:
        yield
    finally:
        _set_random_state(before, device)


def _is_same(a: RandomState, b: RandomState) -> bool:
    same = a[1] is b[1] if a[1] is None or b[1] is None else torch.equal(a[1], b[1])
    return torch.equal(a[0], b[0]) and same


_verified: WeakKeyDictionary[torch.nn.Module, set[object]] = WeakKeyDictionary()
"""Patterns that were compared with autograd, by module."""


def verify_once(
    model: Model,
    batch: Mapping[str, Tensor],
    signals: Signals,
    layout: FlatLayout,
    *,
    pattern: tuple[object, ...],
    state: RandomState | None,
) -> None:
    """Compare a random weighted sum with autograd's, unless this pattern of the module has passed before.

    A batch of a single record shows nothing, and is skipped. `pattern` is all that the treatment of the
    module depends on; its first entry names the method. `state` is the random state from which a plain pass
    draws the same dropout masks as the signals did; None if none does: modules that draw any are skipped.
    Raises `UnsupportedError`: they disagree on a parameter, which the message names.
    """
    pattern = (*pattern, layout.names)
    if signals.n < 2 or pattern in _verified.get(model.module, ()):
        return
    generator = torch.Generator().manual_seed(signals.n)  # the caller's streams stay untouched
    weights = torch.randn(signals.n, generator=generator, dtype=torch.float64).to(layout.zeros())
    start = state or random_state(layout.device)
    with torch.enable_grad(), with_random_state(start, layout.device):
        total = (weights * model.losses(batch)).sum()
        expected = layout.flatten(torch.autograd.grad(total, layout.parameters, allow_unused=True))
        drew = not _is_same(start, random_state(layout.device))
    if drew and state is None:
        _verified.setdefault(model.module, set()).add(pattern)
        return
    if not bool(expected.isfinite().all()):
        return  # the next finite batch is compared
    summed = signals.weighted_sum(weights)
    # Float32 at best: many modules normalise and take softmax in float32 whatever their parameters are.
    # A CUDA device may multiply in TF32, with ten bits of mantissa.
    coarsest = torch.finfo(torch.float32).eps if layout.device.type != "cuda" else 2.0**-10
    tolerance = max(coarsest, *(torch.finfo(p.dtype).eps for p in layout.parameters)) ** 0.5
    floor = 0.01 * vector_norm(expected)  # rounding: some gradients are zero in theory (the bias of keys)
    for name, (place, _) in layout.places.items():
        difference = vector_norm(summed[place] - expected[place])
        if not difference <= tolerance * (vector_norm(expected[place]) + floor):
            owner = model.module.get_submodule(name.rpartition(".")[0])
            raise UnsupportedError(
                f"method {pattern[0]!r} disagrees with autograd on parameter {name!r} of module "
                f"{type(owner).__name__}: are records mixed, or not along the first dimension?"
            )
    _verified.setdefault(model.module, set()).add(pattern)


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
        by_parameter = torch.zeros(size, dtype=wide_dtype(layout.device), device=layout.device)
        squares = torch.zeros(len(losses), dtype=wide_dtype(layout.device), device=layout.device)
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
                f"method 'book_keeping': an input of the {use.operation} "
                f"on {use.parameters} was modified in place"
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


def vmap_signals(model: Model, batch: Mapping[str, Tensor], layout: FlatLayout, n: int) -> VmapSignals:
    """Signals of a batch of n > 0 records by `torch.func.vmap`; see `VmapSignals`."""
    signals = VmapSignals(model, batch, layout, n)
    # No state: mapped dropout draws other masks than a plain pass.
    verify_once(model, batch, signals, layout, pattern=("vmap", model.module.training), state=None)
    return signals
