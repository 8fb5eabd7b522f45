"""FERRET's own five models, as its tables print them, as a source of samples for the tests of our runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from workbench.checks.published import PublishedPaper, printed_numbers
from workbench.reports.papers.ferret.cells import printed_column
from workbench.reports.papers.ferret.layout import MODELS, Setting
from workbench.reports.papers.ferret.paper_cells import BY_MODEL
from workbench.reports.papers.ferret.samples import UNIT
from workbench.reports.shared.statistics import Sample


class PrintedRuns:
    """The paper's numbers by model."""

    def __init__(self, paper: PublishedPaper) -> None:
        """Index the cells.

        Args:
            paper: Its tables; those that are not transcribed give no numbers.
        """
        self._cells = {
            (cell.table, cell.row, cell.column): cell for table in paper.tables for cell in table.cells
        }

    def sample(self, setting: Setting, metric: str, models: Sequence[str] | None) -> Sample | str:
        """The paper's own models as a sample; those that cannot be read are left out.

        Args:
            setting: Where.
            metric: Name of a metric.
            models: The paper's names of single models; None for all five.
        """
        names = list(MODELS.values()) if models is None else list(models)
        found = {name: self._value(setting, metric, name) for name in names}
        known = {name: value for name, value in found.items() if not math.isnan(value)}
        if not known:
            return "not printed by model, or not readable"
        return Sample(np.array(list(known.values())), tuple(known), UNIT)

    def _value(self, setting: Setting, metric: str, model: str) -> float:
        """A model's number from the first table that shows it; NaN where none does."""
        row = (setting.variant, str(setting.epochs), model)
        for table in BY_MODEL.get(metric, ()):
            cell = self._cells.get((table, row, f"{metric}, {printed_column(setting.epsilon)}"))
            if cell is not None and not math.isnan(cell.value):
                return printed_numbers(cell.printed)[0].value
        return math.nan
