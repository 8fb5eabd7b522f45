"""Sees a training's gradients and weights before each step of its torch optimizers, and forces them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from workbench.audit.replay.clipping import Clips
from workbench.audit.replay.draws import Silence, first_numbers
from workbench.audit.replay.recording import Layout, Recording, flat, shared, states_of
from workbench.core.errors import InputError

LEAST = 8
"""Draws of fewer numbers may be equal by chance."""

MOST_NUMBERS = 250_000_000
"""Gradient entries that one recording keeps, one gigabyte."""


def require_few(step: int, size: int) -> None:
    """Refuse a run of more numbers than memory is to hold.

    Args:
        step: Number of steps before this one.
        size: Of its gradient.

    Raises:
        InputError: there are too many.
    """
    if (step + 1) * size > MOST_NUMBERS:
        raise InputError(
            f"replay keeps {MOST_NUMBERS:,} gradient entries at most; step {step + 1} of {size:,} parameters "
            "is beyond: replay fewer steps or a smaller model"
        )


class EndedError(BaseException):
    """Ends a training that is to show so many steps only; no handler of errors takes it for one."""


class Watch:
    """The hook before each optimizer step."""

    def __init__(self, kept: Recording, forced: Recording | None, like: Recording | None) -> None:
        self._kept, self._forced, self._like = kept, forced, like
        self._met: set[int] = set()
        self._known: dict[int, int] = {}
        self._held: list[Optimizer] = []
        self._trained: Sequence[Tensor] = ()
        self._models: dict[tuple[int, ...], int] = {}
        self._within: list[int] = []
        self._seen_at: dict[int, int] = {}
        self._own_hooks: dict[int, tuple[dict[int, Any], dict[int, Any]]] = {}
        self.clips = Clips()
        self.names: dict[int, str] = {}
        self.called: dict[int, torch.nn.Module] = {}
        """Modules since the start, or since the training was over, by their ids."""
        self._order: dict[int, Optimizer] = {}
        self.silence: Silence | None = None
        self.public: frozenset[int] = frozenset()
        self.follows = False
        """Whether gradients of such optimizers are compared."""
        self.whole = False
        """Whether parameters that need no gradient at a step are recorded too."""
        self.most: int | None = None
        """Steps after which the training ends."""
        self.has_ended = False
        self.computed = 0
        """Gradients since the last step."""
        self.keeps_noises = True
        self.drawn_after = False
        """Whether numbers of a parameter's shape were drawn after the last step."""
        self._left: Tensor | None = None

    def hooks(self, *, still: bool) -> Iterator[RemovableHandle]:
        """Hook what shows the steps; `still`: and what sets the weights after them."""
        yield register_optimizer_step_pre_hook(self.before_step)
        yield register_optimizer_step_post_hook(self.leave_step)
        if still:
            yield register_optimizer_step_post_hook(self.after_step)

    def before_gradient(self, of: Any, by: Any) -> None:
        """A gradient is about to be computed: of what, and by what; None for all that it follows from."""
        self.computed += 1
        if self.silence is not None:
            self.silence.after_first_gradient = True

    def before_forward(self, module: torch.nn.Module) -> None:
        """A module is about to be called: learn the names of its parameters."""
        self.called.setdefault(id(module), module)
        if id(module) not in self._met:
            self._met.add(id(module))
            self._name(module)

    def _name(self, module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters():
            known = self.names.get(id(parameter), "")
            if len(name) > len(known):
                self.names[id(parameter)] = name

    def named(self, parameters: Sequence[Tensor]) -> tuple[str, ...]:
        """The parameters' names; a module that was called with others in their place has them back by now."""
        if any(id(p) not in self.names for p in parameters):
            for module in self.called.values():
                self._name(module)
        return tuple(self.names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters))

    def finish(self) -> None:
        """The training is over: see what its last step has left."""
        if self._trained:
            self._kept.last = flat([p.detach() for p in self._trained])
            if self._left is not None and self.drawn_after and not self._kept.recognised:
                self._kept.blurred = not torch.equal(self._kept.last, self._left)

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """See the step's gradient, after the optimizer's own hooks, which may add the noise.

        The last of them is wrapped for this step. Within another step of the same optimizer they do not run:
        without a replay torch calls them once.
        """
        if self._is_public(optimizer):
            if self.follows:
                gradients = [p.grad for p in self._recorded_of(optimizer) if p.grad is not None]
                self._kept.others.append(hash(flat(gradients).numpy().tobytes()) if gradients else 0)
            return None
        hooks: OrderedDict[int, Any] = optimizer.__dict__.get("_optimizer_step_pre_hooks", OrderedDict())
        if id(optimizer) in self._within:
            self._own_hooks.setdefault(id(optimizer), (hooks, hooks.copy()))
            hooks.clear()
        if not hooks:
            return self._before_step(optimizer, args, kwargs)
        key = next(reversed(hooks))
        theirs = hooks[key]

        def last(which: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            if key in hooks:
                hooks[key] = theirs
            changed: tuple[Any, Any] | None = theirs(which, args, kwargs)
            return self._before_step(which, *(changed or (args, kwargs))) or changed

        hooks[key] = last
        return None

    def _is_public(self, optimizer: Optimizer) -> bool:
        """Whether its steps are neither recorded nor forced."""
        self._order.setdefault(id(optimizer), optimizer)
        return list(self._order).index(id(optimizer)) in self.public

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """See the step's gradient; one that a closure makes, each time that the step calls it."""
        depth = self._within.count(id(optimizer))
        self._within.append(id(optimizer))
        if not depth:
            self._seen_at.pop(id(optimizer), None)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._see(optimizer, depth)
            return None
        theirs = getattr(closure, "theirs", closure)

        def seen() -> Any:
            loss = theirs()
            self._see(optimizer, depth)
            return loss

        seen.theirs = theirs  # type: ignore[attr-defined]
        if "closure" in kwargs:
            return args, {**kwargs, "closure": seen}
        return (args[0], seen, *args[2:]), kwargs

    def _see(self, optimizer: Optimizer, depth: int) -> None:
        """Keep gradient and weights; force the gradient.

        Args:
            depth: How many steps of the same optimizer's this one is within.
        """
        parameters = self._recorded_of(optimizer)
        kept, like, forced = self._kept, self._like, self._forced
        is_inner = depth > 0
        if forced is not None and kept.steps < forced.steps and forced.inner[kept.steps] and not is_inner:
            return  # The step within this one is what is recorded and forced.
        with torch.no_grad():
            if forced is None and self._seen_at.get(id(optimizer), depth) < depth:
                kept.drop_last()
            self._seen_at[id(optimizer)] = depth
            if id(optimizer) not in self._known:
                self._known[id(optimizer)] = len(kept.layouts)
                self._held.append(optimizer)
                names = self.named(parameters)
                own = tuple(map(id, parameters))
                kept.orders.append(list(self._order).index(id(optimizer)))
                kept.models.append(self._models.setdefault(own, len(self._models)))
                kept.layouts.append(Layout(names, tuple(tuple(p.shape) for p in parameters)))
                if self.silence is not None:
                    kept.early |= self.silence.not_initial(parameters)
            shapes = tuple(tuple(p.shape) for p in parameters)
            kept.changes |= shapes != kept.layouts[self._known[id(optimizer)]].shapes
            step, self._trained = kept.steps, parameters
            for p in parameters:
                if p.grad is not None and p.grad.is_sparse:
                    p.grad = p.grad.coalesce()  # As forced ones are: sums of entries round otherwise.
            if not step and forced is None and like is None:
                kept.frozen = [p.detach().cpu().clone() for p in self._frozen(parameters)]
            gradient = flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters])
            applied, gradient = gradient, self._before_clipping(parameters, gradient)
            require_few(step, gradient.numel())
            kept.optimizers.append(self._known[id(optimizer)])
            kept.absent.append(tuple(p.grad is None for p in parameters))
            kept.inner.append(is_inner)
            kept.computed.append(self.computed)
            self.computed = 0
            kept.rates.append(tuple(_rate(group.get("lr")) for group in optimizer.param_groups))
            kept.gradients.append(shared(gradient, like.gradients if like else (), step))
            is_clipped = forced is None and applied is not gradient
            kept.applied.append(applied if is_clipped else kept.gradients[-1])
            weights = flat([p.detach() for p in parameters])
            kept.weights.append(shared(weights, like.weights if like else (), step))
            if self.silence is not None:
                self.silence.end_interval()
                kept.draws.append(self.silence.draws())
                kept.chosen.append(self.silence.choices)
            if forced is not None and step < forced.steps:
                self._force(parameters, forced, step)
            if self.most is not None and kept.steps >= self.most:
                self.has_ended = True
                raise EndedError

    def leave_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The step is over, and so are those within it."""
        if id(optimizer) in self._within:
            del self._within[len(self._within) - 1 - self._within[::-1].index(id(optimizer)) :]
        if self._within.count(id(optimizer)) <= 1 and id(optimizer) in self._own_hooks:
            hooks, own = self._own_hooks.pop(id(optimizer))
            hooks.update(own)
        if not self._within:
            self.clips.clear()
            is_last = self._forced is not None and self._kept.steps >= self._forced.steps
            if is_last and self._trained and not self._is_public(optimizer):
                self._left = flat([p.detach() for p in self._trained])

    def _before_clipping(self, parameters: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """The step's gradient as it was before its clipping; the given one where that was not the last thing
        done to it, in this run or the forced one.
        """
        forced, step = self._forced, self._kept.steps
        if forced is not None and step < forced.steps and forced.applied[step] is forced.gradients[step]:
            return gradient
        own = self.clips.before(parameters)
        return gradient if own is None else flat(own)

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Set the weights to those that the forced run has before its next step."""
        if self._is_public(optimizer):
            return
        parameters = self._recorded_of(optimizer)
        step = self._kept.steps
        if self._forced is None or step >= self._forced.steps:
            return
        weights = self._forced.weights[step]
        if sum(p.numel() for p in parameters) == weights.numel():
            with torch.no_grad():
                self._set(parameters, weights)
                if self._kept.steps == 1:
                    self._restore_frozen(parameters)

    def _recorded_of(self, optimizer: Optimizer) -> list[Tensor]:
        """What is recorded of an optimizer."""
        own = (p for group in optimizer.param_groups for p in group["params"])
        return [p for p in own if p.requires_grad or self.whole]

    def _set(self, parameters: Sequence[Tensor], weights: Tensor) -> None:
        """Give parameters these weights, in place."""
        parts = torch.split(weights, [p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))

    def _restore_frozen(self, parameters: Sequence[Tensor]) -> None:
        """Give what is not trained the forced run's values."""
        frozen = self._frozen(parameters)
        if self._forced is not None and [p.shape for p in frozen] == [p.shape for p in self._forced.frozen]:
            for parameter, part in zip(frozen, self._forced.frozen, strict=True):
                parameter.copy_(part)

    def _frozen(self, parameters: Sequence[Tensor]) -> list[torch.nn.Parameter]:
        """Parameters of the modules that were called, but for these and functorch's, without numbers."""
        trained = set(map(id, parameters))
        found = {id(p): p for module in self.called.values() for p in module.parameters()}
        return [
            p
            for number, p in found.items()
            if number not in trained and not isinstance(p, UninitializedParameter) and not p.is_meta
        ]

    def _force(self, parameters: Sequence[Tensor], forced: Recording, step: int) -> None:
        gradient = forced.applied[step]
        if sum(p.numel() for p in parameters) != gradient.numel():
            return  # Another optimizer than run A's at this step: the comparison of weights will say so.
        start = 0
        for parameter, is_absent in zip(parameters, forced.absent[step], strict=False):
            part = gradient[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
            if is_absent:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.is_sparse:
                parameter.grad = part.to(parameter).to_sparse(1)
            else:
                parameter.grad.copy_(part)

    def buffers(self) -> tuple[tuple[str, Tensor], ...]:
        """Persistent buffers of the modules that were called after the training, each once."""
        found: dict[int, tuple[str, Tensor]] = {}
        for module in [part for called in self.called.values() for part in called.modules()]:
            for name, buffer in module._buffers.items():
                if buffer is None or buffer.is_meta:
                    continue
                if name not in module._non_persistent_buffers_set:
                    found.setdefault(id(buffer), (name, buffer.detach().cpu().clone()))
        return tuple(found.values())

    def states(self) -> tuple[tuple[str, Tensor], ...]:
        """What the optimizers keep of their parameters."""
        return states_of(self._held)

    def step(self) -> int:
        """Number of steps so far."""
        return self._kept.steps

    def elsewhere(self) -> None:
        """Count a draw that is no noise of a parameter's, no sampler's and no initial weight."""
        self._kept.elsewhere += 1

    def unheard(self) -> None:
        """Count draws of a global generator that were not heard."""
        self._kept.unheard += 1
        self.elsewhere()

    def single(self) -> None:
        """Count single uniform numbers that are no sampler's coins."""
        self._kept.has_single = True
        self.elsewhere()

    def part(self) -> None:
        """Count uniform numbers for some of the records that are no sampler's."""
        self._kept.has_parts = True
        self.elsewhere()

    def repeated(self, count: int) -> None:
        """So many records were drawn at once, some of them twice."""
        self._kept.repeated += count

    def among(self, count: int) -> None:
        """So many coins, places of an order, or options were drawn at once."""
        self._kept.among = max(self._kept.among, count)

    def note(self, kind: str, drawn: Any) -> None:
        """Count a draw of noise."""
        self._kept.recognised[kind] = self._kept.recognised.get(kind, 0) + 1
        self._kept.numbers += int(np.prod(np.shape(drawn)))
        if self.keeps_noises and len(numbers := first_numbers(drawn)) >= LEAST:
            self._kept.noises.append(hash(numbers.tobytes()))


def _rate(value: Any) -> float:
    """A rate of learning; 0 for what is no number, as where an optimizer of the user's has another form."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return 0.0
