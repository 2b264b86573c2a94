"""Variants of a clip under which its answers stay true: other pixels of the same moments. Variants of its question:
other words, the counterpart with the other answer, the mirror image.

frames, fps, drawn = VARIANTS["speed"](frames, fps, draw)       uint8 [N, H, W, 3]
"""

from __future__ import annotations

import re

import numpy as np

from vidqa.video.decode import read_frames
from vidqa.video.probe import probe

Frames = np.ndarray
Applied = tuple[Frames, float, dict[str, float]]  # frames, their rate, what was drawn
# What a yes/no question may begin with, and how it is asked otherwise; {} is the rest without its question mark.
FORMS = ("{question}", "Answer yes or no: {question}", "Look at the video. {question}", "{question} Answer yes or no.")
SIDES = {"left": "right", "right": "left", "leftmost": "rightmost", "rightmost": "leftmost"}
SIDES |= {"leftward": "rightward", "rightward": "leftward", "leftwards": "rightwards", "rightwards": "leftwards"}
SIDES |= {"clockwise": "counterclockwise", "counterclockwise": "clockwise"}
# Pairs of which a question that holds one, and only that, turns into one with the other answer.
OPPOSITES = (
    *(("open", "closed"), ("bigger", "smaller"), ("larger", "smaller"), ("faster", "slower"), ("empty", "full")),
    *(("on", "off"), ("before", "after"), ("inside", "outside"), ("more", "fewer"), ("first", "last")),
)


def _shift(frames: Frames, fps: float, draw: np.random.Generator) -> Applied:
    """Begins up to a twentieth of the clip later: the first moments are left out."""
    start = int(draw.integers(0, max(1, len(frames) // 20) + 1))
    return frames[start:], fps, {"frames_left_out": start}


def _speed(frames: Frames, fps: float, draw: np.random.Generator) -> Applied:
    """0.8 to 1.25 times as fast: the same frames at another rate. How fast or how long something is may differ."""
    factor = float(np.exp(draw.uniform(np.log(0.8), np.log(1.25))))
    return frames, fps * factor, {"factor": round(factor, 3)}


def _crop(frames: Frames, fps: float, draw: np.random.Generator) -> Applied:
    """Takes up to a twentieth of each side away, and what happens there."""
    tall, wide = frames.shape[1:3]
    top, bottom, left, right = draw.uniform(0, 0.05, 4)
    rows, columns = slice(int(top * tall), tall - int(bottom * tall)), slice(int(left * wide), wide - int(right * wide))
    return frames[:, rows, columns], fps, {"share_left": round((1 - top - bottom) * (1 - left - right), 3)}


def _color(frames: Frames, fps: float, draw: np.random.Generator) -> Applied:
    """Lighter or darker, more or less contrast; no hue is changed, so that colors keep their names."""
    gain, lift = draw.uniform(0.85, 1.15), draw.uniform(-12, 12)
    changed = (frames.astype(np.float32) - 128) * gain + 128 + lift
    return changed.clip(0, 255).astype(np.uint8), fps, {"gain": round(gain, 3), "lift": round(lift, 1)}


def _noise(frames: Frames, fps: float, draw: np.random.Generator) -> Applied:
    """Noise of a weak sensor."""
    level = float(draw.uniform(2, 8))
    noise = draw.standard_normal(frames.shape[:3], np.float32)[..., None] * level
    return (frames + noise).clip(0, 255).astype(np.uint8), fps, {"level": round(level, 1)}


def _as_it_is(frames: Frames, fps: float, draw: np.random.Generator) -> Applied:
    """The encoder alone changes it."""
    return frames, fps, {}


def _flip(frames: Frames, fps: float, draw: np.random.Generator) -> Applied:
    """Left is right, which is swapped in question and answer, too; text in the picture cannot be read."""
    return frames[:, :, ::-1], fps, {}


VARIANTS = {
    "shift": _shift,
    "speed": _speed,
    "crop": _crop,
    "color": _color,
    "noise": _noise,
    "encode": _as_it_is,
    "flip": _flip,
}
SAFE = tuple(name for name in VARIANTS if name != "flip")
CHANGES_TIMES = ("shift", "speed")  # a moment is at another second of the clip


def read_clip(path: str) -> tuple[Frames, float]:
    """uint8 [N, H, W, 3], shown upright, and frames a second. Raises the problems of a video that does not decode."""
    meta = probe(path)
    return np.stack(list(read_frames(path, None, range(meta.frame_count)))), meta.source_fps


def asks_for_time(question: str) -> bool:
    """Whether the answer may be another at another speed, or where the first moments are left out."""
    return bool(
        re.search(r"\b(fast|slow|quick|speed|long|short|second|minute|when|duration|time)", question.casefold())
    )


def reworded(question: str, number: int) -> str:
    """The question in one of the other forms, for yes/no questions; one that says so itself is not told it twice."""
    forms = [form for form in FORMS[1:] if "yes or no" not in form.casefold() or "yes or no" not in question.casefold()]
    return forms[number % len(forms)].format(question=question.strip())


def countered(question: str, answer: str) -> tuple[str, str] | None:
    """The question about the opposite, to which the answer is no; None where there is none that is sure: what is not
    bigger need not be smaller."""
    if answer.strip().rstrip(".").casefold() != "yes":
        return None
    for pair in OPPOSITES:
        for word, other in (pair, pair[::-1]):
            matches = re.findall(rf"\b{word}\b", question, re.IGNORECASE)
            if len(matches) == 1 and not re.search(rf"\b(?:{other}|not|or)\b|n['’]t\b", question, re.IGNORECASE):
                return re.sub(rf"\b{word}\b", other, question, flags=re.IGNORECASE), "no"
    return None


def mirrored(text: str) -> str:
    """The text with left and right swapped, in the case they are written in."""

    def swapped(match: re.Match[str]) -> str:
        word = match.group()
        other = SIDES[word.casefold()]
        return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other

    return re.sub(rf"\b(?:{'|'.join(SIDES)})\b", swapped, text, flags=re.IGNORECASE)
