"""Draws the pictures of the concepts from the library's own functions.

`python docs/pictures.py` writes `docs/pictures/*.svg`; the same code gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from workbench.accounting import (
    ApproximateDP,
    Composed,
    FixedBatch,
    GaussianDP,
    MutualInformation,
    RandomAllocation,
    ShuffledBatches,
    epsilon,
    gaussian_run,
)
from workbench.estimation import one_run
from workbench.estimation.perfect import perfect_bound
from workbench.interfaces import Secret, Trials

FOLDER = Path(__file__).parent / "pictures"
DELTA, CONFIDENCE = 1e-5, 0.95
INK, GREY, BLUE, RED, GREEN, PALE = "#222", "#777", "#1f5fa8", "#b3261e", "#2e7d32", "#dce8f6"


def ceiling_of(count: int) -> float:
    """What a perfect attack shows with so many coins of one run, for 95 % of the coins."""
    return perfect_bound(count, trials=Trials.ONE_RUN, delta=DELTA, confidence=CONFIDENCE, probability=0.95)


class Drawing:
    """An SVG file with a white background, made of lines, shapes and words."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="13" role="img">',
            f"<title>{title}</title>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
        ]

    def line(self, points: Sequence[tuple[float, float]], color: str = INK, *, dash: str = "") -> None:
        """A line through points."""
        shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<polyline points="{shape}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'
        )

    def area(self, points: Sequence[tuple[float, float]], color: str) -> None:
        """A filled polygon."""
        shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polygon points="{shape}" fill="{color}"/>')

    def box(self, x: float, y: float, width: float, height: float, color: str = PALE) -> None:
        """A rectangle with round corners."""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" fill="{color}"/>'
        )

    def dot(self, x: float, y: float, color: str, radius: float = 5) -> None:
        """A disc."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"/>')

    def words(self, x: float, y: float, text: str, color: str = INK, anchor: str = "start") -> None:
        """A line of text."""
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{text}</text>'
        )

    def text(self) -> str:
        """The file."""
        return "\n".join([*self.parts, "</svg>", ""])


def path() -> str:
    """The way of an audit."""
    drawing = Drawing(820, 150, "A claim, a training, an attack and a verdict")
    steps = [
        ("Claim", "(epsilon, delta),", "adjacency, released"),
        ("Coins and training", "a fair coin a record:", "trained on or not"),
        ("Attack", "sees the release,", "scores each record"),
        ("Bound", "epsilon >= ...", "at 95 % confidence"),
        ("Verdict", "is the bound above", "the claim?"),
    ]
    for place, (head, first, second) in enumerate(steps):
        x = 10 + place * 163
        drawing.box(x, 30, 143, 90)
        drawing.words(x + 71, 55, head, BLUE, "middle")
        drawing.words(x + 71, 81, first, INK, "middle")
        drawing.words(x + 71, 101, second, INK, "middle")
        if place:
            drawing.line([(x - 18, 75), (x - 3, 75)])
            drawing.area([(x - 1, 75), (x - 9, 70), (x - 9, 80)], INK)
    return drawing.text()


def tradeoff() -> str:
    """What claims allow: TPR over FPR, and an attack outside."""
    drawing = Drawing(620, 460, "The largest true-positive rate that three claims allow")

    def at(fpr: float, tpr: float) -> tuple[float, float]:
        return 70 + 360 * fpr, 400 - 360 * tpr

    rates = np.linspace(0, 1, 101)
    claims = [
        (ApproximateDP(epsilon=1.0, delta=1e-5), BLUE, "(1, 1e-5)-DP", ""),
        (GaussianDP(mu=1.0), GREEN, "1-GDP", "7 4"),
    ]
    allowed = claims[0][0].max_tpr(rates)
    lowest = 1 - claims[0][0].max_tpr(1 - rates)
    region = [at(*point) for point in zip(rates, allowed, strict=True)]
    drawing.area([*region, *reversed([at(*point) for point in zip(rates, lowest, strict=True)])], PALE)
    for place, (guarantee, color, name, dash) in enumerate(claims):
        curve = guarantee.max_tpr(rates)
        drawing.line([at(*point) for point in zip(rates, curve, strict=True)], color, dash=dash)
        drawing.line([(450, 70 + 26 * place), (480, 70 + 26 * place)], color, dash=dash)
        drawing.words(488, 75 + 26 * place, name)
    nats = MutualInformation(nats=0.1, secret=Secret.RECORD).max_success()
    # Right guesses at even odds: (TPR + 1 - FPR) / 2; the nats allow this line at most.
    gap = 2 * nats - 1
    drawing.line([at(0, gap), at(1 - gap, 1)], RED, dash="2 4")
    drawing.line([(450, 122), (480, 122)], RED, dash="2 4")
    drawing.words(488, 127, "0.1 nats, at")
    drawing.words(488, 144, "even odds")
    drawing.line([at(0, 0), at(1, 1)], GREY, dash="4 4")
    drawing.words(488, 175, "grey: guessing", GREY)
    drawing.dot(*at(0.1, 0.45), RED)
    drawing.words(488, 200, "disc: an attack", RED)
    drawing.words(*at(0.3, 0.62), "allowed by", BLUE)
    drawing.words(*at(0.3, 0.56), "(1, 1e-5)-DP", BLUE)
    drawing.line([at(0, 1), at(0, 0), at(1, 0)])
    for tick in (0.0, 0.5, 1.0):
        drawing.words(at(tick, 0)[0], 420, f"{tick:g}", anchor="middle")
        drawing.words(60, at(0, tick)[1] + 5, f"{tick:g}", anchor="end")
    drawing.words(250, 445, "false-positive rate (non-members accused)", anchor="middle")
    drawing.words(40, 25, "true-positive rate (members caught)")
    return drawing.text()


def sampling() -> str:
    """Epsilon of one noise under several ways to make batches."""
    drawing = Drawing(780, 300, "Certified epsilon of the same noise under several ways to choose batches")
    fixed = Composed(events=((FixedBatch(noise_multiplier=2.0, dataset_size=200, batch_size=20), 40),))
    balls = Composed(events=((RandomAllocation(noise_multiplier=2.0, steps=10), 4),))
    shuffled = ShuffledBatches(noise_multiplier=2.0, batches=10, epochs=4)
    poisson = gaussian_run(noise_multiplier=2.0, sampling_probability=0.1, steps=40)
    rows = [
        ("balls in bins, add-remove", epsilon(balls, 1e-5)),
        ("Poisson, add-remove", epsilon(poisson, 1e-5)),
        ("Poisson, replace-one", epsilon(poisson, 1e-5, adjacency="replace-one")),
        ("shuffled epochs, zero-out", epsilon(shuffled, 1e-5, adjacency="zero-out")),
        ("fixed batches, add-remove", epsilon(fixed, 1e-5)),
        ("fixed batches, replace-one", epsilon(fixed, 1e-5, adjacency="replace-one")),
    ]
    for tick in range(7):
        x = 210 + 70 * tick
        drawing.line([(x, 30), (x, 240)], "#e3e3e3")
        drawing.words(x, 260, str(tick), anchor="middle")
    for place, (name, bounds) in enumerate(rows):
        y = 50 + 34 * place
        drawing.words(200, y + 5, name, anchor="end")
        low, high = 210 + 70 * bounds.lower, 210 + 70 * bounds.upper
        drawing.line([(low, y), (high, y)], BLUE)
        drawing.dot(low, y, BLUE)
        drawing.dot(high, y, BLUE)
        drawing.words(high + 12, y + 5, f"[{bounds.lower:.2f}, {bounds.upper:.2f}]")
    drawing.words(420, 285, "epsilon at delta = 1e-5, lower and upper certified end", anchor="middle")
    return drawing.text()


def coins() -> str:
    """Forty records, their coins, scores and the guesses at both ends."""
    drawing = Drawing(780, 250, "Forty records: coins, scores and guesses")
    generator = np.random.default_rng(4)
    members = generator.random(40) < 0.5
    scores = members * 2.5 + generator.normal(size=40)
    bound = one_run(scores, members, delta=1e-5, confidence=0.95, generator=generator)
    low, high = scores.min(), scores.max()
    place = 40 + 700 * (scores - low) / (high - low)
    order = np.argsort(scores)
    guessed_out, guessed_in = place[order[11]] + 4, place[order[28]] - 4
    drawing.box(30, 60, guessed_out - 30, 105, "#f6e3e2")
    drawing.box(guessed_in, 60, 750 - guessed_in, 105, "#e2f1e3")
    drawing.words(40, 80, "the attacker guesses out", RED)
    drawing.words(740, 80, "the attacker guesses in", GREEN, "end")
    drawing.words((guessed_out + guessed_in) / 2, 80, "and abstains", GREY, "middle")
    for x, member in zip(place, members, strict=True):
        drawing.dot(x, 110 if member else 140, GREEN if member else RED, 6)
    drawing.line([(30, 165), (750, 165)])
    drawing.words(390, 185, "score of each record, low to high", anchor="middle")
    drawing.dot(40, 25, GREEN, 6)
    drawing.words(52, 30, "the coin said in: trained on")
    drawing.dot(270, 25, RED, 6)
    drawing.words(282, 30, "the coin said out: not trained on")
    right = int((~members[order[:12]]).sum() + members[order[28:]].sum())
    drawing.words(30, 215, f"24 guesses, {right} right. Over all thresholds, with their price paid: ")
    drawing.words(30, 235, f"epsilon >= {bound.lower:.2f} at delta = 1e-5, with 95 % confidence (one_run).")
    return drawing.text()


def verdicts() -> str:
    """Bounds, ceilings and the claim on one line of epsilons."""
    drawing = Drawing(780, 260, "Where the bound and the ceiling lie decides the verdict")

    def at(value: float) -> float:
        return 170 + 110 * value

    rows = [
        ("REFUTED", 1.8, ceiling_of(100), RED),
        ("NOT_REFUTED", 0.4, ceiling_of(60), BLUE),
        ("UNDERPOWERED", 0.2, ceiling_of(20), GREY),
    ]
    for tick in range(5):
        drawing.line([(at(tick), 45), (at(tick), 200)], "#e3e3e3")
        drawing.words(at(tick), 220, str(tick), anchor="middle")
    drawing.line([(at(1), 40), (at(1), 200)], INK, dash="6 4")
    drawing.words(at(1), 30, "claim: epsilon = 1", anchor="middle")
    for place, (name, lower, ceiling, color) in enumerate(rows):
        y = 75 + 45 * place
        drawing.words(155, y + 5, name, color, "end")
        drawing.line([(at(0), y), (at(ceiling), y)], color, dash="2 5")
        drawing.line([(at(0), y), (at(lower), y)], color)
        drawing.dot(at(lower), y, color)
        drawing.line([(at(ceiling), y - 8), (at(ceiling), y + 8)], color)
    drawing.words(
        170, 245, "disc: what the attack shows; bar: what a perfect attack would with as many trials"
    )
    return drawing.text()


def trials() -> str:
    """What a perfect attack shows with so many coins in one run."""
    drawing = Drawing(700, 400, "The most that coins of one run can show")

    def at(count: float, value: float) -> tuple[float, float]:
        return 70 + 150 * (np.log10(count) - 1), 340 - 34 * value

    counts = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]
    shown = [ceiling_of(n) for n in counts]
    for value in (0, 2, 4, 6, 8):
        drawing.line([at(10, value), at(10000, value)], "#e3e3e3")
        drawing.words(60, at(10, value)[1] + 5, str(value), anchor="end")
    drawing.line([at(n, value) for n, value in zip(counts, shown, strict=True)], BLUE)
    for count, value in zip(counts, shown, strict=True):
        x, y = at(count, value)
        drawing.dot(x, y, BLUE)
        if value:
            drawing.words(x + 6, y + 20, f"{value:.2f}")
        else:
            drawing.words(x + 2, y - 10, f"{value:.2f}", anchor="end")
    for count in (10, 100, 1000, 10000):
        drawing.words(at(count, 0)[0], 362, f"{count:,}", anchor="middle")
    drawing.words(300, 390, "records with a coin each, in one training", anchor="middle")
    drawing.words(30, 25, "epsilon that a perfect attack shows at delta = 1e-5 and 95 % confidence (one_run)")
    return drawing.text()


PICTURES: dict[str, Callable[[], str]] = {
    "coins": coins,
    "path": path,
    "sampling": sampling,
    "tradeoff": tradeoff,
    "trials": trials,
    "verdicts": verdicts,
}


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
