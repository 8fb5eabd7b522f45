"""A base model that is built by counting, in a module that workers can import."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from workbench.core.errors import InputError
from workbench.studies.bases import BuildProgress, BuildStage, BuildStep


@dataclass
class CountingBase:
    """A base whose files are one file in a folder."""

    name: str
    place: Path
    refuses: bool = False

    def is_built(self) -> bool:
        """Whether it was counted."""
        return (self.place / self.name).exists()

    def build(self, progress: BuildProgress) -> Path:
        """Count."""
        start = BuildStep(name=self.name, stage=BuildStage.TEXT, total=3)
        progress(start)
        if self.refuses:
            raise InputError("the cache is full")
        for step in range(1, 4):
            progress(replace(start, stage=BuildStage.TRAINING, done=step, loss=1 / step))
        (self.place / self.name).touch()
        return self.place
