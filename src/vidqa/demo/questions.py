"""Questions about a scene and their true answers: yes/no, multiple choice with letters, short free text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vidqa.demo.scenes import DIAGONAL, STRAIGHT, Scene

LETTERS = "ABCD"


@dataclass(frozen=True)
class Question:
    """`kind` groups scores in reports."""

    kind: str
    text: str
    answer: str


def questions_about(scene: Scene, rng: np.random.Generator) -> list[Question]:
    """All questions of one clip."""
    asked = {"cross": _motion, "turn": _motion, "blink": _blink, "order": _order}[scene.event](scene, rng)
    if scene.direction in DIAGONAL:
        return [Question("diagonal", q.text, q.answer) for q in asked]
    return asked


def _motion(scene: Scene, rng: np.random.Generator) -> list[Question]:
    true = scene.direction
    pool = DIAGONAL if true in DIAGONAL else STRAIGHT
    claimed = _true_or_other(true, list(pool), rng)
    return [
        Question("direction", "Which way does it move?", true),
        Question("direction", f"Does it move {claimed}?", _yes_no(claimed == true)),
        Question("turn", "Does it turn around?", _yes_no(scene.event == "turn")),
    ]


def _blink(scene: Scene, rng: np.random.Generator) -> list[Question]:
    times = len(scene.gone)
    return [
        Question("blinks", "How many times does it blink?", str(times)),
        Question("color", "What color is it?", scene.colours[0]),
    ]


def _order(scene: Scene, rng: np.random.Generator) -> list[Question]:
    first = scene.colours[0]
    options = [str(c) for c in rng.permutation(list(scene.colours))]
    listed = " ".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
    one, other = (str(c) for c in rng.permutation(list(scene.colours)))
    return [
        Question("order", "Which color comes first?", first),
        Question("order", f"Which color comes first? {listed}", LETTERS[options.index(first)]),
        Question("order", f"Does {one} come before {other}?", _yes_no(one == first)),
    ]


def _true_or_other(true: str, pool: list[str], rng: np.random.Generator) -> str:
    """The true word or another one, half of the time each."""
    return true if rng.random() < 0.5 else str(rng.choice([word for word in pool if word != true]))


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"
