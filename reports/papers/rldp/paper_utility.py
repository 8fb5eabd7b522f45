"""RLDP's Tables 2 and 3 and the text about them: perplexity, steps, time."""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.rldp.paper_cells import (
    BUDGETS,
    MODELS,
    Statement,
    cell,
    centre,
    check,
    drops,
    epochs_steps,
    mean,
    medians,
    one,
    said,
    shares,
    stands_for,
    statements,
    training_records,
)
from workbench.reports.shared.published_checks import Check, Interval


def _count(paper: PublishedPaper) -> float:
    return said(paper, "section 4.1", "models").value * said(paper, "section 4.1", "budgets").value


def settings_check(paper: PublishedPaper) -> Check:
    """Whether models times budgets are the settings that are counted."""
    count = one(_count(paper))
    won = sum(low.lower > 0.0 for model in MODELS for low in drops(paper, model))
    asked = [
        Statement("section 4.1", "settings", (count,)),
        Statement("section 4.1", "wins", (one(won),), words="all of Table 2"),
        Statement("section 4.2", "settings", (count,)),
        Statement("section 4.3", "settings", (count,)),
        Statement(
            "section 4.2",
            "AdaClip is strongest at 0.5, settings",
            (one(said(paper, "section 4.1", "models").value),),
            words="at most: one of each model",
        ),
        Statement(
            "section 4.3",
            "model-budget-seed runs",
            tuple(one(k * _count(paper) * said(paper, "section 4.1", "seeds").value) for k in (1, 2)),
            words="of one form of RLDP, of both",
        ),
    ]
    return statements(paper, "settings", asked, "counts do not follow from four models at five budgets")


def drops_check(paper: PublishedPaper) -> Check:
    """The drops of the text against Table 2."""
    by_model = {model: drops(paper, model) for model in MODELS}
    every = [low for found in by_model.values() for low in found]
    gpt2 = drops(paper, "GPT2", percent=False)
    mean_drop = mean(every)
    asked = [
        Statement("section 4.1", "GPT2's drop at 0.5, percent", (by_model["GPT2"][0],)),
        Statement(
            "section 4.1",
            "GPT2's gain at 5, points",
            (gpt2[3], by_model["GPT2"][3]),
            words="perplexity; percent",
        ),
        Statement("section 4.1", "Llama-1B's drops, percent", tuple(by_model["Llama-1B"]), "range"),
        Statement(
            "section 4.1",
            "Llama-1B's drops, perplexity",
            tuple(drops(paper, "Llama-1B", percent=False)),
            "range",
        ),
        Statement("section 4.1", "Llama-3B's drops, percent", tuple(by_model["Llama-3B"]), "range"),
        Statement("section 4.1", "Mistral-7B's drops, percent", tuple(by_model["Mistral-7B"]), "range"),
        Statement("abstract", "least drop, percent", (Interval(*_least(every)),)),
        Statement("abstract", "largest drop, percent", (by_model["GPT2"][0],)),
        Statement("section 4.1", "mean drop, percent", (mean_drop,)),
        Statement("section 4.1", "median drop, percent", (medians(every),)),
        Statement("section 5.1", "lower perplexity on held-out records, percent", (mean_drop,)),
    ]
    return statements(
        paper, "drops", asked, "numbers of the text about perplexity do not follow from Table 2"
    )


def _least(found: list[Interval]) -> tuple[float, float]:
    return min(low.lower for low in found), min(low.upper for low in found)


def shares_check(paper: PublishedPaper) -> Check:
    """The shares of the steps in the text, and the means of Table 3, against its cells."""
    every, by_model = shares(paper), {model: shares(paper, (model,)) for model in MODELS}
    mean_share, fewer = mean(every), Interval(100.0, 100.0) - mean(every)
    speed = [Interval(100.0 / low.upper, 100.0 / low.lower) for low in by_model["GPT2"]]
    asked = [
        Statement("abstract", "least share of the updates, percent", (Interval(*_least(every)),)),
        Statement("abstract", "largest share of the updates, percent", (_largest(every),)),
        Statement("abstract", "mean speed-up, percent", (fewer,)),
        Statement("section 1", "fewer steps, percent", (fewer,)),
        Statement("section 4.2", "mean share of the steps, percent", (mean_share,)),
        Statement("section 4.2", "median share of the steps, percent", (medians(every),)),
        Statement("section 4.2", "acceleration, percent", (fewer,)),
        Statement("section 5.1", "fewer steps, percent", (fewer,)),
        Statement("section 4.2", "GPT2's shares, percent", tuple(by_model["GPT2"]), "range"),
        Statement("section 4.2", "GPT2's speed-ups", tuple(speed), "range"),
        Statement("section 4.2", "Llama-1B's share at 0.5, percent", (by_model["Llama-1B"][0],)),
        Statement("section 4.2", "Llama-1B's share at 5, percent", (by_model["Llama-1B"][3],)),
        Statement("section 4.2", "Llama-3B's shares, percent", tuple(by_model["Llama-3B"]), "range"),
        Statement(
            "section 4.2",
            "Mistral-7B's shares at 0.5 and 2, percent",
            tuple(by_model["Mistral-7B"][:2]),
            "range",
        ),
        Statement(
            "section 4.1",
            "share of the run, GPT2 at 2, percent",
            (by_model["GPT2"][1],),
            words="Table 3, whose best baseline is DP-LoRA wherever AdaClip is not, and that is at 0.5 alone",
        ),
    ]
    return statements(paper, "shares", asked, "numbers of the text about steps do not follow from Table 3")


def _largest(found: list[Interval]) -> Interval:
    return Interval(max(low.lower for low in found), max(low.upper for low in found))


def means_check(paper: PublishedPaper) -> Check:
    """The row of means of Table 3."""
    failed = []
    for place, budget in enumerate(BUDGETS):
        found = mean([shares(paper, (model,))[place] for model in MODELS])
        printed = cell(paper, "table-3", ("Mean",), budget)
        if not found.meets(stands_for(printed)):
            failed.append(f"epsilon {budget}: {printed.printed} printed, {centre(found):.4g} found")
    return check(
        "means of Table 3",
        len(BUDGETS),
        failed,
        right="Table 3's row of means follows from its cells",
        start="Means of Table 3 do not follow from its cells: ",
    )


def steps_check(paper: PublishedPaper) -> Check:
    """Three numbers of steps: of every experiment, of the printed epochs, of the timed run."""
    records, steps = training_records(paper), said(paper, "section 4.2", "steps T").value
    batch = said(paper, "section 3.1", "batch size").value
    timed, epochs = said(paper, "section 4.2", "steps of GPT2's timed run").value, epochs_steps(paper)
    failed = []
    if len({round(steps), round(timed), epochs}) > 1:
        share = said(paper, "section 4.2", "mean share of the steps, percent").value / 100.0
        failed.append(
            f"{said(paper, 'section 3.1', 'epochs').value:g} epochs of {records} training "
            f"records in batches of {batch:g} are {epochs} updates; section 4.2 has {steps:g} for every "
            f"experiment ({steps * batch / records:.2g} epochs) and {timed:g} for GPT2's timed run "
            f"({timed * batch / records:.2g} epochs); {100 * share:g} % of them are "
            f"{share * steps * batch / records:.2g} epochs of {steps:g}, "
            f"{share * epochs * batch / records:.2g} of {epochs}, where section 4.2 says a third of an epoch"
        )
    return check("numbers of steps", 3, failed, start="Three lengths of a run: ")


def times_check(paper: PublishedPaper) -> Check:
    """Minutes, percent and energy of section 4.2."""
    power = said(paper, "section 4.2", "power, W").value
    before = {
        "GPT2": "minutes of DP-LoRA",
        "Mistral-7B": "minutes of a static schedule",
        "Llama-1B": "minutes of a baseline",
        "Llama-3B": "minutes of a baseline",
    }
    saved, percent = {}, {}
    for model, name in before.items():
        first = stands_for(said(paper, "section 4.2", f"{model}, {name}"))
        second = stands_for(said(paper, "section 4.2", f"{model}, minutes of RLDP"))
        saved[model] = first - second
        percent[model] = Interval(
            100.0 * (1.0 - second.upper / first.lower), 100.0 * (1.0 - second.lower / first.upper)
        )
    watt_hours = {model: minutes.times(power / 60.0) for model, minutes in saved.items()}
    asked = [
        Statement("section 4.2", "GPT2, minutes saved", (saved["GPT2"],)),
        Statement("section 4.2", "GPT2, percent saved", (percent["GPT2"],)),
        Statement("section 4.2", "Mistral-7B, minutes saved", (saved["Mistral-7B"],)),
        Statement("section 4.2", "Mistral-7B, kWh saved", (watt_hours["Mistral-7B"].times(1e-3),)),
        Statement("section 4.2", "Llama-1B, Wh saved", (watt_hours["Llama-1B"],), words=f"at {power:g} W"),
        Statement("section 4.2", "Llama-3B, Wh saved", (watt_hours["Llama-3B"],)),
    ]
    return statements(paper, "times", asked, "numbers about time and energy do not follow from the minutes")


def smaller_faster_remark(paper: PublishedPaper) -> str:
    """A larger model that takes less time than a smaller one for as many batches."""
    first, second = (
        said(paper, "section 4.2", f"{model}, minutes of a baseline").value for model in MODELS[1:3]
    )
    if not first > second:
        return ""
    return (
        f"Llama-3B's run takes {second:g} minutes and Llama-1B's {first:g}, though every configuration is "
        "said to process as many batches"
    )


def tighter_remark(paper: PublishedPaper) -> str:
    """How much larger the drop at 0.5 is than at 8."""
    ratios = [centre(found[0]) / centre(found[-1]) for found in (drops(paper, model) for model in MODELS)]
    means = [mean([drops(paper, model)[place] for model in MODELS]) for place in (0, -1)]
    rises = [
        model
        for model in MODELS
        if cell(paper, "table-2", (model,), "RLDP, 8").value
        > cell(paper, "table-2", (model,), "RLDP, 5").value
    ]
    listed = ", ".join(f"{model} {ratio:.2g}" for model, ratio in zip(MODELS, ratios, strict=True))
    worse = f"; at epsilon 8 RLDP is worse than at 5 on {', '.join(rises)}" if rises else ""
    return (
        f"The benefit at epsilon 0.5 is about double that at 8, the text says: by Table 2 it is "
        f"{centre(means[0]) / centre(means[1]):.2g} times on average, by model {listed}{worse}"
    )


def runs_remark(paper: PublishedPaper) -> str:
    """What the number of ablation experiments is a count of."""
    configurations = said(paper, "section 4.5", "configurations").value
    seeds, stated = (
        said(paper, "section 4.1", "seeds").value,
        said(paper, "abstract", "ablation experiments, more than").value,
    )
    return (
        f"{configurations:g} configurations at {_count(paper):g} settings are "
        f"{configurations * _count(paper):g} runs of one seed and {configurations * _count(paper) * seeds:g} "
        f"of three; the abstract counts more than {stated:g}, and section 4.1 trains every setting with "
        "three seeds"
    )


def spread_remark(paper: PublishedPaper) -> str:
    """What is printed of the spread over seeds."""
    first, second = (
        said(paper, "section 4.1", f"standard deviation of {name}, Llama-3B at 2").printed
        for name in ("RLDP", "AdaClip and AutoClip")
    )
    return (
        f"No table prints a spread. The text has one pair of standard deviations over three seeds ({first} "
        f"and {second}); of two samples of three from one normal law one has at most half the other's "
        f"deviation with probability {_half():.0%}"
    )


def _half() -> float:
    """Probability that the first of two variances, of three values each, is at most a quarter of the other.

    F with 2 and 2 degrees of freedom has the distribution function x / (1 + x).
    """
    return 0.25 / 1.25
