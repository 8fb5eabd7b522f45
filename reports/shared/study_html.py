"""The page of a study: one self-contained HTML file, the replication verdicts first, then tables and figures.

Nothing is fetched. One inline script filters and folds; its hash stands in the page's own content security
policy, which forbids every other. Without it all is visible. Equal reports give equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

from markupsafe import Markup

from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.reports.shared.page import rendered, source
from workbench.reports.shared.study_view import study_view
from workbench.studies.report import StudyReport


@register("report", "study_html")
def study_html(*, report: StudyReport, context: Mapping[str, JSON]) -> str:
    """One self-contained HTML page of a study's report.

    Args:
        report: What to show. All its text is escaped; the drawings of its figures are taken as markup.
        context: What surrounds it, each where known: `experiments` (numbers of done, failed, missing),
            `versions` and `hardware` (names and values), `command`, `created`, `store`, `confidence`,
            `replication`, `study_notes`, `source_sha256`; anything else is listed by its name.

    Returns:
        The page, deterministic in its arguments.

    Raises:
        InputError: two tables, figures or findings have one id, or a table's rows do not fit its columns.
    """
    script = source("study.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    view = study_view(report, context)
    return rendered("study.html.j2", {**view, "script": Markup(script), "script_hash": f"sha256-{digest}"})
