"""Questions about a scene and their true answers: yes/no, multiple choice with letters, short free text."""

from __future__ import annotations

from dataclasses import dataclass

from demo.scenes import FLASHES, STRAIGHT, Scene

LETTERS = "ABC"


@dataclass(frozen=True)
class Question:
    """`kind` groups scores in reports."""

    kind: str
    text: str
    answer: str


def questions_about(scene: Scene) -> list[Question]:
    """All questions of one clip."""
    return EVENT_QUESTIONS[scene.event](scene)


def _cross(scene: Scene) -> list[Question]:
    kind = "direction" if scene.direction in STRAIGHT else "diagonal"
    return [Question(kind, "Which way does it move?", scene.direction), _color(scene)]


def _resize(scene: Scene) -> list[Question]:
    return [Question("size", "Does it get bigger?", "yes" if scene.grows else "no"), _color(scene)]


def _flash(scene: Scene) -> list[Question]:
    options = " ".join(f"{letter}. {word}" for letter, word in zip(LETTERS, FLASHES.values(), strict=True))
    return [
        Question("count", f"How often does it flash? {options}", LETTERS[list(FLASHES).index(len(scene.lit))]),
        _color(scene),
    ]


def _change(scene: Scene) -> list[Question]:
    first, last = scene.colors
    return [
        Question("order", "Which color comes first?", first),
        Question("order", "Which color comes last?", last),
    ]


def _color(scene: Scene) -> Question:
    return Question("color", "What color is it?", scene.colors[0])


EVENT_QUESTIONS = {"cross": _cross, "resize": _resize, "flash": _flash, "change": _change}
