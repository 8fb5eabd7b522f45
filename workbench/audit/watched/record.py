"""Watches an optimizer while it trains, changes nothing, and writes the run as it was to a file.

Before each step a hook reads what a DP optimizer says of its own noise. Records of a batch are counted by the
per-record gradients of Opacus where there are some, else by the first tensor that the model is called with.
Of the first 256 steps, and then of every 32nd, the norm of the gradient that is about to be applied is
read, and draws of noise are seen by wrapping torch's four functions for normal numbers; the numbers drawn are
the same.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from workbench.audit.beyond import Beyond
from workbench.audit.claims import parse_claim
from workbench.audit.replay.composing import judged_guarantee
from workbench.audit.watched.counters import BatchCounter, DrawCounter
from workbench.audit.watched.judging import lower_end
from workbench.audit.watched.run_file import (
    Header,
    RunWriter,
    Step,
    WatchedRun,
    is_read,
    step_line,
)
from workbench.core.arguments import number, whole_number
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.execution.engine import versions
from workbench.interfaces import Claim, Released

FLUSH_SECONDS = 1.0
"""A step's line is written at most so long after it, or before the next step if that comes later."""

MOST_WAITING = 256
"""Lines that wait to be written."""

FIRST_LOOK = 10
"""The claim is looked at after this many steps, and whenever they have become half as many again."""

SHARE_OF_LOOKS = 0.0025
"""Part of the training's time that looks may take; a look that would take more waits, for the end at most."""


FIRST_COMPARED, COMPARED_EVERY = 16, 128
"""Steps around which weights and gradients are compared: the first, and later ones now and then."""

_WIDE = frozenset((torch.float32, torch.float64))


class ClaimExceededWarning(UserWarning):
    """The training that goes on has spent more than is claimed."""


def watch(
    optimizer: Optimizer,
    *,
    claim: str | Claim | None = None,
    records: int | None = None,
    clip: float | None = None,
    divisor: float | None = None,
    noise_multiplier: float | None = None,
    file: str | Path | None = "run.json",
    confidence: float = 0.95,
) -> Watch:
    """A context manager that records each step of an optimizer, and leaves the training as it is.

    Args:
        optimizer: Of torch; Opacus' `DPOptimizer`, or the one inside it, or one that Accelerate prepared.
        claim: As `workbench audit --claim` takes it; a `ClaimExceededWarning` says when it is exceeded.
        records: Number N of records that it trains on.
        clip: Norm to which each record's gradient is clipped. Opacus says this and the next two itself.
        divisor: What the sum of clipped gradients and noise is divided by, such as the expected batch size.
        noise_multiplier: Scale of the noise over `clip`.
        file: Where the run is written, for `workbench audit --run`; None for nowhere.
        confidence: Of the warning.

    Raises:
        InputError: an argument is out of range, or the file cannot be written, or is something else.

    >>> layer = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    >>> with watch(optimizer, file=None) as run:
    ...     layer(torch.ones(3, 2)).sum().backward()
    ...     optimizer.step()
    >>> len(run.steps), run.steps[0].batch
    (1, 3)
    """
    held = parse_claim(claim, released=Released.EVERY_UPDATE) if isinstance(claim, str) else claim
    positive = {"clip": clip, "divisor": divisor, "noise_multiplier": noise_multiplier}
    stated = {
        name: number(name, value, above=0, below=math.inf)
        for name, value in positive.items()
        if value is not None
    }
    if records is not None:
        stated["records"] = whole_number("records", records, least=1)
    number("confidence", confidence, above=0.5, below=1)
    return Watch(optimizer, claim=held, stated=stated, file=file, confidence=confidence)


class Watch:
    """A run that is being watched, or was.

    Attributes:
        header: What holds for all of it.
        steps: So far.
        exceeded: The first step after which the claim was seen to be exceeded, and the epsilon spent at least
            by then; None where it was not.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        claim: Claim | None,
        stated: Mapping[str, Any],
        file: str | Path | None,
        confidence: float,
    ) -> None:
        self._steps: list[Step] = []
        self.exceeded: tuple[int, float] | None = None
        self._private, self._inner = _unwrapped(optimizer)
        parameters = _parameters(self._inner)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        named = type(self._private or self._inner)
        self.header = Header(
            optimizer=f"{named.__module__}.{named.__qualname__}",
            parameters=sum(p.numel() for p in parameters),
            processes=torch.distributed.get_world_size() if distributed else 1,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions(("torch", "opacus", "transformers")),
            **stated,
        )
        writes = file is not None and not (distributed and torch.distributed.get_rank())
        self._file = Path(file) if writes and file is not None else None
        self._writer: RunWriter | None = None
        self._batches = BatchCounter(parameters)
        self._draws = DrawCounter(parameters)
        self._beyond = Beyond(self._inner, parameters)
        self._count = 0
        self._waiting: list[tuple[dict[str, Any], Sequence[Tensor]]] = []
        self._written_steps: list[dict[str, Any]] = []
        self._looks = _Looks(claim, self.header, 1.0 - confidence)
        self._stack = ExitStack()
        self._after: Any = None
        self._written, self._values, self._reads = 0.0, 0, True

    def __enter__(self) -> Watch:
        """Hook the optimizer, and begin the file."""
        if self._file is not None:
            self._writer = RunWriter(self._file, self.header)
        self._stack.callback(self._inner.register_step_pre_hook(self._before_step).remove)
        self._stack.callback(self._unhook_after)
        self._stack.enter_context(self._draws)
        self._stack.enter_context(self._batches)
        if self._private is not None:
            self._batches.follow(self._private)
        self._written = time.perf_counter()
        self._looks.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the hooks off, and end the file."""
        self._stack.close()
        self._flush()
        self.exceeded = self.exceeded or self._looks.look(self.run())
        if self._writer is not None:
            self._writer.close("finished" if kind is None else kind.__name__)
            self._writer = None

    @property
    def steps(self) -> Sequence[Step]:
        """So far, without those whose lines wait to be written."""
        self._steps += [Step(**seen) for seen in self._written_steps]
        self._written_steps.clear()
        return self._steps

    def run(self) -> WatchedRun:
        """The steps so far, as `workbench audit --run` would read them."""
        self._flush()
        return WatchedRun(header=self.header, steps=self.steps)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._private is None and not self._count:
            self._private = _caller_around(optimizer)
            if self._private is not None:
                self._batches.follow(self._private, is_clipping=True)
        self._count = step = self._count + 1
        norms: Sequence[Tensor] = ()
        if self._reads:
            gradients = list(_gradients(optimizer))
            norms, self._values = _norms(gradients), sum(map(Tensor.numel, gradients)) or self._values
        values = self._values if norms or _has_gradient(optimizer) else 0
        batch, counted = self._batches.taken()
        seen: dict[str, Any] = {"step": step, "batch": batch, "counted": counted, "values": values}
        if self._reads:
            seen["draws"], seen["std"] = self._draws.taken(values)
        self._reads = is_read(step + 1)
        self._draws.listen(self._reads)
        looks = step <= FIRST_COMPARED or step % COMPARED_EVERY == 0
        if looks or self._after is not None:
            self._compare(looks)
        seen["lr"] = _finite(optimizer.param_groups[0].get("lr"))
        seen["beyond"] = self._beyond.seen
        if self._private is not None:
            seen.update(_settings(self._private))
        self._waiting.append((seen, norms))
        now = time.perf_counter()
        if now - self._written > FLUSH_SECONDS or len(self._waiting) >= MOST_WAITING:
            self._flush()
        if step >= self._looks.next and self._looks.is_due():
            self.exceeded = self._looks.look(self.run())

    def _compare(self, looks: bool) -> None:
        """What should not have changed with what was; and, where it looks, again after the step."""
        self._unhook_after()
        self._beyond.before(looks=looks)
        if looks:
            self._after = self._inner.register_step_post_hook(self._after_step)

    def _unhook_after(self) -> None:
        if self._after is not None:
            self._after.remove()
            self._after = None

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._beyond.after()

    def _flush(self) -> None:
        """Write the lines that wait."""
        numbers = iter(_numbers([norm for _, norms in self._waiting for norm in norms]))
        fresh = []
        for seen, norms in self._waiting:
            if norms:
                seen["norm"] = _finite(math.hypot(*islice(numbers, len(norms))))
            fresh.append(seen)
        self._waiting.clear()
        self._written_steps += fresh
        if self._writer is not None and fresh:
            self._writer.append([step_line(seen) for seen in fresh])
        self._written = time.perf_counter()


class _Looks:
    """Compares the epsilon spent so far with the claim, now and then, and warns once.

    The j-th look may err with probability 6 / (pi j)^2 of the whole error, which sums to it over all looks.
    When a look is due depends on steps and time, not on what is seen.

    `next`: The first step after which it may be.
    """

    def __init__(self, claim: Claim | None, header: Header, error: float) -> None:
        self._claim, self._error = claim, error
        self.next, self._count, self._last, self._spent, self._began = FIRST_LOOK, 0, 0.0, 0.0, 0.0
        if claim is not None:  # How long a look takes; and an unsuitable claim is refused here.
            held = replace(header, records=100, noise_multiplier=header.noise_multiplier or 1.0)
            steps = tuple(Step(step=step, batch=10 + step) for step in range(1, FIRST_LOOK + 1))
            for _ in range(2):  # The first is slower.
                started = time.perf_counter()
                lower_end(WatchedRun(header=held, steps=steps), claim, error)
                self._last = time.perf_counter() - started

    def begin(self) -> None:
        """The training begins."""
        self._began = time.perf_counter()

    def is_due(self) -> bool:
        """Whether to look after a step from `next` on."""
        return self._claim is not None and self._spent + self._last <= SHARE_OF_LOOKS * (
            time.perf_counter() - self._began
        )

    def look(self, run: WatchedRun) -> tuple[int, float] | None:
        """The last step and the epsilon, where the claim is exceeded."""
        if self._claim is None or not run.steps:
            return None
        started, steps = time.perf_counter(), len(run.steps)
        self._count += 1
        self.next = math.ceil(1.5 * steps)
        try:
            lower, _, _ = lower_end(run, self._claim, self._error * 6 / (math.pi * self._count) ** 2)
        except (UnsupportedError, InconclusiveError):  # Out of the range of certified bounds.
            return None
        self._last = time.perf_counter() - started
        self._spent += self._last
        guarantee = judged_guarantee(self._claim)
        if lower <= guarantee.epsilon:
            return None
        self._claim = None
        said = "no finite epsilon" if math.isinf(lower) else f"epsilon >= {lower:.4g}"
        warnings.warn(
            f"step {steps}: the training has {said} at delta = {guarantee.delta:g}, and the claim is epsilon "
            f"= {guarantee.epsilon:g}",
            ClaimExceededWarning,
            stacklevel=2,
        )
        return steps, lower


def _unwrapped(optimizer: Any) -> tuple[Any, Optimizer]:
    """The optimizer of Opacus, None where there is none, and torch's own within it."""
    private = None
    while True:
        inner = getattr(optimizer, "original_optimizer", None)
        if inner is not None:
            private = optimizer if private is None and hasattr(optimizer, "clip_and_accumulate") else private
        else:
            inner = getattr(optimizer, "optimizer", None)  # Accelerate's
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer must be one of torch, got {type(optimizer).__name__}")
    return private, optimizer


def _caller_around(optimizer: Optimizer) -> Any:
    """The optimizer of Opacus that is calling this one, or None."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if getattr(caller, "original_optimizer", None) is optimizer and hasattr(
            caller, "clip_and_accumulate"
        ):
            return caller
    return None


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _gradients(optimizer: Optimizer) -> Iterator[Tensor]:
    """As they are about to be applied; of a sparse one its values."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                yield gradient.coalesce().values() if gradient.is_sparse else gradient


def _has_gradient(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _settings(private: Any) -> dict[str, float]:
    """What a DP optimizer of Opacus itself says of this step."""
    if not type(private).__module__.startswith("opacus."):
        return {}
    try:
        noise, clip, divisor = float(private.noise_multiplier), float(private.max_grad_norm), 1.0
        if private.loss_reduction == "mean":
            divisor = float(private.expected_batch_size) * _accumulated(private)
    except (TypeError, ValueError):  # A number for each layer, or no per-record gradients.
        return {}
    is_usable = 0 <= noise < math.inf and 0 < clip < math.inf and 0 < divisor < math.inf
    return {"noise_multiplier": noise, "clip": clip, "divisor": divisor} if is_usable else {}


def _accumulated(private: Any) -> int:
    """Backward passes of this step: as the first parameter says if it can, for a look at each takes long."""
    samples = getattr(private.param_groups[0]["params"][0], "grad_sample", None)
    if isinstance(samples, Tensor):
        return 1
    return len(samples) if isinstance(samples, list) else int(private.accumulated_iterations)


@torch.no_grad()
def _norms(gradients: list[Tensor]) -> Sequence[Tensor]:
    """Euclidean norm of each, in 32 bits at least; on their device, so that nothing waits for it."""
    if not _WIDE.issuperset([g.dtype for g in gradients]):
        gradients = [g if g.dtype in _WIDE else g.float() for g in gradients]
    return torch._foreach_norm(gradients) if gradients else ()


def _numbers(scalars: Sequence[Tensor]) -> list[float]:
    """Their values, in one piece where they are of one kind: each by itself takes longer."""
    if len({(scalar.dtype, scalar.device) for scalar in scalars}) == 1:
        return torch.stack(list(scalars)).tolist()
    return [float(scalar) for scalar in scalars]


def _finite(value: Any) -> float | None:
    found = None if value is None else float(value)
    return found if found is not None and math.isfinite(found) else None
