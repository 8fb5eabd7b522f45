"""`workbench.watch` for the Trainer of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from workbench.audit.watched.record import Watch, watch
from workbench.interfaces import Claim


class WatchCallback(TrainerCallback):  # type: ignore[misc]
    """Watches the optimizer of a Trainer from the beginning of its training to the end.

    `Trainer(..., callbacks=[workbench.WatchCallback(claim=..., file=...)])`

    Args:
        records: Number of records; that of the training data set where it has a length, if None.
        claim, clip, divisor, noise_multiplier, file, confidence: As in `workbench.watch`.

    Attributes:
        run: The watched run; None before the training begins.
    """

    def __init__(
        self,
        *,
        claim: str | Claim | None = None,
        records: int | None = None,
        clip: float | None = None,
        divisor: float | None = None,
        noise_multiplier: float | None = None,
        file: str | Path | None = "run.json",
        confidence: float = 0.95,
    ) -> None:
        self.run: Watch | None = None
        self._records = records
        self._given: dict[str, Any] = {
            "claim": claim,
            "clip": clip,
            "divisor": divisor,
            "noise_multiplier": noise_multiplier,
            "file": file,
            "confidence": confidence,
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch."""
        records = self._records
        dataset: Any = getattr(kwargs.get("train_dataloader"), "dataset", None)
        if records is None and hasattr(dataset, "__len__"):
            records = len(dataset)
        self.run = watch(kwargs["optimizer"], records=records, **self._given)
        self.run.__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the file."""
        if self.run is not None:
            self.run.__exit__(None, None, None)
