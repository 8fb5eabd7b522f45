"""Report records to render: built by hand in the shape that the runner writes, with seeded scores."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.checks.published import PublishedCell
from workbench.reports.shared.drawing import charts, radar, roc
from workbench.studies.report import (
    Cell,
    Figure,
    Replication,
    ReplicationFinding,
    StudyReport,
    Table,
    Value,
)

Record = dict[str, Any]

SENTENCES = {
    "REFUTED": (
        "REFUTED: at 98.33 % confidence the claim of (epsilon = 1, delta = 1e-05)-DP (adjacency: add-remove; "
        "released: every update) is false: the loss attack shows epsilon >= 1.83 at delta = 1e-05, where the "
        "claim allows epsilon = 1 at delta = 1e-05."
    ),
    "NOT_REFUTED": (
        "NOT REFUTED: the dirac_canary attack shows epsilon >= 0.2 at 98.33 % confidence, which is "
        "compatible with the claim of (epsilon = 1, delta = 1e-05)-DP (adjacency: add-remove; released: "
        "every update). A perfect attack on this many trials could have shown at most epsilon >= 3.2. This "
        "does not show that the claim is true."
    ),
    "UNDERPOWERED": (
        "UNDERPOWERED: with 40 scores at 95 % confidence even a perfect loss attack could show at most "
        "epsilon >= 2.1, and the claim allows epsilon = 8; "
        "a perfect attack would need about 17890 trials. Nothing is shown."
    ),
    "INVALID": (
        "INVALID: the experiment broke its own assumptions: the AUC is 0.301, significantly below one half"
    ),
}


def claim(guarantee: Mapping[str, Any] | None = None) -> Record:
    form = guarantee or {"currency": "(epsilon, delta)-DP", "epsilon": 1.0, "delta": 1e-5}
    return {
        "guarantee": dict(form),
        "about": "add-remove",
        "released": "every update",
        "source": "the embedded default",
        "assumptions": ["Poisson sampling of the records in each step"],
        "text": "(epsilon = 1, delta = 1e-05)-DP, adjacency: add-remove, released: every update",
    }


def bound(name: str, lower: Any, estimate: Any, *, quantity: str = "epsilon", n: int = 200) -> Record:
    gaussian = name.startswith("gaussian")
    return {
        "name": name,
        "quantity": quantity,
        "lower": lower,
        "estimate": estimate,
        "confidence": 0.9833333333333333,
        "delta": 1e-5 if quantity == "epsilon" else None,
        "family": "Gaussian" if gaussian else "any (epsilon, delta)",
        "trials": "independent" if gaussian else "one-run",
        "assumption": "labels are independent fair coins, and the adversary saw "
        "nothing that depends on them but the release",
        "n": n,
    }


def interval(name: str, estimate: float, half: float) -> Record:
    return {
        "name": name,
        "estimate": estimate,
        "lower": max(estimate - half, 0.0),
        "upper": min(estimate + half, 1.0),
        "confidence": 0.95,
        "assumption": "scores are independent, and identically distributed within each class",
    }


def verdict(kind: str, bounds: list[Record]) -> Record:
    return {
        "kind": kind,
        "sentence": SENTENCES[kind],
        "significance": 0.05,
        "bound": bounds[0] if bounds and kind != "INVALID" else None,
        "bounds": bounds,
        "intervals": [
            interval("auc", 0.612, 0.08),
            interval("advantage", 0.2, 0.1),
            interval("accuracy", 0.59, 0.07),
            interval("tpr_at_fpr_0.01", 0.04, 0.04),
            interval("tpr_at_fpr_0.001", 0.01, 0.02),
        ],
        "trials_needed": 17890 if kind == "UNDERPOWERED" else None,
        "reasons": ["the AUC is 0.301, significantly below one half"] if kind == "INVALID" else [],
    }


def attack(name: str, *, kind: str, n: int, shift: float, release: bool = False, seed: int = 0) -> Record:
    generator = np.random.default_rng(seed)
    members = generator.random(n) < 0.5
    scores = generator.normal(size=n) + shift * members
    lower = {"REFUTED": 1.83, "NOT_REFUTED": 0.2, "UNDERPOWERED": 0.0, "INVALID": 0.0}[kind]
    bounds = [bound("one_run", lower, lower + 0.4, n=n), bound("gaussian_location", lower / 2, lower, n=n)]
    return {
        "attack": name,
        "game": {
            "description": "A fair coin chose each candidate's membership; the adversary saw the trained "
            "model and the record, and never the coins.",
            "trials": "independent" if release else "one-run",
            "prior": 0.5,
            "released": "every update" if release else "final weights",
            "family": "Poisson-subsampled Gaussian" if release else "any (epsilon, delta)",
            "steps": 40 if release else 1,
            "sampling_probability": 0.25 if release else 1.0,
        },
        "verdict": verdict(kind, bounds),
        "scores": scores.tolist(),
        "members": members.tolist(),
        "details": {"midpoint_threshold": 0.31, "separation": "inf"},
        "cost": {"seconds": 3.21, "peak_memory_mb": 812.5},
        "seeds": {"attack": 1234},
    }


def subject(name: str, role: str, attacks: list[Record], *, losses: bool = True) -> Record:
    generator = np.random.default_rng(5)
    curve = (5.0 - 0.03 * np.arange(40) + 0.1 * generator.normal(size=40)).tolist()
    curve[7] = "nan"
    metrics = {
        "train_perplexity_before": 148.2,
        "train_perplexity_after": 61.7,
        "test_perplexity_before": 147.9,
        "test_perplexity_after": 63.0,
        "noise_multiplier": 2.417,
    }
    return {
        "name": name,
        "role": role,
        "claim": claim(),
        "own_claim": {"guarantee": {"currency": "none"}} if role == "control" else claim(),
        "verdict": {**attacks[0]["verdict"], "bounds": [], "intervals": []},
        "metrics": metrics if losses else {},
        "losses": curve if losses else [],
        "parameters": {"steps": 40, "model": "tiny_gpt2", "attack_parameters": {"lira": {"shadows": 8}}},
        "attacks": attacks,
        "cost": {"seconds": 61.2, "peak_memory_mb": 900} if losses else {},
    }


def report(subjects: list[Record]) -> Record:
    return {
        "schema": 1,
        "kind": "audit",
        "workbench_version": "0.1.0",
        "versions": {"python": "3.11.9", "torch": "2.13.0", "transformers": "5.23.0", "numpy": "2.4.6"},
        "hardware": {"cpu": "A processor @ 2.00GHz", "cores": 2, "memory_gb": 24},
        "created": "2026-01-01T00:00:00Z",
        "command": "workbench audit --out audit --claim epsilon=1,delta=1e-5,adjacency=add-remove",
        "seed": 0,
        "exit_code": 1,
        "claim": subjects[0]["claim"],
        "verdict": subjects[0]["verdict"],
        "subjects": subjects,
        "cost": {"seconds": 151.2},
    }


def full_report(kind: str = "NOT_REFUTED") -> Record:
    """A trained subject with three attacks, and its control."""
    attacks = [
        attack("dirac_canary", kind=kind, n=2000, shift=0.35, release=True, seed=1),
        attack("loss", kind=kind, n=200, shift=0.15, seed=2),
        attack("lira", kind=kind, n=200, shift=0.2, seed=3),
    ]
    control = [attack("loss", kind="REFUTED", n=200, shift=2.0, seed=4)]
    return report([subject("dp_sgd", "subject", attacks), subject("non_private", "control", control)])


def scores_report(kind: str = "NOT_REFUTED", *, n: int = 500, shift: float = 0.5) -> Record:
    """Somebody's scores: one subject, no training."""
    return report(
        [subject("scores.csv", "scores", [attack("scores", kind=kind, n=n, shift=shift)], losses=False)]
    )


@pytest.fixture
def records() -> dict[str, Callable[..., Record]]:
    """Builders of records: `full(kind)` and `scores(kind, n=, shift=)`."""
    return {"full": full_report, "scores": scores_report}


HOSTILE = (
    "<script>document.title = 'struck'</script><img src=x onerror=\"document.title = 'struck'\">&{{ 1 }}"
)
STUDY_COLUMNS = ("Perplex. (Mem.)", "Perplex. (Non-Mem.)", "ROC AUC", "Accuracy", "Prec.", "Recall", "F1")


def study_table(number: int, *, rows: int, hostile: str, generator: np.random.Generator) -> Table:
    """Seeded numbers in the form of DP-Weights' Tables 3 to 10; some places are blank."""
    lines = []
    for row in range(rows):
        for model in ("dp_model", "non_dp_model"):
            cells = []
            for place, column in enumerate(STUDY_COLUMNS):
                true = float(generator.uniform(2.0, 9.0) if place < 2 else generator.uniform(0.4, 1.0))
                ours = true + float(generator.normal(scale=0.1))
                paper = PublishedCell(
                    paper="dp_weights",
                    table=f"table-{number}",
                    row=(str(row + 1), model),
                    column=column,
                    printed=f"{true:.2f} ± 0.05",
                    value=round(true, 2),
                    decimals=2,
                    spread=0.05,
                )
                value = Value(estimate=ours, lower=ours - 0.1, upper=ours + 0.1, spread=0.04, n=3)
                gap = ours - true
                difference = Value(estimate=gap, lower=gap - 0.1, upper=gap + 0.1)
                if (row + place) % 11 == 3:
                    cells.append(Cell(paper=paper, why_blank=f"diverged to NaN {hostile}"))
                elif (row + place) % 13 == 5:
                    cells.append(Cell(ours=value, why_blank="the paper prints nan"))
                else:
                    cells.append(Cell(paper=paper, ours=value, difference=difference))
            lines.append(((str(row + 1), model + hostile), tuple(cells)))
    return Table(
        id=f"table-{number}",
        title=f"Results, number {number} {hostile}".strip(),
        place=f"Table {number} (section 8.2)",
        row_headers=("epsilon", "model"),
        columns=STUDY_COLUMNS,
        rows=tuple(lines),
        notes=("Unit of replication: the seed. " + hostile,),
        decimals=dict.fromkeys(STUDY_COLUMNS, 2),
    )


def study_figures(hostile: str, generator: np.random.Generator) -> tuple[Figure, ...]:
    """One figure of each kind."""

    def values(count: int) -> tuple[Value, ...]:
        estimates = generator.uniform(0.4, 1.0, size=count)
        return tuple(
            Value(estimate=float(e), lower=float(e) - 0.05, upper=float(e) + 0.05, n=3) for e in estimates
        )

    spread = "95 % t interval over seeds"
    names = [
        "perplexity, members",
        "perplexity, non-members",
        "ROC AUC",
        "accuracy",
        "precision",
        "recall",
        "F",
    ]
    axes = [
        radar.Axis(name=name + hostile[:8], centre=1.1, rim=0.3, better=radar.Better.LOWER) for name in names
    ]
    labels = [f"DP-SGD{hostile}", "DP-Weights", "fine-tuned"]
    series = tuple(radar.Series(label=label, values=values(7)) for label in labels)
    panels = [radar.RadarPanel(heading=f"epsilon {low} to {10 * low}", series=series) for low in (1, 10, 100)]
    lines = [charts.Line(label=label, x=tuple(map(float, range(1, 9))), values=values(8)) for label in labels]
    scales = charts.Scales(x_name="epsilon", y_name="ROC AUC")
    groups = [charts.Group(label=label, values=tuple(generator.normal(size=30).tolist())) for label in labels]
    rows = [charts.ForestRow(label=f"batch size {n}, {labels[0]}", difference=values(1)[0]) for n in (5, 10)]
    members = generator.random(400) < 0.5
    scores = generator.normal(size=400) + members
    subject = roc.RocSubject(label=labels[0], scores=tuple(scores.tolist()), included=tuple(members.tolist()))
    return (
        radar.radar("figure-3", f"All epsilons {hostile}", axes, series, spread=spread, place="Figure 3"),
        radar.radars("figure-7", "By range of epsilon", axes, panels, spread=spread, place="Figures 4 to 6"),
        charts.line_chart("lines", "ROC AUC against epsilon", lines, scales, spread=spread),
        charts.strip_chart("strip", "ROC AUC of all", groups, x_name="ROC AUC", unit="one seed"),
        charts.forest_chart("forest", "Differences", rows, x_name="difference", spread=spread, margin=0.1),
        roc.roc_chart("roc", "ROC", [subject]),
    )


def study_report(*, tables: int = 2, rows: int = 2, hostile: bool = False) -> StudyReport:
    """A report with findings of all outcomes, contradictions, tables and figures; numbers are seeded."""
    generator = np.random.default_rng(11)
    text = HOSTILE if hostile else ""
    findings = tuple(
        ReplicationFinding(
            id=f"claim-{place}{text}",
            place="section 4.3.1",
            statement=f"Conclusion {place}: the two are similar. {text}",
            tables=(f"table-{place + 1}",),
            outcome=outcome,
            test=f"TOST over seeds, level 0.05. {text}",
            figures=f"difference 0.1 [−0.2, 0.4], n = 3 {text}",
            paper_contradicts=f"Its Table 2. {text}" if place == 0 else "",
        )
        for place, outcome in enumerate(one for one in Replication if one is not Replication.NOT_RUN)
    )
    return StudyReport(
        name="dp_weights",
        title=f"DP-Weights, regenerated {text}".strip(),
        profile="quick",
        tables=tuple(
            study_table(number + 1, rows=rows, hostile=text, generator=generator) for number in range(tables)
        ),
        figures=study_figures(text, generator),
        findings=findings,
        inconsistencies=(f"Tables 5 and 8 print the same numbers. {text}",),
        notes=(f"A stand-in corpus was used. {text}",),
    )


@pytest.fixture
def study() -> Callable[..., StudyReport]:
    """Builder of study reports: `study(tables=, rows=, hostile=)`."""
    return study_report


# --- a real browser ---

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const light = colour => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = part => {
  for (; part; part = part.parentElement) {
    const colour = getComputedStyle(part).backgroundColor;
    if (colour !== 'rgba(0, 0, 0, 0)') return colour;
  }
  return 'white';
};
const ratio = part => {
  const style = getComputedStyle(part), front = part.namespaceURI.endsWith('svg') ? style.fill : style.color;
  const [a, b] = [light(front), light(behind(part.closest('figure') || part))].sort((x, y) => x - y);
  return (b + 0.05) / (a + 0.05);
};
const kinds = 'h1, h2, h3, h4, p, dt, dd, th, td, small, figcaption, .chip, .tag, text';
const parts = [...document.querySelectorAll(kinds)];
return {ratio: Math.min(...parts.map(ratio)), page: light(getComputedStyle(document.body).backgroundColor)};
"""
"""Least contrast of any text with what lies behind it (WCAG 2.2, criterion 1.4.3); the page's luminance."""


def _program(*names: str) -> str:
    found = next((place for name in names if (place := shutil.which(name))), None)
    if found is None:
        reason = f"none of {', '.join(names)} is installed, so the page was not looked at in a browser"
        if os.environ.get("WORKBENCH_REQUIRE_CHROMIUM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Chromium:
    """A headless Chromium, and what a test wants to know of the page in it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def show(
        self, page: Path, width: int, scheme: str = "light", *, script: bool = True, fragment: str = ""
    ) -> None:
        """Open a page at a width, in a colour scheme (`"print"` for paper), with or without scripts."""
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media: dict[str, Any] = {"media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}]}
        if scheme == "print":
            media = {"media": "print", "features": []}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        if fragment:
            self.driver.get("about:blank")  # Else a new fragment alone loads nothing.
        self.driver.get(page.as_uri() + fragment)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script's `return`."""
        return self.driver.execute_script(script, *arguments)

    def forget(self) -> None:
        """Start the logs of requests and complaints afresh."""
        self.driver.get_log("performance")
        self.driver.get_log("browser")

    def requested(self) -> list[str]:
        """Addresses asked for since the last look, by the browser's log: resource timing leaves files out."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [one["params"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        addresses = [str(one["request"]["url"]) for one in sent]
        return [address for address in addresses if not address.startswith("data:,")]

    def complaints(self) -> list[str]:
        """What the console says since the last look."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(
            self.run("return document.scrollingElement.scrollWidth - document.documentElement.clientWidth")
        )

    def contrast(self) -> dict[str, float]:
        """Least contrast of any text (`ratio`), and the luminance of the page (`page`)."""
        seen = self.run(CONTRAST)
        assert isinstance(seen, dict)
        return seen


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all tests of pages; skipped where there is none, unless the environment demands one."""
    selenium = pytest.importorskip("selenium.webdriver")
    options = selenium.ChromeOptions()
    options.binary_location = _program("chromium", "chromium-browser", "google-chrome")
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = selenium.ChromeService(_program("chromedriver"), log_output=os.devnull)
    driver = selenium.Chrome(options=options, service=service)
    try:
        driver.get("about:blank")  # Away from the browser's own start page, which has requests of its own.
        yield Chromium(driver)
    finally:
        driver.quit()
