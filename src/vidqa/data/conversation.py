"""Parts of a conversation: known keys, the slots of media, and the end of the thinking in an answer.

A record may hold any other keys of its author; only those that other trainers use are reported as unused.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from vidqa.data.record import MediumKeys
from vidqa.video.types import KEYS_OF, VIDEO_KEYS, contradictions, without_effect

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
KIND_FIELDS = ("kind", "type", "question_type", "category")
LEARNED = frozenset(("loss", "weight", "train"))  # keys of a turn: of ms-swift, OpenAI and axolotl
TURN_KEYS = {"from", "role", "value", "content", *LEARNED}
# Keys of a record that other trainers use, with their meaning there.
OTHERS = {
    **dict.fromkeys(("tools", "functions"), "tools that the model may call"),
    **dict.fromkeys(("audio", "audios"), "sound"),
    **dict.fromkeys(("chosen", "rejected_messages", "kto_tag"), "preferences"),
    **dict.fromkeys(("rejected_images", "rejected_videos", "positive_messages", "negative_messages"), "preferences"),
    **dict.fromkeys(("margin", "solution", "completion", "teacher_prompt"), "preferences and rewards"),
    **dict.fromkeys(("prompt", "instruction", "input", "output", "query", "response", "history"), "a conversation"),
    "objects": "boxes for <ref-object> and <bbox>",
    **dict.fromkeys(("chat_template", "chat_template_kwargs", "enable_thinking", "mm_processor_kwargs"), "settings"),
    **dict.fromkeys(("loss", "weight", "loss_scale", "train", "mask", "labels"), "what is learned"),
    **dict.fromkeys(VIDEO_KEYS, "the frames of a video; their place is the part of type video"),
    **dict.fromkeys(("start", "end", "start_time", "end_time"), "the whole video is shown; see video_start"),
}
# A line break beside a tag belongs to the tag, as in NVIDIA's own loaders: in "<video>\\nWhy?" the question is "Why?".
TAG = re.compile(r"\n?<(video|image)>\n?")
KINDS = ("video", "image")
_LEADING = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_TAGS = re.compile(r"(</?think>)", re.IGNORECASE)
MOST, MOST_FRAMES = 2**31, 768  # exclusive bound of any number; largest nframes, as in a spec
KIND_OF_TYPE = {float: "a number", int: "a whole number"}


def turns_field(row: Mapping[str, Any]) -> str:
    """The key of a row's turns, whether or not the row has them."""
    return "conversations" if row.get("conversations") is not None else "messages"


def unused_in_record(row: Mapping[str, Any]) -> list[str]:
    """The keys of a record that other trainers use and that have no effect here."""
    twice = ["messages: conversations holds"] if row.get("conversations") and row.get("messages") else []
    if OTHERS.keys().isdisjoint(row):
        return twice
    return twice + [f"{name} ({what})" for name, what in OTHERS.items() if row.get(name) not in (None, "", [], {})]


def unused_in_turn(turn: Mapping[str, Any]) -> list[str]:
    """The keys of a turn that have no effect."""
    twice = ["content: value holds"] if "value" in turn and turn.get("content") not in (None, turn["value"]) else []
    return twice + unused_in(turn, TURN_KEYS)


def unused_in(values: Mapping[str, Any], used_keys: Set[str]) -> list[str]:
    """The unknown keys of a turn or part that are not empty: tables fill missing fields with null."""
    if values.keys() <= used_keys:
        return []
    return sorted(str(name) for name in values.keys() - used_keys if values[name] not in (None, "", [], {}))


def is_learned(turn: Mapping[str, Any]) -> bool | str:
    """Whether an assistant turn is learned, or an error message about its keys."""
    if LEARNED.isdisjoint(turn):
        return True
    flags = {name: turn[name] for name in sorted(LEARNED) if turn.get(name) is not None}
    for name, value in flags.items():
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            return f"{name} is {value!r}; a turn is trained on (1, true) or not (0, false)"
    if len({bool(value) for value in flags.values()}) > 1:
        return f"{' and '.join(flags)} contradict each other"
    return all(flags.values())


def shows_media(turn: Any) -> bool:
    """Whether a turn has a part other than text."""
    content = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
    parts = content if isinstance(content, list) else ()
    return any(isinstance(part, dict) and part.get("type") not in (None, "text") for part in parts)


def medium_name(kind: str, part: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The name of a part's medium, from the first key that holds one, and the keys that have no effect."""
    names = [key for key in (kind, f"{kind}_url", "path", "url") if part.get(key) is not None]
    if not names:
        return None, []
    value = part[names[0]]
    unused = [f"{key}: {names[0]} names the medium" for key in names[1:] if part[key] != value]
    if not isinstance(value, Mapping):
        return value, unused
    nested = [f"{names[0]}.{key}: it belongs next to the key type" for key in unused_in(value, {"url", "path"})]
    return value.get("url") or value.get("path") or value, unused + nested


def medium_keys(kind: str, part: Mapping[str, Any], used_keys: Set[str]) -> tuple[MediumKeys, list[str], list[str]]:
    """The sampling and resizing keys of a part's medium, errors in them, and the keys that have no effect."""
    keys: dict[str, float] = {}
    wrong, unused = [], []
    for name in unused_in(part, used_keys):
        value, number = part[name], KEYS_OF[kind].get(name)
        if number is None:
            unused.append(f"{name}: it is a key of videos" if name in VIDEO_KEYS else name)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not _fits(name, value, number):
            bounds = {"video_start": "of at least 0", "nframes": f"from 1 to {MOST_FRAMES}"}.get(name, "above 0")
            wrong.append(f"{name} is {value!r}, and must be {KIND_OF_TYPE[number]} {bounds}")
        else:
            keys[name] = number(value)
    wrong += contradictions(keys)
    return tuple(sorted(keys.items())), wrong, [*unused, *without_effect(keys)]


def _fits(name: str, value: float, number: type) -> bool:
    """Whether a number is a valid value of the key; infinity and NaN are not."""
    is_large_enough = value > 0 or (name == "video_start" and value == 0)
    is_small_enough = value <= MOST_FRAMES if name == "nframes" else value < MOST
    return is_large_enough and is_small_enough and (number is float or value == int(value))


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot for one medium in a user turn. `name` is set where the conversation itself names the file; `keys` are the
    sampling and resizing keys beside that name."""

    kind: str
    name: str | None = None
    keys: MediumKeys = ()


Piece = str | Slot


def pieces_of_text(text: str) -> list[Piece]:
    """Split text at its <video> and <image> tags: "First <video>\\nWhy?" -> ["First ", Slot("video"), "Why?"]."""
    if "<" not in text:
        return [text]
    cut = TAG.split(text)  # text, kind, text, kind, ..., text
    return [Slot(piece) if at % 2 else piece for at, piece in enumerate(cut)]


def fill_slots(slots: list[Slot], listed: dict[str, list[str]]) -> list[tuple[str, str]] | str:
    """The (kind, name) of every slot in order, or an error message about a mismatch.

    `listed` holds the names that the record gives outside its conversation. Without any slot the listed media are
    placed first, in the order of KINDS. A tag may have the wrong kind where the record lists no medium of that kind:
    many published sets write <image> for their videos.
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
    """Join adjacent texts and drop empty ones; the result is empty if there is only white space.

    Other white space stays as it is written, because the model reads it.
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


def split_thinking(answer: str) -> tuple[str, str]:
    """Split an annotated answer into (thinking, rest), as written. The thinking includes its tags and the space around
    them; it is empty if the answer does not begin with thinking."""
    match = _LEADING.match(answer)
    return (match.group(), answer[match.end() :]) if match else ("", answer)


def without_thinking(response: str) -> tuple[str, bool]:
    """Split a model's response into (text outside of its thinking, whether the thinking never ended).

    A template may open <think> itself: then the response has only the closing tag.
    """
    pieces = _TAGS.split(response)
    outside, inside = [pieces[0]], False
    for tag, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        if tag.startswith("</"):
            outside = [piece] if not inside else [*outside, piece]
            inside = False
        else:
            inside = True
    return "".join(outside).strip(), inside


def unclosed(answer: str) -> str:
    """An error message about the thinking tags of an annotated answer; empty if they are balanced."""
    depth = 0
    for tag in _TAGS.findall(answer) if ">" in answer else ():
        depth += -1 if tag.startswith("</") else 1
        if depth not in (0, 1):
            return "</think> without <think> before it" if depth < 0 else "<think> inside <think>"
    return "<think> without </think> after it" if depth else ""


def is_text(value: Any) -> bool:
    """Whether a value is a string without lone surrogates, which no file and no tokenizer can encode."""
    if not isinstance(value, str) or value.isascii():
        return isinstance(value, str)
    return not any("\ud800" <= character <= "\udfff" for character in value)
