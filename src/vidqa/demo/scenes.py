"""What happens in a demo clip, and the pixels that show it.

No first and no last frame tells what happened: crossings and colour changes begin and end with an empty picture, a
blinking shape is there at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

SIDE = 96  # pixels, width and height
SLOTS = 8  # a scene changes at most once per eighth of a clip: eight evenly spaced frames see everything
# Each is brighter than any background in every channel.
COLOURS = {"red": (255, 80, 80), "green": (70, 230, 100), "blue": (90, 120, 255), "yellow": (255, 230, 80)}
MOST_BLINKS = 3
SHAPES = ("disc", "square", "diamond")
STRAIGHT = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}  # x to the right, y downwards
DIAGONAL = {"up left": (-1, -1), "up right": (1, -1), "down left": (-1, 1), "down right": (1, 1)}
DIRECTIONS = {**STRAIGHT, **DIAGONAL}


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

    cross   a shape crosses the picture in `direction`
    turn    a shape comes in moving in `direction`, turns around and leaves where it came from
    blink   a shape stays in its place and is gone in the slots of `gone`
    order   a shape appears in the first colour, takes the second, and is gone at the end
    """

    event: str
    colours: tuple[str, ...]
    look: Look
    direction: str = ""
    gone: tuple[int, ...] = ()
    change: int = 0  # the slot in which the second colour begins


def draw_scene(event: str, rng: np.random.Generator, directions: tuple[str, ...] = tuple(STRAIGHT)) -> Scene:
    """A random scene of one kind."""
    colours = tuple(str(c) for c in rng.permutation(list(COLOURS))[: 2 if event == "order" else 1])
    scene = Scene(event, colours, _draw_look(rng))
    if event in ("cross", "turn"):
        return replace(scene, direction=str(rng.choice(directions)))
    if event == "blink":
        return replace(scene, gone=_draw_gone(int(rng.integers(1, MOST_BLINKS + 1)), rng))
    return replace(scene, change=int(rng.integers(3, 6)))


def _draw_look(rng: np.random.Generator) -> Look:
    x, y = rng.integers(28, SIDE - 27, size=2)
    return Look(
        shape=str(rng.choice(SHAPES)),
        radius=int(rng.integers(16, 21)),
        place=(int(x), int(y)),
        level=int(rng.integers(20, 50)),
        noise_seed=int(rng.integers(2**31)),
        frame_count=int(rng.integers(16, 29)),
        fps=int(rng.integers(8, 13)),
    )


def _draw_gone(times: int, rng: np.random.Generator) -> tuple[int, ...]:
    """`times` slots, never the first or the last and never two in a row: each is one blink."""
    while True:
        slots = sorted(int(slot) for slot in rng.choice(np.arange(1, SLOTS - 1), size=times, replace=False))
        if all(later - slot > 1 for slot, later in pairwise(slots)):
            return tuple(slots)


def render(scene: Scene) -> np.ndarray:
    """The clip's frames, uint8 [frames, SIDE, SIDE, 3]."""
    look = scene.look
    noise = np.random.default_rng(look.noise_seed).normal(0, 5, size=(look.frame_count, SIDE, SIDE, 1))
    frames = np.broadcast_to(look.level + noise, (look.frame_count, SIDE, SIDE, 3)).copy()
    for index in range(look.frame_count):
        shown = what_is_shown(scene, index / (look.frame_count - 1))
        if shown is not None:
            colour, x, y = shown
            frames[index][_mask(look, x, y)] = COLOURS[colour]
    return frames.clip(0, 255).astype(np.uint8)


def what_is_shown(scene: Scene, moment: float) -> tuple[str, float, float] | None:
    """Colour and centre of the shape at `moment` (0 = first frame, 1 = last), None where there is none."""
    x, y = scene.look.place
    if scene.direction:
        reach = SIDE / 2 + scene.look.radius + 1
        along = 2 * moment - 1 if scene.event == "cross" else -abs(2 * moment - 1)
        step_x, step_y = DIRECTIONS[scene.direction]
        return (
            scene.colours[0],
            SIDE / 2 + along * reach * step_x if step_x else x,
            SIDE / 2 + along * reach * step_y if step_y else y,
        )
    slot = round(moment * (SLOTS - 1))
    if scene.event == "blink":
        return None if slot in scene.gone else (scene.colours[0], x, y)
    return None if slot in (0, SLOTS - 1) else (scene.colours[slot >= scene.change], x, y)


def _mask(look: Look, x: float, y: float) -> np.ndarray:
    """The pixels that the shape covers with its centre at (x, y), bool [SIDE, SIDE]."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    across, down = np.abs(columns - x), np.abs(rows - y)
    if look.shape == "disc":
        return across**2 + down**2 <= look.radius**2
    if look.shape == "square":
        return np.maximum(across, down) <= look.radius * 0.9
    return across + down <= look.radius * 1.25
