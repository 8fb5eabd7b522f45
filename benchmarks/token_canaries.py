"""What canaries of a new token each audit of a language model, from one training and its answers alone.

DP-SGD on `tiny_gpt2` in three cells: the shipped defaults with the claim (1, 1e-5) kept, and with noise for
(8, 1e-5) under the same claim; half of the records in each of 40 steps at a true (4, 1e-5), claimed as
(1, 1e-5). Beside the bound that decides stands that of mu, for a claim of mu.

Run `python benchmarks/token_canaries.py` (ten minutes), or `--seeds 2`; it resumes. Results go to
`benchmarks/results/token_canaries.json` and `token_canaries.md`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from shared import judged_by_curve, machine, options, quiet, write

from workbench.accounting.certified import calibrate_noise_multiplier
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import claim_of, default_settings, embedded_settings

DELTA, CANARIES = 1e-5, 2000

DEFAULTS = embedded_settings()
LARGE = {
    "steps": 40,
    "sampling_probability": 0.5,
    "optimizer": "sgd",
    "learning_rate": 0.3,
    "candidates": 20,
}
"""A regime in which the sums of the updates hold nearly all that the budget allows of a record."""

CELLS: dict[str, dict[str, Any]] = {
    "claim 1, kept": {"claimed": 1.0, "trained": 1.0},
    "claim 1, trained at 8": {"claimed": 1.0, "trained": 8.0},
    "claim 1, trained at 4, large batches": {"claimed": 1.0, "trained": 4.0, "settings": LARGE},
}


def played(cell: str, seed: int) -> dict[str, Any]:
    """The verdict and the bounds of one game."""
    given = CELLS[cell]
    changes, parameters = dict(given.get("settings", {})), {}
    if given["trained"] != given["claimed"]:
        parameters["noise_multiplier"] = calibrate_noise_multiplier(
            target_epsilon=given["trained"],
            target_delta=DELTA,
            sampling_probability=changes.get("sampling_probability", DEFAULTS.sampling_probability),
            steps=changes.get("steps", DEFAULTS.steps),
        )
    settings = default_settings(
        "dp_sgd",
        parameters,
        claim=claim_of("dp_sgd", given["claimed"], DELTA),
        attacks=("token_canaries",),
        attack_parameters={"token_canaries": {"canaries": CANARIES}},
        control=False,
        workers=0,
        seed=seed,
        **changes,
    )
    with tempfile.TemporaryDirectory() as place:
        report = audit_mechanisms(settings, out=Path(place), command="benchmark")
    (game,) = report["subjects"][0]["attacks"]
    bounds = {bound["name"]: float(bound["lower"]) for bound in game["verdict"]["bounds"]}
    curve = judged_by_curve(game, given["claimed"], DELTA, seed=seed)
    auc = next(one["estimate"] for one in game["verdict"]["intervals"] if one["name"] == "auc")
    return {
        "refuted": game["verdict"]["kind"] == "REFUTED",
        "any_family": bounds["one_run"],
        "curve": epsilon_of_delta(curve.bounds[0].lower, DELTA) if curve.bounds[0].lower > 0 else 0.0,
        "auc": float(auc),
        "seconds": report["cost"]["seconds"],
    }


def main() -> None:
    """Play all cells; those of an earlier run are kept."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="games of each cell")
    given = parser.parse_args()
    quiet(given.threads)
    kept = given.out / "token_canaries.json"
    found: dict[str, dict[str, Any]] = json.loads(kept.read_text())["games"] if kept.is_file() else {}
    for seed in range(given.seeds):
        for cell in CELLS:
            games = found.setdefault(cell, {})
            if str(seed) not in games:
                games[str(seed)] = played(cell, seed)
                rows = [_row(cell, list(games.values())) for cell, games in found.items()]
                report = {"machine": machine(), "canaries": CANARIES, "rows": rows, "games": found}
                write(given.out, "token_canaries", report)
                print(cell, seed, games[str(seed)], flush=True)


def _row(cell: str, games: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the games of a cell."""
    means = {name: statistics.mean(game[name] for game in games) for name in ("any_family", "curve", "auc")}
    return {
        "cell": cell,
        "games": len(games),
        "refuted": sum(game["refuted"] for game in games),
        **means,
        "least": min(game["any_family"] for game in games),
        "most": max(game["any_family"] for game in games),
        "seconds": statistics.median(game["seconds"] for game in games),
    }


if __name__ == "__main__":
    main()
