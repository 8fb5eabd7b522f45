"""Numbers of a PACZero run, and where a setting that the paper prints stands in a study of ours.

A seed draws the universe, the held-out records, the directions, the candidate subsets and the secret: two
runs that differ in the method alone share all of these, and are compared as pairs.

Our one model stands in for the smaller of the paper's two. The paper's T is ours by its share of the longest
run of the same table, because ours are scaled; DP-AggZO's number of directions is whatever ours has.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from workbench.reports.shared.context import Bindings, Context, Place
from workbench.reports.shared.outcomes import NOT_HERE, Number, Parts, Setting
from workbench.studies.experiments import Outcome

HEADLINE, BASELINES, PLATEAU, CLIFF, LONGER = "headline", "baselines", "plateau", "cliff", "cliff, longer"
RATES, CLIP, DECOMPOSITION, DRIFT = "learning rates", "clip", "decomposition", "drift"
AGGREGATION, HYBRID, INSIDE, OUTSIDE = "aggregation", "hybrid", "inside the claim", "outside the claim"
"""Parts of the study."""

MI, ZPL = "PACZero-MI", "PACZero-ZPL"
MEZO, DPZERO, AGGZO = "MeZO", "DPZero", "DP-AggZO"

FT, LORA = "FT", "LoRA"
TRACKS = (FT, LORA)

SENTIMENT, QUESTION = "sentiment", "question"
TASK_WORDS = {SENTIMENT: "sentiment", QUESTION: "questions"}

SCORE, START, DEV, UNANIMITY = "score", "start", "dev", "unanimity"
"""Numbers of a run, in percent: test accuracy or F1, that of the model before it is trained, best dev score,
share of unanimous steps."""

COLUMNS = ("method", "task", "track", "epsilon", "steps", "learning_rate")
"""What tells the runs of a part apart but the seed."""


def trace(outcome: Outcome, name: str) -> np.ndarray:
    """A series over steps, shape `(T,)`; empty where there is none."""
    return np.array(outcome.traces.get(name, ()), dtype=np.float64)


def _score(outcome: Outcome, when: str) -> float:
    metrics = outcome.metrics
    return 100.0 * float(metrics.get(f"test_f1_{when}", metrics.get(f"test_accuracy_{when}", math.nan)))


def _dev(outcome: Outcome) -> float:
    series = trace(outcome, "dev_score")
    known = series[np.isfinite(series)]
    return 100.0 * float(known.max()) if known.size else math.nan


NUMBERS: Mapping[str, Number] = {
    SCORE: lambda outcome: _score(outcome, "after"),
    START: lambda outcome: _score(outcome, "before"),
    DEV: _dev,
    UNANIMITY: lambda outcome: 100.0 * float(outcome.metrics.get("unanimity_rate", math.nan)),
}


def settings(context: Context, part: str, **values: Hashable) -> list[Setting]:
    """The settings of a part's runs, in the study's order, each with all of its columns."""
    return context.outcomes.settings(part, COLUMNS, Setting.of(**values))


def in_words(setting: Setting) -> str:
    """A setting as tables and findings name it: `"PACZero-MI, sentiment, FT, budget 0.33"`."""
    units = {"epsilon": "budget {:g}", "steps": "T = {}", "learning_rate": "rate {:g}"}
    values = {name: setting.get(name) for name in COLUMNS}
    values["task"] = TASK_WORDS.get(values["task"], values["task"])
    return ", ".join(units.get(name, "{}").format(value) for name, value in values.items() if value)


# Where a printed setting stands

METHOD_OF = {"DPZero K=1": DPZERO, "DP-AggZO K=16": AGGZO, "DP-AggZO K=64": AGGZO}
"""What our study calls the methods of Tables 1 and 3."""

TASK_OF = {"sst2": SENTIMENT, "squad": QUESTION}

LONGEST = {DECOMPOSITION: 2000.0, DRIFT: 5000.0}
"""The T of the paper's longest runs, in parts whose runs differ in T."""

SINGLE_TASK = (PLATEAU, CLIFF, LONGER, RATES, CLIP, DECOMPOSITION, DRIFT, AGGREGATION)
"""Parts of sentiment alone."""

HEADLINE_RATE = {FT: 1e-4, LORA: 1e-3}
"""The paper's, by track."""

NO_CLIP = 1e9
"""How Table 8 writes that there is none."""

OTHER_MODEL = "about OPT-6.7B, and our one model stands in for OPT-1.3B"


def budget_of(words: Any) -> float | None:
    """The number of a budget: of `0.33`, `"0.33 nats"` or `"epsilon 2"`; None for 0 and `"none"`."""
    text = str(words).removesuffix(" nats").removeprefix("epsilon ")
    return None if text == "none" else float(text) or None


def place_in(context: Context, parts: Parts, at: Bindings) -> Place:
    """Where a setting of the paper stands among the runs of some parts.

    Args:
        parts: Of the study; the first says how the setting is read.
        at: What applies of `task`, `method`, `track`, `nats` or `epsilon` or `privacy`, `steps`,
            `directions`, `clip` and `rate`, as the paper prints it.
    """
    part = parts if isinstance(parts, str) else next(iter(parts))
    if part == RATES:
        return _rate_place(context, at)
    budget = budget_of(at.get("nats", at.get("epsilon", at.get("privacy", "none"))))
    method = str(at.get("method", ZPL if budget is None else MI))
    setting = Setting.of(
        method=_method(part, method, at),
        task=None if part in SINGLE_TASK else TASK_OF.get(at["task"], at["task"]),
        track=None if part == DECOMPOSITION else at.get("track"),
        epsilon=budget,
    )
    if part not in LONGEST or "steps" not in at:
        return Place(parts=parts, setting=setting)
    steps = _steps(context, part, float(at["steps"]))
    if "constant budget" in method:
        return Place(parts=parts, setting=Setting.of(method=f"{MI}, constant budget"))
    if "adaptive budget" in method:
        return Place(parts=parts, setting=Setting.of(method=MI, epsilon=0.33, steps=steps))
    return Place(parts=parts, setting=setting.but(steps=steps), why=NOT_HERE if steps is None else "")


def _method(part: str, method: str, at: Bindings) -> str | None:
    """What our study calls a method; None in a part of one method."""
    if part == DRIFT:
        return None
    if part == AGGREGATION and int(at.get("directions", 1)) > 1:
        return f"{MI}, K = {at['directions']}"
    if part == CLIP and "clip" in at:
        return f"{MI}, c = {float(at['clip']):g}"
    return METHOD_OF.get(method, method)


def _steps(context: Context, part: str, printed: float) -> int | None:
    """Our T for a printed one: the same share of the longest; None where there is none."""
    ours: list[int] = context.outcomes.values(part, "steps")
    wanted = printed / LONGEST[part] * ours[-1] if ours else math.nan
    return next((steps for steps in ours if abs(steps - wanted) <= 0.02 * wanted), None)


def headline_rate(context: Context, track: str) -> float | None:
    """The learning rate of our headline PACZero-ZPL runs on sentiment."""
    for task in (SENTIMENT, ""):
        known = settings(context, HEADLINE, method=ZPL, track=track, task=task)
        if known:
            return float(known[0].get("learning_rate"))
    return None


def _rate_place(context: Context, at: Bindings) -> Place:
    """A row of Table 8: the run whose rate is the same multiple of our headline rate."""
    track, base = at["track"], headline_rate(context, at["track"])
    method = ZPL if float(at["clip"]) < NO_CLIP else f"{ZPL}, no clip"
    wanted = math.nan if base is None else float(at["rate"]) / HEADLINE_RATE[track] * base
    for setting in settings(context, RATES, method=method, track=track):
        if math.isclose(setting.get("learning_rate"), wanted, rel_tol=1e-6):
            return Place(parts=RATES, setting=setting)
    return Place(parts=RATES, setting=Setting(), why=NOT_HERE)


def place(context: Context, at: Bindings) -> Place:
    """Where a setting of a conclusion stands: in the parts that regenerate the table of its `cell`."""
    if at.get("model") == "6.7B":
        return Place(parts=(), setting=Setting(), why=OTHER_MODEL)
    table = str(at.get("cell", "")).partition(" | ")[0]
    parts: Mapping[str, list[str]] = context.declared.content["own"]["parts"]
    is_twice_as_long = table == "statements" and "steps" in at
    own = (LONGER,) if is_twice_as_long else tuple(parts.get(table, (HEADLINE, BASELINES)))
    return place_in(context, own, at)
