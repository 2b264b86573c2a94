"""Label-preserving variants of a clip: other pixels of the same moments. Variants of its question: other words, the
opposite question with the other answer, the mirror image.

clip, drawn = VARIANTS["speed"](open_clip(path), draw)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from vidqa.video.decode import read_frames
from vidqa.video.probe import probe


@dataclass(frozen=True)
class Clip:
    """A clip of `count` frames, uint8 [H, W, 3], an iterator that is consumed once, at `fps` frames per second."""

    frames: Iterable[np.ndarray]
    count: int
    fps: float


Variant = tuple[Clip, dict[str, float]]  # the clip and its drawn parameters
# Forms of yes/no questions; {} is the question.
FORMS = ("{question}", "Answer yes or no: {question}", "Look at the video. {question}", "{question} Answer yes or no.")
SIDES = {"left": "right", "right": "left", "leftmost": "rightmost", "rightmost": "leftmost"}
SIDES |= {"leftward": "rightward", "rightward": "leftward", "leftwards": "rightwards", "rightwards": "leftwards"}
SIDES |= {"clockwise": "counterclockwise", "counterclockwise": "clockwise"}
# Pairs of opposites: a question with exactly one of these words has a counterpart with the other answer.
OPPOSITES = (
    *(("open", "closed"), ("bigger", "smaller"), ("larger", "smaller"), ("faster", "slower"), ("empty", "full")),
    *(("on", "off"), ("before", "after"), ("inside", "outside"), ("more", "fewer"), ("first", "last")),
)


def _shift(clip: Clip, draw: np.random.Generator) -> Variant:
    """Drop the first moments, up to a twentieth of the clip."""
    start = int(draw.integers(0, min(max(1, clip.count // 20), clip.count - 1) + 1))
    return replace(clip, frames=islice(clip.frames, start, None), count=clip.count - start), {"frames_left_out": start}


def _speed(clip: Clip, draw: np.random.Generator) -> Variant:
    """Play 0.8 to 1.25 times as fast: the same frames at another rate. Answers about speed or duration may change."""
    factor = float(np.exp(draw.uniform(np.log(0.8), np.log(1.25))))
    return replace(clip, fps=clip.fps * factor), {"factor": round(factor, 3)}


def _crop(clip: Clip, draw: np.random.Generator) -> Variant:
    """Crop each side by up to a twentieth; what happens there is lost."""
    top, bottom, left, right = draw.uniform(0, 0.05, 4)

    def inner(frame: np.ndarray) -> np.ndarray:
        tall, wide = frame.shape[:2]
        return frame[int(top * tall) : tall - int(bottom * tall), int(left * wide) : wide - int(right * wide)]

    share = round((1 - top - bottom) * (1 - left - right), 3)
    return replace(clip, frames=map(inner, clip.frames)), {"share_left": share}


def _color(clip: Clip, draw: np.random.Generator) -> Variant:
    """Change brightness and contrast; hues stay, so that colors keep their names."""
    gain, lift = draw.uniform(0.85, 1.15), draw.uniform(-12, 12)
    levels = ((np.arange(256) - 128) * gain + 128 + lift).clip(0, 255).astype(np.uint8)
    return replace(clip, frames=map(levels.take, clip.frames)), {"gain": round(gain, 3), "lift": round(lift, 1)}


def _noise(clip: Clip, draw: np.random.Generator) -> Variant:
    """Add noise of a weak sensor."""
    level = float(draw.uniform(2, 8))
    (noise,) = draw.spawn(1)  # a separate generator: frames are changed when they are read

    def noisy(frame: np.ndarray) -> np.ndarray:
        return (frame + noise.standard_normal((*frame.shape[:2], 1), np.float32) * level).clip(0, 255).astype(np.uint8)

    return replace(clip, frames=map(noisy, clip.frames)), {"level": round(level, 1)}


VARIANTS: dict[str, Callable[[Clip, np.random.Generator], Variant]] = {
    "shift": _shift,
    "speed": _speed,
    "crop": _crop,
    "color": _color,
    "noise": _noise,
    "encode": lambda clip, draw: (clip, {}),  # only re-encoding changes the frames
    # Left and right are swapped in question and answer, too; text in the picture becomes unreadable.
    "flip": lambda clip, draw: (replace(clip, frames=map(np.fliplr, clip.frames)), {}),
}
SAFE = tuple(name for name in VARIANTS if name != "flip")
CHANGES_TIMES = ("shift", "speed")  # variants that change times: a moment is at another second of the clip


def open_clip(path: str) -> Clip:
    """Open a whole video in upright orientation. Raises the problems of a video that does not decode, also while its
    frames are read."""
    meta = probe(path)
    return Clip(read_frames(path, None, range(meta.frame_count)), meta.frame_count, meta.source_fps)


def depends_on_time(question: str) -> bool:
    """Whether the answer may change with speed, or if the first moments are dropped."""
    return bool(
        re.search(r"\b(fast|slow|quick|speed|long|short|second|minute|when|duration|time)", question.casefold())
    )


def reworded(question: str, number: int) -> str:
    """Rephrase a yes/no question in another form; "yes or no" is not added to a question that contains it."""
    forms = [form for form in FORMS[1:] if "yes or no" not in form.casefold() or "yes or no" not in question.casefold()]
    return forms[number % len(forms)].format(question=question.strip())


def countered(question: str, answer: str) -> tuple[str, str] | None:
    """The opposite question, whose answer is no; None if there is no certain one: something that is not bigger need not
    be smaller."""
    if answer.strip().rstrip(".").casefold() != "yes":
        return None
    for pair in OPPOSITES:
        for word, other in (pair, pair[::-1]):
            matches = re.findall(rf"\b{word}\b", question, re.IGNORECASE)
            if len(matches) == 1 and not re.search(rf"\b(?:{other}|not|or)\b|n['’]t\b", question, re.IGNORECASE):
                return re.sub(rf"\b{word}\b", other, question, flags=re.IGNORECASE), "no"
    return None


def mirrored(text: str) -> str:
    """The text with left and right swapped, keeping their case."""

    def swapped(match: re.Match[str]) -> str:
        word = match.group()
        other = SIDES[word.casefold()]
        return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other

    return re.sub(rf"\b(?:{'|'.join(SIDES)})\b", swapped, text, flags=re.IGNORECASE)
