"""Runs a training function under hooks: its gradients and weights before each optimizer step."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from workbench.audit.replay.by_weights import WeightsWatch
from workbench.audit.replay.clipping import clips_told_to
from workbench.audit.replay.draws import Silence, gradients_told_to
from workbench.audit.replay.generators import heard_by, own_generators
from workbench.audit.replay.recording import Modes, Recording
from workbench.audit.replay.watching import EndedError, Watch
from workbench.core.errors import InputError

GRADIENTS = Modes()
"""Steps of torch optimizers, and all else as usual."""


def recorded(
    function: Callable[[], Any],
    *,
    seed: int,
    records: int,
    forced: Recording | None = None,
    like: Recording | None = None,
    share: float | Sequence[float | Tensor] = 0.0,
    still: bool = False,
    disturbs: bool = False,
    modes: Modes = GRADIENTS,
    computed: Sequence[int] = (),
    most: int | None = None,
    keeps_noises: bool = True,
) -> Recording:
    """Call a training function under the hooks.

    Args:
        function: Trains; called without arguments. If it returns a function, that one asks the finished
            model, and returns the result.
        seed: Of the generators of Python, NumPy and torch, for code that does not seed its own.
        records: Number of records that it trains on.
        forced: A run whose gradients are applied instead of this run's own, one a step; a step beyond them
            keeps its own. With it, draws of noise, known by the shapes of its parameters, are their mean.
        share: By what the noise is multiplied, 1 for all of it: one number for all steps, or for each one, or
            of each one a flat tensor of a number for each coordinate.
        still: Also let dropout keep everything, and set the weights after each step to those of `forced`, so
            that from the second step on they are equal whatever the initial ones were; frozen ones too.
        disturbs: Also change all draws that are counted as `Recording.elsewhere`; single uniform numbers,
            which may be a sampler's coins, if `like` says that they are not.
        modes: How the run is read.
        computed: Gradients before each step after which noise may be drawn, if `modes` say so.
        keeps_noises: Whether to keep what tells the draws of noise apart (`Recording.noises`).
        most: Steps after which the training is ended; it then has no result.
        like: A run whose gradients and weights are shared where they are equal, to save memory.

    Raises:
        InputError: the gradients are more than memory holds.
    """
    kept = Recording()
    tracked = modes.tracked
    watch = Watch(kept, forced, like) if tracked is None else WeightsWatch(kept, forced, like, tracked)
    watch.most, watch.public, watch.keeps_noises = most, modes.public, keeps_noises
    watch.whole, watch.follows = modes.whole, modes.follows
    _hook_library_optimizers()
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the user's code may draw from it
    torch.manual_seed(seed)
    with ExitStack() as stack:
        for handle in watch.hooks(still=still):
            stack.callback(handle.remove)
        stack.enter_context(gradients_told_to(watch.before_gradient))
        stack.enter_context(_uncompiled())
        stack.enter_context(_forwards_told_to(watch))
        stack.enter_context(own_generators())
        stack.enter_context(clips_told_to(watch.clips.add))
        if forced is not None:
            shapes = frozenset(shape for layout in forced.layouts for shape in layout.shapes)
            sizes = {size for layout in forced.layouts for size in layout.sizes}
            sizes |= {sum(layout.sizes) for layout in forced.layouts}
            noise = Silence(watch, shapes, frozenset(sizes), records)
            noise.shares = share if isinstance(share, Sequence) else (share,)
            noise.layout = forced.layouts[0] if forced.layouts else noise.layout
            noise.steps = forced.steps
            noise.still, noise.disturbs = still, disturbs
            noise.quiet, noise.centred = modes.quiet, modes.centred
            noise.late, noise.wide = computed if modes.late else (), modes.wide
            noise.disturbs_single = disturbs and like is not None and like.has_single
            noise.disturbs_parts = disturbs and like is not None and like.has_parts
            watch.silence = noise
            stack.enter_context(heard_by(noise))
        try:
            result = function()
            watch.finish()
        except (EndedError, InputError):
            if not watch.has_ended:
                raise
            return kept
        if watch.silence is not None:
            watch.silence.count_initial(watch.called.values())
        watch.called.clear()
        kept.result = result() if callable(result) else result
        kept.elsewhere += len(kept.early)
        kept.buffers, kept.states = watch.buffers(), watch.states()
        if watch.silence is not None:
            watch.silence.end_interval()
            watch.silence.count_parts()
            kept.draws.append(watch.silence.draws())
    return kept


@cache
def _hook_library_optimizers() -> None:
    """Let torch's own optimizers call the hooks, also where only classes derived from them are made.

    torch hooks the `step` of a class when its first optimizer is made. Without this, whether a subclass' call
    of its parent's `step` is seen would depend on what the process did before.
    """
    for kind in (
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
    ):
        kind([torch.nn.Parameter(torch.zeros(1))])


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Run what the user compiles as it is written: compiled code does not hear the hooks."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        yield


@contextmanager
def _forwards_told_to(watch: Watch) -> Iterator[None]:
    handle = register_module_forward_pre_hook(lambda module, args: watch.before_forward(module))
    try:
        yield
    finally:
        handle.remove()
