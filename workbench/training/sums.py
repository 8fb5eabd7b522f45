"""Gradients of summed losses in some of the parameters, for mechanisms that need no per-record signals.

Gradients are switched off for all other parameters meanwhile. Samples larger than a micro-batch are summed in
parts, always in the same order, so that the same records give the same gradient to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray, Model, Plan, Record
from workbench.training.canary import canary_entry, canary_places, check_canary
from workbench.training.fine_tuning import trainable
from workbench.training.samples import micro_batches

Direction = Callable[[Sequence[Tensor]], Tensor]
"""The inner product, float64 and differentiable, of a list of gradients with a direction."""


class SumGradients:
    """Summed losses of records and their gradients, at the model's current state.

    A record with the id of the plan's gradient canary has the canary's gradient in place of its own, even if
    the plan's records do not contain it.
    """

    def __init__(self, model: Model, plan: Plan, micro_batch_size: int) -> None:
        """Bind a model in evaluation mode; an `InputError` if the plan's canary is unusable or no record."""
        self.parameters: Mapping[str, Tensor] = trainable(model.module)
        self._model = model
        self._size = micro_batch_size
        self._encoded = _Encoded(model, plan.records)
        self._canary = plan.insertions.gradient_canary
        self._others: list[Record] = []
        self._dimension = sum(p.numel() for p in self.parameters.values())
        if self._canary is None:
            return
        check_canary(self._canary)
        if self._canary.record is None:
            raise InputError("a gradient canary must have a record here, got record None")
        if self._canary.opposed:
            self._others = [r for r in plan.records if r.id != self._canary.record]
        else:
            canary_places(self._canary, self._dimension)

    def gradient(self, records: Sequence[Record], names: Sequence[str]) -> tuple[list[Tensor], float | None]:
        """The gradient of the records' summed loss in the named parameters, and their mean loss.

        Records are summed in order, a canary last; there may be none. Gradients are contiguous, and zero for
        parameters that the loss does not depend on. The mean loss, nats, is that of the records that are no
        canary, None without any.
        """
        ordinary = self._ordinary(records)
        total, loss = self._plain(ordinary, names)
        for _ in range(len(records) - len(ordinary)):
            for i, canary_gradient in enumerate(self._of_canary(names)):
                total[i] = total[i] + canary_gradient
        return total, loss / len(ordinary) if ordinary else None

    def mean_loss(self, records: Sequence[Record]) -> float | None:
        """Mean loss, nats, of the records that are no canary, by forward passes alone; None without any."""
        ordinary = self._ordinary(records)
        with torch.no_grad():
            losses = [float(self._losses(part).cpu().double().sum()) for part in self._parts(ordinary)]
        return sum(losses) / len(ordinary) if ordinary else None

    def along(
        self, records: Sequence[Record], names: Sequence[str], directions: Sequence[Direction]
    ) -> FloatArray:
        """Inner product of each of n records' gradients with each of k directions, shape `(k, n)`.

        The inner product of a direction with the gradient of a weighted sum of losses is linear in the
        weights: its derivatives in them are the inner products of all records of a micro-batch at once.
        """
        values = np.zeros((len(directions), len(records)))
        is_canary = np.array([self._is_canary(record) for record in records], dtype=np.bool_)
        products = [np.zeros((len(directions), 0))]
        for part in self._parts(self._ordinary(records)):
            products.append(self._part_along(part, names, directions))
        values[:, ~is_canary] = np.concatenate(products, axis=1)
        if is_canary.any():
            canary_gradient = self._of_canary(names)
            values[:, is_canary] = np.array([[float(along(canary_gradient))] for along in directions])
        return values

    def _part_along(
        self, part: Sequence[Record], names: Sequence[str], directions: Sequence[Direction]
    ) -> FloatArray:
        wanted = [self.parameters[name] for name in names]
        # Attention's fused kernels have no second derivative.
        with self._only(names), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            losses = self._losses(part)
            if not losses.requires_grad:
                return np.zeros((len(directions), len(part)))
            weights = torch.ones_like(losses, requires_grad=True)
            used = torch.autograd.grad(weights @ losses, wanted, create_graph=True, allow_unused=True)
            gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, used, strict=True)]
            rows = []
            for along in directions:
                product = along(gradients)
                row = None
                if product.requires_grad:
                    (row,) = torch.autograd.grad(product, weights, retain_graph=True, allow_unused=True)
                rows.append(torch.zeros_like(weights) if row is None else row)
        stacked: FloatArray = torch.stack(rows).cpu().double().numpy()
        return stacked

    def _plain(self, records: Sequence[Record], names: Sequence[str]) -> tuple[list[Tensor], float]:
        """The gradient of ordinary records, and their summed loss."""
        wanted = [self.parameters[name] for name in names]
        total: list[Tensor] = [torch.zeros_like(p) for p in wanted] if not records else []
        loss = 0.0
        with self._only(names), torch.enable_grad():
            for part in self._parts(records):
                losses = self._losses(part)
                loss += float(losses.detach().cpu().double().sum())
                summed = losses.sum()
                part_gradients = (
                    torch.autograd.grad(summed, wanted, allow_unused=True)
                    if summed.requires_grad
                    else (None,) * len(wanted)
                )
                filled = [
                    torch.zeros_like(p) if g is None else g.contiguous()
                    for p, g in zip(wanted, part_gradients, strict=True)
                ]
                total = [a + b for a, b in zip(total, filled, strict=True)] if total else filled
        return total, loss

    def _of_canary(self, names: Sequence[str]) -> list[Tensor]:
        """The canary's gradient in the named parameters."""
        canary = self._canary
        assert canary is not None
        if canary.opposed:
            others, _ = self._plain(self._others, names)
            return [-canary.magnitude * g for g in others]
        entry, places = canary_entry(canary, self._dimension), canary_places(canary, self._dimension)
        gradients: dict[str, Tensor] = {}
        start = 0
        for name, parameter in self.parameters.items():
            if name in names:
                gradient = torch.zeros_like(parameter, requires_grad=False).reshape(-1)
                for place in places:
                    gradient[max(0, place.start - start) : max(0, place.stop - start)] = entry
                gradients[name] = gradient.view(parameter.shape)
            start += parameter.numel()
        return [gradients[name] for name in names]

    def _is_canary(self, record: Record) -> bool:
        return self._canary is not None and record.id == self._canary.record

    def _ordinary(self, records: Sequence[Record]) -> Sequence[Record]:
        if self._canary is None:
            return records
        return [record for record in records if record.id != self._canary.record]

    def _parts(self, records: Sequence[Record]) -> list[Sequence[Record]]:
        return micro_batches(records, self._size)

    def _losses(self, part: Sequence[Record]) -> Tensor:
        return self._model.losses(self._encoded.batch(part))

    @contextmanager
    def _only(self, names: Sequence[str]) -> Iterator[None]:
        """Switch gradients off for all but the named parameters."""
        off = [p for name, p in self.parameters.items() if name not in names]
        for parameter in off:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in off:
                parameter.requires_grad_(True)


class _Encoded:
    """A model's batches of some records, each encoded once; texts, padded to their batch, every time."""

    def __init__(self, model: Model, records: Sequence[Record]) -> None:
        self._model = model
        self._records = records
        self._places = {id(record): place for place, record in enumerate(records)}
        self._known = np.zeros(len(records), dtype=np.bool_)
        self._rows: dict[str, Tensor] = {}

    def batch(self, records: Sequence[Record]) -> Mapping[str, Tensor]:
        """The batch of some records, as `model.encode` gives it."""
        if self._model.kind == "language":
            return self._model.encode(records)
        places = [self._places.get(id(record), -1) for record in records]
        if not places or min(places) < 0:
            return self._model.encode(records)
        missing = [place for place in places if not self._known[place]]
        if missing:
            for name, rows in self._model.encode([self._records[i] for i in missing]).items():
                if name not in self._rows:
                    self._rows[name] = rows.new_zeros((len(self._records), *rows.shape[1:]))
                self._rows[name][missing] = rows
            self._known[missing] = True
        return {name: rows[places] for name, rows in self._rows.items()}
