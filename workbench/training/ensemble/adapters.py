"""R pairs of LoRA matrices for each adapted layer of one frozen language model, trained at once.

A pass takes records of any of the models through the frozen layers together, and each record through the A
and B of its own model: y = W x + s B A x, with s the adapter's scale. In the backward pass the error e_t of a
layer's output at position t is known, and with it the gradients of one record,

    in A: sum_t (s B^T e_t) x_t^T        and in B: sum_t e_t (s A x_t)^T,

matrices of r rows or columns, with r the rank: to multiply them out costs less than Gram matrices of the
positions do where a text has more than r tokens. A record's norm is theirs, and a step's sums are products of
them with the factors, pass by pass, so that memory grows with a pass and not with R.

Texts of similar length share a pass. They are padded on the right, where a causal model never looks, and the
output layer is applied only where a token is predicted, some positions at a time: errors follow from the
probabilities, and no logits are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.core.errors import UnsupportedError
from workbench.interfaces import FloatArray, IntArray, Model, Record
from workbench.training.ensemble.stacked import Factors, twin_of, write_flat
from workbench.training.flat import FlatLayout, squared_norms
from workbench.training.hugging_face import backbone_and_output
from workbench.training.logits import two_parts
from workbench.training.lora import lora_pairs
from workbench.training.models import LanguageModel
from workbench.training.per_record import per_record_signals

TOKENS_AT_ONCE = 1024
"""Tokens in one pass, unless one text has more."""

NUMBERS_AT_ONCE = 1 << 25
"""Entries of per-record gradients in one pass, 128 MiB, unless one record has more."""

LOGITS_AT_ONCE = 1 << 18
"""Logits in memory at once, 1 MiB, which a processor's cache holds; but of no fewer than `_FEWEST` tokens."""

_FEWEST = 64

_TOLERANCE = 1e-3
"""Of gradients against those of the model by itself, relative to their norm; float32 differs by some 1e-6."""


@dataclass(frozen=True)
class _Pass:
    """Records on their way through the layers, and what is collected of them.

    Attributes:
        rows: Each record's own weights, shape `(m, d)`.
        start: What makes autograd run back to the first adapted layer.
        gradients: By place in the flat vector, gradients of shape `(m, numel)`.
    """

    rows: Tensor
    start: Tensor
    gradients: dict[int, tuple[slice, Tensor]]


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A and B of a layer: their places in the flat vector, the rank, and the scale of their product."""

    a: slice
    b: slice
    rank: int
    scale: float


class _AdaptedProduct(torch.autograd.Function):
    """y = W x + s B A x with the A and B of each record; collects their gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, start: Tensor, layer: _AdaptedLayer, run: _Pass) -> Tensor:
        """`x` of shape `(m, length, inputs)`; returns shape `(m, length, outputs)`."""
        a, b = layer.matrices(run.rows)
        flat = x.reshape(-1, x.shape[-1])
        y = flat @ layer.weight if layer.bias is None else torch.addmm(layer.bias, flat, layer.weight)
        y = y.view(*x.shape[:2], -1)
        low = torch.bmm(x, a.transpose(1, 2)).mul_(layer.pair.scale)
        ctx.layer, ctx.run = layer, run
        ctx.save_for_backward(x, low)
        return y.baddbmm_(low, b.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, None, None, None]:
        """The error of x, if anything before it is trained."""
        (error,) = errors
        x, low = ctx.saved_tensors
        layer, run = ctx.layer, ctx.run
        a, b = layer.matrices(run.rows)
        back = torch.bmm(b.transpose(1, 2), error.transpose(1, 2)).mul_(layer.pair.scale)
        # The gradient of B is kept transposed, (r, outputs): it is several times faster so.
        of_a, of_b = torch.bmm(back, x), torch.bmm(low.transpose(1, 2), error)
        run.gradients[layer.pair.a.start] = layer.pair.a, of_a.flatten(1)
        run.gradients[layer.pair.b.start] = layer.pair.b, of_b.transpose(1, 2).flatten(1)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        of_x = (error.reshape(-1, error.shape[-1]) @ layer.weight.t()).view_as(x)
        return of_x.baddbmm_(back.transpose(1, 2), a), None, None, None


class _AdaptedLayer(nn.Module):
    """A frozen linear layer with the adapters of all models, in the place of peft's layer with one."""

    def __init__(self, base: nn.Module, pair: _Pair, passes: list[_Pass]) -> None:
        """`base`: `nn.Linear` or transformers' `Conv1D`. `passes`: ends with the pass that is under way."""
        super().__init__()
        self.pair, self._passes = pair, passes
        weight, bias = getattr(base, "weight"), getattr(base, "bias", None)  # noqa: B009
        # Shape (inputs, outputs), as a product of rows needs it; Conv1D stores it so.
        self.weight: Tensor = weight.detach().t() if isinstance(base, nn.Linear) else weight.detach()
        self.bias: Tensor | None = None if bias is None else bias.detach()

    def matrices(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A of shape `(m, r, inputs)` and B of shape `(m, outputs, r)` in flat rows of shape `(m, d)`."""
        rank, (inputs, outputs) = self.pair.rank, self.weight.shape
        return rows[:, self.pair.a].view(-1, rank, inputs), rows[:, self.pair.b].view(-1, outputs, rank)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for records of shape `(m, length, inputs)`."""
        run = self._passes[-1]
        if x.ndim != 3 or len(x) != len(run.rows):
            raise UnsupportedError(
                f"an ensemble needs inputs of shape (records, length, features), got {tuple(x.shape)}"
            )
        made: Tensor = _AdaptedProduct.apply(x, run.start, self, run)  # type: ignore[no-untyped-call]
        return made


class _Texts:
    """Encoded texts: tokens `(n, length)`, padded on the right, and the length of each, `(n,)`."""

    def __init__(self, batch: Mapping[str, Tensor]) -> None:
        self.batch = batch
        self.lengths: IntArray = batch["attention_mask"].sum(1).cpu().numpy()

    def passes(self, places: IntArray, most: int) -> Iterator[IntArray]:
        """Cuts texts into passes by length, the shortest first.

        `places`: a text's index each time that it takes part, shape `(n,)`. `most`: texts in a pass. Yields
        indices into `places`; each occurs once.
        """
        lengths = self.lengths[places]
        order = np.argsort(lengths, kind="stable")
        start = 0
        for stop in range(1, len(order) + 1):
            if stop < len(order):
                count = stop + 1 - start
                if count <= most and count * lengths[order[stop]] <= TOKENS_AT_ONCE:
                    continue
            yield order[start:stop]
            start = stop

    def tokens(self, places: IntArray) -> tuple[Tensor, Tensor]:
        """Tokens of these texts, padded to the longest of them, and their lengths."""
        lengths = self.lengths[places]
        ids = self.batch["input_ids"]
        chosen = torch.from_numpy(places).to(ids.device)
        return ids[chosen, : int(lengths.max())], torch.from_numpy(lengths).to(ids.device)


class StackedAdapters:
    """R sets of LoRA matrices over one frozen language model; implements `Stacked`."""

    def __init__(self, model: Model, weights: Tensor, records: Sequence[Record]) -> None:
        """Take the base of a model with an adapter, and encode the pool.

        Args:
            model: A `LanguageModel` whose trainable parameters are LoRA matrices; it stays as it is.
            weights: Shape `(R, d)`; read at every call.
            records: The pool.

        Raises `UnsupportedError`: the model is no such, its adapted layers or its output are not linear, or
        its gradients are not those of the model by itself.
        """
        if type(model) is not LanguageModel:
            raise UnsupportedError(f"an ensemble trains adapters of language models, got {model.name!r}")
        self._model, self._weights = model, weights
        self._texts = _Texts(model.encode(records))
        self._passes: list[_Pass] = []
        self._backbone, self._output = self._parts_of(model)
        self._most = max(1, NUMBERS_AT_ONCE // weights.shape[1])
        self._check()

    def _parts_of(self, model: LanguageModel) -> tuple[nn.Module, nn.Linear]:
        """The backbone of a copy with stacked adapters, and the output layer."""
        if two_parts(model.module, {name: rows[:1] for name, rows in self._texts.batch.items()}) is None:
            raise UnsupportedError(f"model {model.name!r} is not a backbone with an output layer on top")
        module = twin_of(model).module
        places = FlatLayout.of(module).places
        for name_a, name_b in lora_pairs(places):
            path = name_a.partition(".lora_A.")[0]
            layer: Any = module.get_submodule(path)
            if not _is_linear(layer.base_layer):
                kind = type(layer.base_layer).__name__
                raise UnsupportedError(f"an ensemble trains adapters of linear layers, got {kind}")
            (place_a, shape), (place_b, _) = places[name_a], places[name_b]
            (scale,) = layer.scaling.values()
            pair = _Pair(a=place_a, b=place_b, rank=shape[0], scale=scale)
            module.set_submodule(path, _AdaptedLayer(layer.base_layer, pair, self._passes))
        parts = backbone_and_output(module)
        assert parts is not None
        backbone, output = parts
        if type(output) is not nn.Linear:
            raise UnsupportedError(f"an ensemble needs a linear output layer, got {type(output).__name__}")
        return backbone, output

    def _check(self) -> None:
        """Compare the gradients of the shortest and the longest text with those of the model by itself.

        At random weights: what hangs on B cannot be seen at its initial zeros.
        """
        twin, order = twin_of(self._model), np.argsort(self._texts.lengths)
        generator = torch.Generator().manual_seed(0)  # The caller's streams stay untouched.
        flat = torch.randn(self._weights.shape[1], generator=generator).mul_(0.02).to(self._weights)
        write_flat(twin.module, flat)
        places = np.unique(order[[0, -1]])
        expected = per_record_signals(twin, {k: v[places] for k, v in self._texts.batch.items()})
        _, gradients = self._run(*self._texts.tokens(places), flat.expand(len(places), -1), learns=True)
        rows = torch.zeros(len(places), len(flat)).to(flat)
        for place, part in gradients:
            rows[:, place] = part
        difference = torch.linalg.vector_norm(rows - expected.gradients())
        if not difference <= _TOLERANCE * torch.linalg.vector_norm(expected.norms()):
            raise UnsupportedError(
                f"an ensemble disagrees with autograd on the adapters of model {self._model.name!r}"
            )

    def add_sums(
        self, indices: IntArray, sizes: IntArray, factors: Factors | None, total: Tensor
    ) -> FloatArray:
        """See `Stacked`."""
        owners, columns = np.nonzero(np.arange(indices.shape[1]) < sizes[:, None])
        places, summed = indices[owners, columns], np.zeros(len(sizes))
        for part in self._texts.passes(places, self._most):
            rows, row_of = np.unique(owners[part], return_inverse=True)
            models = torch.from_numpy(rows).to(total.device)
            own = self._weights[torch.from_numpy(owners[part]).to(total.device)]
            losses, gradients = self._run(*self._texts.tokens(places[part]), own, learns=True)
            # A row a model, in which its records have their factors.
            shares = losses.new_zeros(len(rows), len(part))
            shares[row_of, np.arange(len(part))] = 1.0 if factors is None else factors(_norms(gradients))
            sums = torch.zeros_like(total[: len(rows)])
            for place, gradient in gradients:
                sums[:, place] = shares @ gradient
            total.index_add_(0, models, sums)
            np.add.at(summed, owners[part], losses.cpu().double().numpy())
        return summed

    def losses(self, records: Sequence[Record]) -> FloatArray:
        """See `Stacked`."""
        texts, count = _Texts(self._model.encode(records)), len(self._weights)
        owners = np.repeat(np.arange(count), len(records))
        places = np.tile(np.arange(len(records)), count)
        found = np.zeros(len(places))
        for part in texts.passes(places, self._most):
            own = self._weights[torch.from_numpy(owners[part]).to(self._weights.device)]
            losses, _ = self._run(*texts.tokens(places[part]), own, learns=False)
            found[part] = losses.cpu().double().numpy()
        return found.reshape(count, len(records))

    def _run(
        self, ids: Tensor, lengths: Tensor, rows: Tensor, *, learns: bool
    ) -> tuple[Tensor, list[tuple[slice, Tensor]]]:
        """Losses of texts, each under its own row of weights, and, if it learns, their gradients by place.

        `ids`: shape `(m, length)`. `rows`: shape `(m, d)`. Returns shapes `(m,)` and `(m, numel)`.
        """
        run = _Pass(rows, torch.zeros(1, device=ids.device, requires_grad=learns), {})
        self._passes.append(run)
        try:
            with torch.set_grad_enabled(learns):
                hidden = self._backbone(input_ids=ids, use_cache=False)[0]
            losses, errors = self._predicted(hidden.detach(), ids, lengths, learns=learns)
            if learns:
                hidden.backward(errors)
        finally:
            self._passes.pop()
        return losses, list(run.gradients.values())

    def _predicted(
        self, hidden: Tensor, ids: Tensor, lengths: Tensor, *, learns: bool
    ) -> tuple[Tensor, Tensor]:
        """Mean losses of the texts, shape `(m,)`, and their gradients in the hidden states."""
        counts = lengths - 1
        at_record, at = torch.nonzero(
            torch.arange(ids.shape[1], device=ids.device) < counts[:, None], as_tuple=True
        )
        states, targets = hidden[at_record, at], ids[at_record, at + 1, None]
        shares = 1.0 / counts.to(states)[at_record]
        losses, of_states = torch.zeros_like(shares), torch.zeros_like(states)
        weight, bias = self._output.weight.detach(), self._output.bias
        width = max(_FEWEST, LOGITS_AT_ONCE // len(weight))
        for start in range(0, len(states), width):
            part = slice(start, start + width)
            logits = nn.functional.linear(states[part], weight, None if bias is None else bias.detach())
            # The normaliser from the largest probability, which is never too small for a logarithm.
            difference = logits.amax(1) - logits.gather(1, targets[part])[:, 0]
            error = logits.softmax(1)
            losses[part] = difference - error.amax(1).log_()
            if learns:
                error.scatter_add_(1, targets[part], error.new_full((), -1.0).expand(len(error), 1))
                torch.mm(error, weight, out=of_states[part])
        errors = torch.zeros_like(hidden)
        errors[at_record, at] = of_states.mul_(shares[:, None])
        return hidden.new_zeros(len(ids)).index_add_(0, at_record, losses * shares), errors


def _norms(gradients: Sequence[tuple[slice, Tensor]]) -> Tensor:
    """Norm of each record's gradient, shape `(m,)`."""
    squares = torch.stack([squared_norms(part) for _, part in gradients])
    return squares.sum(0).sqrt().to(gradients[0][1])


def _is_linear(layer: nn.Module) -> bool:
    """Whether an adapted layer is a product with a frozen matrix and a bias."""
    from transformers.pytorch_utils import Conv1D

    return type(layer) in (nn.Linear, Conv1D)
