"""Keys of records, turns and parts that change what is learned: each has its meaning here, or is said to have none.

A record may hold whatever else its author keeps in it: of its keys only those are named that a trainer gives a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from vidqa.data.record import MediumKeys
from vidqa.video.vision_keys import KEYS_OF, VIDEO_KEYS, contradictions, without_effect

LEARNED = frozenset(("loss", "weight", "train"))  # of a turn: ms-swift's, OpenAI's and axolotl's
TURN_KEYS = {"from", "role", "value", "content", *LEARNED}
# Of a record, with what other trainers do by it.
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
}
MOST = 2**31
KIND_OF_TYPE = {float: "a number", int: "a whole number"}


def unused_in_record(row: Mapping[str, Any]) -> list[str]:
    """The keys of a record that other trainers give a meaning, and which have none here."""
    twice = ["messages: conversations holds"] if row.get("conversations") and row.get("messages") else []
    if OTHERS.keys().isdisjoint(row):
        return twice
    return twice + [f"{name} ({what})" for name, what in OTHERS.items() if row.get(name) not in (None, "", [], {})]


def unused_in_turn(turn: Mapping[str, Any]) -> list[str]:
    """The keys of a turn that have no effect on it."""
    twice = ["content: value holds"] if "value" in turn and turn.get("content") not in (None, turn["value"]) else []
    return twice + unused_in(turn, TURN_KEYS)


def unused_in(values: Mapping[str, Any], used_keys: Set[str]) -> list[str]:
    """The keys of a turn or part that are not known and hold something: tables fill what a row lacks with null."""
    if values.keys() <= used_keys:
        return []
    return sorted(str(name) for name in values.keys() - used_keys if values[name] not in (None, "", [], {}))


def is_learned(turn: Mapping[str, Any]) -> bool | str:
    """Whether an assistant turn is learned, or what is wrong with the keys that say so."""
    if LEARNED.isdisjoint(turn):
        return True
    flags = {name: turn[name] for name in sorted(LEARNED) if turn.get(name) is not None}
    for name, value in flags.items():
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            return f"{name} is {value!r}; a turn is learned (1, true) or not (0, false)"
    if len({bool(value) for value in flags.values()}) > 1:
        return f"{' and '.join(flags)} say different things"
    return all(flags.values())


def shows_media(turn: Any) -> bool:
    """Whether a turn has a part that is no text."""
    content = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
    parts = content if isinstance(content, list) else ()
    return any(isinstance(part, dict) and part.get("type") not in (None, "text") for part in parts)


def medium_name(kind: str, part: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """What names the medium of a part, under the first of the keys that may, and which others have no effect."""
    names = [key for key in (kind, f"{kind}_url", "path", "url") if part.get(key) is not None]
    if not names:
        return None, []
    value = part[names[0]]
    unused = [f"{key}: {names[0]} names the medium" for key in names[1:] if part[key] != value]
    if not isinstance(value, Mapping):
        return value, unused
    nested = [f"{names[0]}.{key}: its place is beside the key type" for key in unused_in(value, {"url", "path"})]
    return value.get("url") or value.get("path") or value, unused + nested


def medium_keys(kind: str, part: Mapping[str, Any], used_keys: Set[str]) -> tuple[MediumKeys, list[str], list[str]]:
    """The keys of a part that say how its medium becomes frames, what is wrong with them, and which have no effect."""
    keys: dict[str, float] = {}
    wrong, unused = [], []
    for name in unused_in(part, used_keys):
        value, number = part[name], KEYS_OF[kind].get(name)
        if number is None:
            unused.append(f"{name}: it is a key of videos" if name in VIDEO_KEYS else name)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not _fits(name, value, number):
            least = "of at least 0" if name == "video_start" else "above 0"
            wrong.append(f"{name} is {value!r}, and must be {KIND_OF_TYPE[number]} {least}")
        else:
            keys[name] = number(value)
    wrong += contradictions(keys)
    return tuple(sorted(keys.items())), wrong, [*unused, *without_effect(keys)]


def _fits(name: str, value: float, number: type) -> bool:
    """Whether a number is a value of the key; infinities and what is no number are none."""
    is_large_enough = value > 0 or (name == "video_start" and value == 0)
    return is_large_enough and value < MOST and (number is float or value == int(value))
