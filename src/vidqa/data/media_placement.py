"""Puts a record's media where its conversation wants them: at tags, at media parts, or first of all."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from vidqa.data.record import MediumKeys

# A line break beside a tag belongs to the tag, as in NVIDIA's own loaders: in "<video>\\nWhy?" the question is "Why?".
TAG = re.compile(r"\n?<(video|image)>\n?")
KINDS = ("video", "image")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one medium in a user turn. `name` is set where the conversation itself names the file, `keys` where
    it says beside it how that becomes frames."""

    kind: str
    name: str | None = None
    keys: MediumKeys = ()


Piece = str | Slot


def pieces_of_text(text: str) -> list[Piece]:
    """Text cut at its <video> and <image> tags: "First <video>\\nWhy?" -> ["First ", Slot("video"), "Why?"]."""
    if "<" not in text:
        return [text]
    cut = TAG.split(text)  # text, kind, text, kind, ..., text
    return [Slot(piece) if at % 2 else piece for at, piece in enumerate(cut)]


def fill_slots(slots: list[Slot], listed: dict[str, list[str]]) -> list[tuple[str, str]] | str:
    """The (kind, name) of every slot in order, or what does not match.

    `listed` holds the names the record gives outside its conversation. Without any slot the listed media are placed
    first, in the order of KINDS. A tag of one kind may stand for the other where the record lists no medium of its
    kind: many published sets write <image> for their videos.
    """
    names = [(kind, name) for kind in KINDS for name in listed.get(kind, ())]
    if not slots or (len(slots) == len(names) == 1 and slots[0].name is None):
        return names
    if all(slot.name is not None for slot in slots):
        placed = [(slot.kind, slot.name or "") for slot in slots]
        if names and sorted(names) != sorted(placed):
            return f"the conversation names {_counted(placed)}, the record lists {_counted(names)}"
        return placed
    queues = {kind: deque(listed.get(kind, ())) for kind in KINDS}
    single = next((kind for kind in KINDS if len(queues[kind]) == len(names)), None)
    filled = []
    for slot in slots:
        kind = single if single and not listed.get(slot.kind) else slot.kind
        if slot.name is None and not queues[kind]:
            break
        filled.append((slot.kind, slot.name) if slot.name is not None else (kind, queues[kind].popleft()))
    if len(filled) < len(slots) or any(queues.values()):
        open_slots = [(slot.kind, "") for slot in slots if slot.name is None]
        return f"the conversation has tags for {_counted(open_slots)}, the record lists {_counted(names)}"
    return filled


def _counted(media: Iterable[tuple[str, str]]) -> str:
    kinds = [kind for kind, _ in media]
    shown = [f"{kinds.count(kind)} {kind}{'s' if kinds.count(kind) != 1 else ''}" for kind in KINDS if kind in kinds]
    return " and ".join(shown) or "none"


def tidy(pieces: list[Piece]) -> list[Piece]:
    """Adjacent texts joined and empty ones left out; nothing where there is nothing but white space.

    Other white space stays as it is written: it is part of what the model reads.
    """
    if all(isinstance(piece, str) and not piece.strip() for piece in pieces):
        return []
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return joined
