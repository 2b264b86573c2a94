"""Events of a demo clip, and their pixels.

Every clip begins and ends with an empty picture, so that neither its first nor its last frame tells what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SIDE = 96  # pixels, width and height
SLOTS = 8  # appearance changes only between eighths of a clip: eight evenly spaced frames see everything
EVENTS = ("cross", "resize", "flash", "change")
# The same sum of channels, brighter than any background: no color is easier to see than another.
COLORS = {"red": (255, 75, 75), "green": (75, 255, 75), "blue": (75, 75, 255), "yellow": (200, 180, 25)}
SHAPES = ("disc", "square", "diamond")
STRAIGHT = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}  # x to the right, y downwards
DIAGONAL = {"up left": (-1, -1), "up right": (1, -1), "down left": (-1, 1), "down right": (1, 1)}
FLASHES = {1: "once", 2: "twice", 3: "three times"}
LAMP_RADIUS = 34
PLATES, PLATE_LEVELS = 7, 24  # of a wall: so many in a row, darker or brighter by at most so much
DIAMOND, SQUARE = 1.25, 0.9  # half diagonal and half side for about the area of a disc of radius 1


@dataclass(frozen=True)
class Look:
    """Everything about a clip that no question asks for. `radius` and `place` are in pixels, `level` in 0..255."""

    shape: str
    radius: int
    place: tuple[int, int]
    level: int
    noise_seed: int
    frame_count: int
    fps: int


@dataclass(frozen=True)
class Scene:
    """One thing that happens.

    cross    a shape crosses the picture in `direction`
    resize   a shape gets bigger, or smaller: `grows`
    flash    a lamp is lit in the slots of `lit`, never in two that touch
    change   a shape takes the second of two `colors` in slot `change`
    """

    event: str
    colors: tuple[str, ...]
    look: Look
    direction: str = ""
    grows: bool = False
    lit: tuple[int, ...] = ()
    change: int = 0


@dataclass(frozen=True)
class Shown:
    """The shape at one moment: its color, centre and radius in pixels."""

    color: str
    x: float
    y: float
    radius: float


def draw_scene(event: str, number: int, rng: np.random.Generator, directions: Sequence[str] = tuple(STRAIGHT)) -> Scene:
    """A scene of one event. `number` chooses what is asked for, so that a run of numbers has every answer equally
    often; the rest is random."""
    look = _draw_look(rng)
    first = list(COLORS)[number % len(COLORS)]
    if event == "cross":
        color = str(rng.choice(list(COLORS)))
        return Scene(event, (color,), look, direction=directions[number % len(directions)])
    if event == "resize":
        return Scene(event, (first,), look, grows=bool(number // len(COLORS) % 2))
    if event == "flash":
        times = list(FLASHES)[number % len(FLASHES)]
        return Scene(event, (str(rng.choice(list(COLORS))),), look, lit=_draw_lit(times, rng))
    second = str(rng.choice([color for color in COLORS if color != first]))
    return Scene(event, (first, second), look, change=int(rng.integers(3, 6)))


def _draw_look(rng: np.random.Generator) -> Look:
    x, y = (int(v) for v in rng.integers(28, SIDE - 27, size=2))
    fps = int(rng.integers(8, 13))
    return Look(
        shape=str(rng.choice(SHAPES)),
        radius=int(rng.integers(16, 21)),
        place=(x, y),
        level=int(rng.integers(25, 45)),
        noise_seed=int(rng.integers(2**31)),
        frame_count=2 * fps + int(rng.integers(0, 3)),  # about two seconds
        fps=fps,
    )


def _draw_lit(times: int, rng: np.random.Generator) -> tuple[int, ...]:
    """`times` slots, dark ones around each."""
    slots = np.sort(rng.choice(np.arange(1, SLOTS - times), size=times, replace=False))
    return tuple(int(slot) + gap for gap, slot in enumerate(slots))


def render(scene: Scene, plate_levels: float = PLATE_LEVELS) -> np.ndarray:
    """The clip's frames, uint8 [frames, SIDE, SIDE, 3]."""
    look = scene.look
    empty = np.broadcast_to(_wall(look, plate_levels), (SIDE, SIDE, 3))
    frames = np.repeat(empty[None], look.frame_count, axis=0)
    for index in range(look.frame_count):
        shown = what_is_shown(scene, index / (look.frame_count - 1))
        if shown is not None:
            frames[index][_mask(look.shape, shown)] = COLORS[shown.color]
    return frames


def _wall(look: Look, plate_levels: float) -> np.ndarray:
    """The background, uint8 [SIDE, SIDE, 1]: plates of levels of its own, as real places differ, so that two clips are
    told apart by their looks; and noise."""
    rng = np.random.default_rng(look.noise_seed)
    plates = rng.uniform(-plate_levels, plate_levels, size=(PLATES, PLATES, 1))
    at = np.arange(SIDE) * PLATES // SIDE
    noise = rng.normal(0, 4, size=(SIDE, SIDE, 1))
    return (look.level + plates[at][:, at] + noise).clip(0, 255).astype(np.uint8)


def what_is_shown(scene: Scene, moment: float) -> Shown | None:
    """The visible state at `moment` (0 = first frame, 1 = last); None if the picture is empty."""
    look, color, (x, y) = scene.look, scene.colors[0], scene.look.place
    if scene.event == "cross":
        step_x, step_y = (STRAIGHT | DIAGONAL)[scene.direction]
        offset = (2 * moment - 1) * (SIDE / 2 + look.radius * DIAMOND + 1)  # from outside to outside
        return Shown(
            color, SIDE / 2 + offset * step_x if step_x else x, SIDE / 2 + offset * step_y if step_y else y, look.radius
        )
    slot = round(moment * (SLOTS - 1))
    if slot in (0, SLOTS - 1):
        return None
    if scene.event == "resize":
        return Shown(color, x, y, look.radius * (0.5 + (moment if scene.grows else 1 - moment)))
    if scene.event == "flash":
        return Shown(color, SIDE / 2, SIDE / 2, LAMP_RADIUS) if slot in scene.lit else None
    return Shown(scene.colors[slot >= scene.change], x, y, look.radius)


def _mask(shape: str, shown: Shown) -> np.ndarray:
    """The pixels that the shape covers, bool [SIDE, SIDE]."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    across, down = np.abs(columns - shown.x), np.abs(rows - shown.y)
    if shape == "disc":
        return across**2 + down**2 <= shown.radius**2
    if shape == "square":
        return np.maximum(across, down) <= shown.radius * SQUARE
    return across + down <= shown.radius * DIAMOND
