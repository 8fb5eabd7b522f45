"""The tables of `ferret_step.py`: its ratios beside the paper's, and where a run's time goes."""

from __future__ import annotations

from typing import Any

from workbench.checks.published import published

DP_SGD, GHOST, HOOKS = "DP-SGD (ours, automatic clipping)", "DP-SGD (Opacus, ghost)", "DP-SGD (Opacus, hooks)"
NON_PRIVATE, PLAIN = "without privacy (ours)", "without privacy (PyTorch)"
BASELINES = (DP_SGD, GHOST, HOOKS, NON_PRIVATE, PLAIN)

EPSILONS = (0.1, 0.5, 1.0, 2.0)
_PRINTED = {"max": "FERRET-MAX", "eighth": "FERRET-EIGHTH", "2": "FERRET-2"}
_EPOCHS = (1, 3, 5)


def paper_ratio(granularity: str, epochs: int, epsilon: float, base: str) -> float | None:
    """Table 6: mean seconds of FERRET over those of `DPSGD` or `Non-DP`; None where it prints none."""
    if granularity not in _PRINTED:
        return None
    table = published("ferret").table("table-6")
    column = f"{epsilon:.1f}"
    own = table.cell((_PRINTED[granularity], str(epochs)), column)
    other = table.cell((base, str(epochs)), "inf" if base == "Non-DP" else column)
    return None if own is None or other is None else own.value / other.value


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _row(*fields: str) -> str:
    return f"| {' | '.join(fields)} |"


def _head(*fields: str) -> list[str]:
    return ["", _row(*fields), "|" + "---|" * len(fields)]


def _cells(case: dict[str, Any]) -> dict[tuple[str, str, float], dict[str, Any]]:
    return {(c["granularity"], c["silent_steps"], c["epsilon"]): c for c in case["cells"]}


def _pairs(case: dict[str, Any]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((c["granularity"], c["silent_steps"]) for c in case["cells"]))


def _ratios(case: dict[str, Any], baseline: str, base: str) -> list[str]:
    """One baseline's table: expected share of its time, the measured range, and the paper's."""
    if baseline in case["failures"]:
        return []
    lines = [
        "",
        f"### Share of {baseline}",
        *_head("groups", "silent step", *(f"{e:g} nats" for e in EPSILONS)),
    ]
    cells = _cells(case)
    for granularity, silent in _pairs(case):
        fields = []
        for epsilon in EPSILONS:
            found = cells[granularity, silent, epsilon]["ratios"][baseline]
            low, high = found["measured_range"]
            fields.append(f"{_percent(found['expected']['5'])} [{100 * low:.0f}, {100 * high:.0f}]")
        lines.append(_row(granularity, silent, *fields))
    for granularity in _PRINTED:
        fields = [_percent(paper_ratio(granularity, 5, epsilon, base)) for epsilon in EPSILONS]
        lines.append(_row(f"{granularity} (paper, against {base})", "", *fields))
    return lines


def _lengths(case: dict[str, Any]) -> list[str]:
    """Shorter runs, from the parts."""
    lines = [
        "",
        f"### Shorter runs: expected share of {DP_SGD}, from the parts (paper, against DPSGD)",
        *_head("epochs", "groups", "silent step", *(f"{e:g} nats" for e in EPSILONS)),
    ]
    cells = _cells(case)
    for epochs in _EPOCHS:
        for granularity, silent in _pairs(case):
            if granularity not in _PRINTED:
                continue
            fields = []
            for epsilon in EPSILONS:
                expected = cells[granularity, silent, epsilon]["ratios"][DP_SGD]["expected"][str(epochs)]
                fields.append(
                    f"{_percent(expected)} ({_percent(paper_ratio(granularity, epochs, epsilon, 'DPSGD'))})"
                )
            lines.append(_row(str(epochs), granularity, silent, *fields))
    return lines


def _parts(case: dict[str, Any]) -> list[str]:
    """What a step costs, and how many fire."""
    lines = [
        "",
        "### Where the time goes (5 epochs)",
        "",
        "Firing steps: 1 - (1-p)^G of all (measured). Milliseconds: medians over steps.",
        *_head("groups", "silent step", "nats", "G", "p*", "firing steps", "ms, firing", "ms, silent"),
    ]
    for cell in case["cells"]:
        lines.append(
            _row(
                cell["granularity"],
                cell["silent_steps"],
                f"{cell['epsilon']:g}",
                str(cell["groups"]),
                f"{cell['firing_probability']:.3g}",
                f"{_percent(cell['share_of_firing_steps']['5'])} ({_percent(cell['measured_share'])})",
                f"{1000 * cell['seconds_of_a_firing_step']:.1f}",
                f"{1000 * cell['seconds_of_a_silent_step']:.2f}",
            )
        )
    return lines


def _baselines(case: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "### Baselines",
        *_head("training", "ms a step", f"over {NON_PRIVATE}", f"over {PLAIN}", "peak MB"),
    ]
    memory = case["peak_megabytes"]
    for name, found in case["baselines"].items():
        low, high = found["range"]
        lines.append(
            _row(
                name,
                f"{1000 * found['seconds_a_step']:.1f} [{1000 * low:.1f}, {1000 * high:.1f}]",
                f"{found['over_non_private']:.2f}",
                f"{found['over_plain']:.2f}",
                f"{memory[name]:.0f}",
            )
        )
    lines += [_row(name, "fails", why.replace("|", "/"), "", "") for name, why in case["failures"].items()]
    lines += [_row(name, "", "", "", f"{memory[name]:.0f}") for name in memory if name.startswith("FERRET")]
    return lines


def markdown(report: dict[str, Any]) -> str:
    """The results as tables."""
    host = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in host["versions"].items())
    lines = [
        "# Training time of FERRET",
        "",
        f"{host['cpu']}, {host['cores']} cores, {host['threads_used']} thread(s) used; "
        f"Python {host['python']}, {versions}; "
        f"load average at the start {host['load_average_at_start']:.2f}.",
        "",
        "Shares: expected time, put together from firing and silent steps, over the baseline's median step; "
        "in brackets the lowest and highest measured ratio of whole runs in one repeat, where the number of "
        "firing steps is chance. The paper's: Table 6, means over five models on a GPU, against FastDP's "
        "DP-SGD and non-private training.",
    ]
    for case in report["models"]:
        size = case["records"], case["batch_size"], case["steps"]
        paper = case["paper"]
        lines += [
            "",
            f"## {case['model']}",
            "",
            f"{case['parameters']:,} parameters in {case['tensors']} tensors; N : B : T = "
            f"{' : '.join(map(str, size))} (paper {' : '.join(map(str, paper.values()))}), "
            f"{case['epochs']} epochs, at most {case['tokens']} tokens a record, {case['repeats']} repeats.",
            *_ratios(case, DP_SGD, "DPSGD"),
            *_ratios(case, GHOST, "DPSGD"),
            *_ratios(case, NON_PRIVATE, "Non-DP"),
            *_ratios(case, PLAIN, "Non-DP"),
            *_lengths(case),
            *_parts(case),
            *_baselines(case),
        ]
    return "\n".join(lines) + "\n"
