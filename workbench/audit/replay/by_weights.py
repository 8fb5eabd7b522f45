"""Sees and forces the steps of a training by its weights, whatever moves them.

Between a gradient and the next call of a model, the weights move: by a torch optimizer or several, by one of
the user's own, by hand, with the noise put on the gradient or on the weights. What they move by is the step's
update. It is read when a model is next called, and the weights are then set to those of another run, in
place, before the model reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import Parameter, UninitializedParameter
from torch.utils.hooks import RemovableHandle

from workbench.audit.replay.recording import Layout, Recording, flat, shared
from workbench.audit.replay.watching import EndedError, Watch, require_few

FULL = 4
"""Bytes of a number whose rounding is small beside what a record moves."""


class WeightsWatch(Watch):
    """Reads the weights of a training's parameters, each time that a model is called.

    A step whose update does not follow from gradients at the weights before it cannot be forced, and the run
    says so (`Recording.untold`): where the weights had moved already when a gradient was computed, moved
    without any, or were read from a copy.
    """

    def __init__(
        self, kept: Recording, forced: Recording | None, like: Recording | None, tracked: frozenset[int]
    ) -> None:
        super().__init__(kept, forced, like)
        self._tracked = tracked
        self._parameters: dict[int, Parameter] = {}
        self._before: dict[int, Tensor] = {}
        self._parts: set[int] = set()
        self._gradients, self._still = 0, False

    def hooks(self, *, still: bool) -> Iterator[RemovableHandle]:
        """Hook what makes parameters."""
        self._still = still
        yield register_module_parameter_registration_hook(lambda module, name, made: self._meet(made))

    def _meet(self, made: object) -> None:
        if isinstance(made, Parameter):
            self._parameters.setdefault(id(made), made)

    def before_forward(self, module: torch.nn.Module) -> None:
        """A model is about to be called: see what the weights have moved by since the last time."""
        super().before_forward(module)
        if id(module) in self._parts:
            return
        self._parts.update(id(part) for part in module.modules() if part is not module)
        for parameter in module.parameters():
            self._meet(parameter)
        self._see_weights(module)

    def before_gradient(self, of: Any, by: Any) -> None:
        """A gradient is about to be computed, by weights that have been seen."""
        super().before_gradient(of, by)
        self._gradients += 1
        if not any(self._are_known(_leaves(of) if by is None else _tensors(by))):
            self._kept.untold = (
                "gradients are not by the weights of a model, but by copies of them, or by others"
            )
        if self._moved():
            self._kept.untold = (
                "a gradient is computed after the weights moved, and no model is called between"
            )

    def finish(self) -> None:
        """The training is over: see its last step."""
        self._see_weights(None)

    def _followed(self) -> list[Parameter]:
        """The parameters whose weights are read, in the order in which they were made."""
        return [
            parameter
            for number, parameter in enumerate(self._parameters.values())
            if (number in self._tracked if self._tracked else parameter.requires_grad)
            and not isinstance(parameter, UninitializedParameter)
            and parameter.is_floating_point()
        ]

    def _moved(self) -> bool:
        with torch.no_grad(), temporarily_clear_interpreter_stack():
            return any(
                id(p) in self._before and not torch.equal(self._before[id(p)], p) for p in self._followed()
            )

    def _see_weights(self, module: torch.nn.Module | None) -> None:
        """Keep what the weights have moved by, and set them to the forced run's."""
        with torch.no_grad(), temporarily_clear_interpreter_stack():
            parameters = self._followed()
            old = [self._before.get(id(p), p) for p in parameters]
            moved = frozenset(
                n for n, (one, p) in enumerate(zip(old, parameters, strict=True)) if not torch.equal(one, p)
            )
            if moved and self._kept.steps + self._gradients:
                if not self._gradients:
                    self._kept.untold = "weights move without a gradient"
                elif module is not None and not all(self._are_known(module.parameters())):
                    self._kept.untold = "a model is called with copies of its weights"
                self._keep(parameters, old, moved)
            for p in parameters:
                if moved or id(p) not in self._before:
                    self._before[id(p)] = p.detach().clone()
            self._gradients = 0 if moved else self._gradients
        if moved and self.most is not None and self._kept.steps >= self.most:
            self.has_ended = True
            raise EndedError

    def _are_known(self, tensors: Iterable[Tensor]) -> list[bool]:
        """Which of these are parameters, or share their memory, as within `torch.func`."""
        known = {p.untyped_storage().data_ptr() for p in self._parameters.values()}
        functorch, found = torch._C._functorch, []
        for given in tensors:
            read = given
            while functorch.is_functorch_wrapped_tensor(read):
                read = functorch.get_unwrapped(read)
            found.append(read.untyped_storage().data_ptr() in known)
        return found

    def _keep(self, parameters: Sequence[Parameter], old: Sequence[Tensor], moved: frozenset[int]) -> None:
        kept, like, forced, step = self._kept, self._like, self._forced, self._kept.steps
        layout = Layout(
            self.named(parameters),
            tuple(tuple(p.shape) for p in parameters),
        )
        if not step:
            kept.layouts, kept.models, kept.orders = [layout], [0], [0]
            if self.silence is not None:
                kept.early |= self.silence.not_initial(old)
            if forced is None and like is None:
                kept.frozen = [p.detach().cpu().clone() for p in self._frozen(parameters)]
        if layout.shapes != kept.layouts[0].shapes:
            kept.untold = "the parameters that move change from step to step"
        if any(p.element_size() < FULL for p in parameters):
            kept.untold = "weights of 16 bits round what moves them"
        weights = flat(old)
        gradient = weights - flat(parameters)
        require_few(step, gradient.numel())
        kept.moved.append(frozenset(self._places(parameters, moved)))
        kept.optimizers.append(0)
        kept.computed.append(self.computed)
        self.computed = 0
        kept.gradients.append(shared(gradient, like.gradients if like else (), step))
        kept.applied.append(kept.gradients[-1])
        kept.weights.append(shared(weights, like.weights if like else (), step))
        if self.silence is not None:
            self.silence.end_interval()
            kept.draws.append(self.silence.draws())
            kept.chosen.append(self.silence.choices)
        if forced is not None and step < forced.steps:
            aim = forced.weights[step + 1] if step + 1 < forced.steps else forced.last
            if aim is not None and aim.numel() == gradient.numel():
                self._set(parameters, aim)
                if self._still and not step:
                    self._restore_frozen(parameters)
        kept.last = flat(parameters)

    def _places(self, parameters: Sequence[Parameter], moved: frozenset[int]) -> Iterator[int]:
        """Places of the moved ones among all parameters."""
        order = {key: place for place, key in enumerate(self._parameters)}
        yield from (order[id(parameters[n])] for n in moved)


def _tensors(given: Any) -> Iterator[Tensor]:
    """The tensors of an argument that is one, or a sequence of them, or names edges of the graph (none)."""
    for one in (given,) if isinstance(given, Tensor) else given:
        if isinstance(one, Tensor):
            yield one


def _leaves(of: Any) -> Iterator[Tensor]:
    """What accumulates a gradient of these tensors."""
    waiting = [tensor.grad_fn for tensor in _tensors(of) if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        fresh = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= fresh
        waiting += fresh
