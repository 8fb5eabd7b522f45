"""Facts about a plan's untrained model that are worked out once: claims ask for them before any training."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from workbench.interfaces import Plan

P = ParamSpec("P")
T = TypeVar("T")

KNOWN_MODELS = 64
"""So many are remembered; then all are forgotten."""


def once_a_model(fact: Callable[Concatenate[Plan, P], T]) -> Callable[Concatenate[Plan, P], T]:
    """Remember what a function finds, for all plans whose models and adapters have the same shapes.

    `fact` depends on nothing else of the plan; its other arguments are told apart by their `repr`.
    """
    known: dict[str, T] = {}

    def remembered(plan: Plan, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The kept answer for the plan's model and arguments, computed at the first call."""
        adapted = [plan.lora_rank, plan.lora_targets] if plan.adapter == "lora" else []
        model = [plan.model, dict(plan.model_parameters), plan.adapter, adapted, repr(args), repr(kwargs)]
        key = json.dumps(model, sort_keys=True, default=repr)
        if key not in known:
            if len(known) >= KNOWN_MODELS:
                known.clear()
            known[key] = fact(plan, *args, **kwargs)
        return known[key]

    return remembered
