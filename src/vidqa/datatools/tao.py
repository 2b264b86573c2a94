"""Read the two training formats of TAO's data set toolkit as rows: cosmos-reason-v1.0 and tao-vl-reason-v1.0."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from vidqa.data.problems import SYNTAX, ProblemCollector
from vidqa.data.reader import TOO_DEEP, RepeatedKeyError, is_deep, loads, type_name
from vidqa.data.sources import Rows
from vidqa.datatools.problems import FORMAT

COSMOS = "cosmos-reason-v1.0"
TAO_VL = "tao-vl-reason-v1.0"


def read_object(path: Path, collector: ProblemCollector | None = None) -> dict[str, Any] | None:
    """The JSON object in a file; None, and a problem if there is a collector, for anything else or a repeated key."""
    try:
        value = (json.loads if collector is None else loads)(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as broken:
        reason = str(broken)
        if isinstance(broken, RepeatedKeyError) and collector is not None:
            collector.add(SYNTAX, str(path), reason, "write each key of an object once")
            return None
    else:
        if isinstance(value, dict) and not is_deep(value):
            return value
        reason = TOO_DEEP if isinstance(value, dict) else f"expected an object, got {type_name(value)}"
    if collector is not None:
        collector.add(FORMAT, str(path), f"it cannot be read: {reason}")
    return None


def tao_vl_files(path: Path) -> list[Path]:
    """The annotation files of a tao-vl-reason-v1.0 data set: the file itself, or those in the folder."""
    if path.is_file():
        return [path]
    return [file for file in sorted(path.glob("*.json")) if (read_object(file) or {}).get("format") == TAO_VL]


def tao_vl_rows(file: Path, collector: ProblemCollector, dropped: Counter[str], *, own_root: bool, alone: bool) -> Rows:
    """Yield the rows of one annotation file. The file's task is their kind; reasoning becomes <think> in the answer.

    With `own_root` media names are relative to the file's folder, with the file's media_root prepended; otherwise they
    are as in the items. Items without an item_index get their index as id, after the file's stem unless it is `alone`.
    """
    whole = read_object(file, collector)
    if whole is None:
        return
    items = whole.get("items")
    if whole.get("format") != TAO_VL or not isinstance(items, list):
        collector.add(FORMAT, str(file), f'it needs "format": "{TAO_VL}" and a list of items')
        return
    root = whole.get("media_root") if own_root and isinstance(whole.get("media_root"), str) else ""
    metadata = whole["metadata"] if isinstance(whole.get("metadata"), dict) else {}
    for name in _metadata(whole) - {"type", "task"}:
        dropped[f"metadata.{name}"] += len(items)
    for index, item in enumerate(items):
        named = str(index) if alone else f"{file.stem}-{index}"
        row = _tao_vl_row(item, named, str(root), metadata.get("task"))
        if row is None:
            message = "an item is an object with video_id or image_id (one of them), question and answer, all texts"
            collector.add(FORMAT, f"{file} items[{index}]", message)
        else:
            yield index, row


def _tao_vl_row(item: Any, named: str, root: str, task: Any) -> dict[str, Any] | None:
    fields = ("video_id", "image_id", "question", "answer", "reasoning", "item_index")
    if not isinstance(item, dict) or any(name in item and not isinstance(item[name], str) for name in fields):
        return None
    media = {name: item[f"{name}_id"] for name in ("video", "image") if f"{name}_id" in item}
    if len(media) != 1 or "question" not in item or "answer" not in item:
        return None
    turns = [
        {"from": "human", "value": item["question"]},
        {"from": "gpt", "value": _with_reasoning(item.get("reasoning", ""), item["answer"])},
    ]
    rest = {name: value for name, value in item.items() if name not in fields}
    placed = {kind: os.path.join(root, name) if root else name for kind, name in media.items()}
    kind = {"kind": task} if isinstance(task, str) and task else {}
    return {**kind, **rest, "id": item.get("item_index") or named, **placed, "conversations": turns}


def _with_reasoning(reasoning: str, answer: str) -> str:
    return f"<think>{reasoning.strip()}</think>\n\n{answer}" if reasoning.strip() else answer


def cosmos_rows(folder: Path, collector: ProblemCollector, dropped: Counter[str]) -> Rows:
    """Yield rows of the samples listed in meta.json: one conversation file and one media file each."""
    meta = read_object(folder / "meta.json", collector)
    if meta is None:
        return
    samples = meta.get("samples")
    if meta.get("version") != COSMOS or not isinstance(samples, list):
        collector.add(FORMAT, str(folder / "meta.json"), f'it needs "version": "{COSMOS}" and a list of samples')
        return
    for name in _metadata(meta) - {"type"}:
        dropped[f"metadata.{name}"] += len(samples)
    for index, sample in enumerate(samples):
        names = [sample.get(name) for name in ("id", "conversation", "media")] if isinstance(sample, dict) else [None]
        if not all(isinstance(name, str) and name for name in names):
            message = "a sample is an object with id, conversation and media, all texts"
            collector.add(FORMAT, f"{folder / 'meta.json'} samples[{index}]", message)
            continue
        row = _cosmos_row(folder, str(names[0]), str(names[1]), str(names[2]), collector, dropped)
        if row is not None:
            yield index, row


def _metadata(value: dict[str, Any]) -> set[str]:
    """The names in a file's metadata; characters that cannot be encoded become ?."""
    names = value["metadata"] if isinstance(value.get("metadata"), dict) else ()
    return {name.encode("utf-8", "replace").decode() for name in names}


def _cosmos_row(
    folder: Path, name: str, conversation: str, media: str, collector: ProblemCollector, dropped: Counter[str]
) -> dict[str, Any] | None:
    file = folder / os.path.normpath(conversation)
    if os.path.isabs(conversation) or os.path.normpath(conversation).startswith(os.pardir):
        collector.add(FORMAT, str(folder / "meta.json"), f"the conversation {conversation!r} is outside the folder")
        return None
    whole = read_object(file, collector)
    if whole is None:
        return None
    turns = whole.get("conversations")
    if whole.get("version") != COSMOS or not isinstance(turns, list):
        collector.add(FORMAT, str(file), f'it needs "version": "{COSMOS}" and a list of conversations')
        return None
    dropped.update(f"metadata.{field}" for field in _metadata(whole) - {"type"})
    messages = [_cosmos_turn(turn, media) for turn in turns]
    if None in messages:
        message = (
            f"turn {messages.index(None)} is not an object with role and content, names another medium than video_0 or "
            "image_0, or has a reasoning_content that is not a list of texts"
        )
        collector.add(FORMAT, str(file), message)
        return None
    return {"id": name, "messages": messages}


def _cosmos_turn(turn: Any, media: str) -> dict[str, Any] | None:
    """Replace placeholders in the turn by the sample's one media file; None if the turn is malformed."""
    if not isinstance(turn, dict) or not isinstance(turn.get("content"), list):
        return None
    parts = [_cosmos_part(part, media) for part in turn["content"]]
    thoughts = turn.get("reasoning_content", [])
    if None in parts or not isinstance(thoughts, list) or any(_text_of(thought) is None for thought in thoughts):
        return None
    thinking = "\n".join(str(_text_of(thought)) for thought in thoughts)
    if thinking:
        parts = [{"type": "text", "text": f"<think>{thinking}</think>\n\n"}, *parts]
    rest = {name: value for name, value in turn.items() if name not in ("content", "reasoning_content")}
    return {**rest, "content": parts}


def _cosmos_part(part: Any, media: str) -> dict[str, Any] | None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return part
    if kind in ("video", "image") and part.get(kind) == f"{kind}_0":
        return {**part, kind: media}
    return None


def _text_of(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    return text if isinstance(text, str) else None
