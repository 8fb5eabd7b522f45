"""Pictures of capital letters, drawn by strokes at random angles and widths: what the vision base is taught.

Nobody's handwriting and no font: each letter is a few straight lines on a grid, written down here. They have
the size and the grey levels of the corpus `digits`, and no digit is among them.

>>> LETTERS["L"]
(((0, 0), (0, 6), (4, 6)),)
>>> pictures(np.random.default_rng(0), 2)[0].shape
(2, 64)
"""

from __future__ import annotations

import numpy as np

from workbench.interfaces import FloatArray, IntArray

SIDE = 8
"""Height and width of a picture."""
FINE = 3
"""Points a pixel, in each direction, that its grey level is the mean of."""

WIDE, HIGH = 4, 6
"""Corners of the grid that strokes run on: x from 0 to 4, y, downwards, from 0 to 6."""

Stroke = tuple[tuple[int, int], ...]

LETTERS: dict[str, tuple[Stroke, ...]] = {
    "A": (((0, 6), (2, 0), (4, 6)), ((1, 4), (3, 4))),
    "B": (((0, 0), (0, 6), (3, 6), (4, 5), (3, 3), (0, 3)), ((0, 0), (3, 0), (4, 1), (3, 3))),
    "C": (((4, 1), (3, 0), (1, 0), (0, 2), (0, 4), (1, 6), (3, 6), (4, 5)),),
    "D": (((0, 0), (0, 6), (2, 6), (4, 4), (4, 2), (2, 0), (0, 0)),),
    "E": (((4, 0), (0, 0), (0, 6), (4, 6)), ((0, 3), (3, 3))),
    "F": (((4, 0), (0, 0), (0, 6)), ((0, 3), (3, 3))),
    "G": (((4, 1), (3, 0), (1, 0), (0, 2), (0, 4), (1, 6), (3, 6), (4, 5), (4, 3), (2, 3)),),
    "H": (((0, 0), (0, 6)), ((4, 0), (4, 6)), ((0, 3), (4, 3))),
    "J": (((4, 0), (4, 5), (3, 6), (1, 6), (0, 5)),),
    "K": (((0, 0), (0, 6)), ((4, 0), (0, 3), (4, 6))),
    "L": (((0, 0), (0, 6), (4, 6)),),
    "M": (((0, 6), (0, 0), (2, 3), (4, 0), (4, 6)),),
    "N": (((0, 6), (0, 0), (4, 6), (4, 0)),),
    "P": (((0, 6), (0, 0), (3, 0), (4, 1), (3, 3), (0, 3)),),
    "Q": (((1, 0), (3, 0), (4, 2), (4, 4), (3, 6), (1, 6), (0, 4), (0, 2), (1, 0)), ((2, 4), (4, 6))),
    "R": (((0, 6), (0, 0), (3, 0), (4, 1), (3, 3), (0, 3)), ((2, 3), (4, 6))),
    "T": (((0, 0), (4, 0)), ((2, 0), (2, 6))),
    "U": (((0, 0), (0, 5), (1, 6), (3, 6), (4, 5), (4, 0)),),
    "V": (((0, 0), (2, 6), (4, 0)),),
    "W": (((0, 0), (1, 6), (2, 3), (3, 6), (4, 0)),),
    "X": (((0, 0), (4, 6)), ((4, 0), (0, 6))),
    "Y": (((0, 0), (2, 3), (4, 0)), ((2, 3), (2, 6))),
}
"""Strokes by letter; I, O, S and Z are left out, being digits to the eye."""

TURN, SLANT, SHRINK, SHIFT = 0.25, 0.3, 0.25, 0.6
"""Largest turn (radians), slant, relative change of width and height, and shift in pixels."""
BEND = 0.25
"""Standard deviation of a corner's place, in units of the grid."""
THIN, THICK = 0.45, 1.0
"""Half the width of the pen, in pixels."""
SOFT = 0.25
"""Over how many pixels the pen's edge fades."""


def pictures(generator: np.random.Generator, count: int) -> tuple[FloatArray, IntArray]:
    """Letters drawn at random.

    Args:
        generator: Of letters and of how they are drawn.
        count: How many.

    Returns:
        Grey levels in [0, 1], shape `(count, 64)`, and the place of each letter in `LETTERS`, `(count,)`.
    """
    labels = generator.integers(len(LETTERS), size=count)
    names = list(LETTERS)
    drawn = [_picture(generator, LETTERS[names[label]]) for label in labels]
    return np.array(drawn).reshape(count, SIDE * SIDE), labels.astype(np.int64)


def _picture(generator: np.random.Generator, strokes: tuple[Stroke, ...]) -> FloatArray:
    """Grey levels of one letter: how near each point is to a stroke, averaged over a pixel's points."""
    turn, slant = generator.uniform(-TURN, TURN), generator.uniform(-SLANT, SLANT)
    wide, high = generator.uniform(1.0 - SHRINK, 1.0 + SHRINK / 2, size=2) * (1.3, 1.05)
    shift = generator.uniform(-SHIFT, SHIFT, size=2) + SIDE / 2
    turned = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    shape = turned @ np.array([[wide, slant * high], [0.0, high]])
    starts, ends = [], []
    for stroke in strokes:
        corners = np.array(stroke, dtype=np.float64) - (WIDE / 2, HIGH / 2)
        corners += generator.normal(0.0, BEND, size=corners.shape)
        placed = corners @ shape.T + shift
        starts.append(placed[:-1])
        ends.append(placed[1:])
    nearest = _distances(np.concatenate(starts), np.concatenate(ends)).min(1)
    grey = np.clip((generator.uniform(THIN, THICK) - nearest) / SOFT + 0.5, 0.0, 1.0)
    levels: FloatArray = grey.reshape(SIDE, FINE, SIDE, FINE).mean((1, 3)).ravel()
    return levels


def _distances(starts: FloatArray, ends: FloatArray) -> FloatArray:
    """From each fine point to each line, shape `(points, lines)`, in pixels."""
    places = (np.arange(SIDE * FINE) + 0.5) / FINE
    points = np.stack(np.meshgrid(places, places, indexing="xy"), axis=-1).reshape(-1, 1, 2)
    along = ends - starts
    squared = np.maximum((along**2).sum(1), 1e-12)
    share = np.clip(((points - starts) * along).sum(2) / squared, 0.0, 1.0)
    gap = points - starts - share[..., None] * along
    found: FloatArray = np.sqrt((gap**2).sum(2))
    return found
