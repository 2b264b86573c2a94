"""Captions of driving videos: `videos/ID.*.mp4` and `metas/ID.label.json`; `captions.yaml` holds prompts and keys:

system_prompt: ...          as in the prompt files of cosmos-reason2-inference
user_prompt: ...
keys: [weather, lighting]   keys of the labels that make the answer, in this order; default KEYS
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import yaml

from vidqa.core.files import content_hash, parse_json
from vidqa.data.media import media_source
from vidqa.data.problems import EMPTY, FIELD, LEFT_OUT, SYNTAX, ProblemCollector, shown_names
from vidqa.data.sources._base import CAPTION_FILES, Names, Rows, Source, SourceKind, address_of, digest_of

VIDEOS, METAS, LABEL = "videos", "metas", ".label.json"
ASKS = "captions.yaml"
FRONT = ".camera_front_wide_120fov.mp4"  # the camera that is used where there are several
MOST_BYTES = 16 << 20
REMEDY = (
    "captions.yaml, or FOLDER#FILE.yaml, may hold system_prompt (text), user_prompt (text) and keys (a list of names "
    "that the labels have, such as [weather]); a key that a label lacks is trained as null."
)
KEYS = (
    *("weather", "lighting", "road_conditions", "traffic_light", "traffic_sign", "additional_traffic_rules"),
    *("road_type", "junction_type", "lane_type", "additional_map_rules", "interactive_expanded_metaaction"),
    *("safety_analysis", "driving_difficulty", "rule_violation", "interesting_scenario"),
)
SYSTEM = "You describe driving videos carefully and exactly, as training data for self-driving vehicles."
USER = "Describe this driving video as one JSON object with the keys {}."


class CaptionPrompt(NamedTuple):
    """The prompts for every video, and the keys of a label that make the answer."""

    system: str
    user: str
    keys: tuple[str, ...]


class _CaptionsFile(msgspec.Struct, forbid_unknown_fields=True):
    system_prompt: str = SYSTEM
    user_prompt: str | msgspec.UnsetType = msgspec.UNSET
    keys: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = KEYS


def read_caption_prompt(file: Path) -> CaptionPrompt:
    """Read prompts and keys; defaults of this module if captions.yaml is empty or missing. Raises DATA_FIELD."""
    try:
        is_left_out = file.name == ASKS and not file.exists()
        content = None if is_left_out else yaml.safe_load(file.read_text(encoding="utf-8"))
        written = msgspec.convert({} if content is None else content, _CaptionsFile)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as broken:
        raise FIELD.error(file, f"it cannot be read: {str(broken)[:200]}", REMEDY) from broken
    user = USER.format(", ".join(written.keys)) if written.user_prompt is msgspec.UNSET else written.user_prompt
    return CaptionPrompt(written.system_prompt.strip(), user.strip(), written.keys)


def _row(name: str, label: dict[str, Any], video: str, asks: CaptionPrompt) -> dict[str, Any]:
    answer = json.dumps({key: label.get(key) for key in asks.keys}, indent=2, ensure_ascii=False)
    messages: list[dict[str, Any]] = [{"role": "system", "content": asks.system}] if asks.system else []
    content = [{"type": "video", "video": video}, {"type": "text", "text": asks.user}]
    messages += [{"role": "user", "content": content}, {"role": "assistant", "content": f"```json\n{answer}\n```"}]
    return {"id": name, "messages": messages}


def _videos(folder: Path) -> list[str]:
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(name for name in names if name.lower().endswith(".mp4"))


def _videos_by_label(names: Iterable[str], videos: Sequence[str]) -> dict[str, Sequence[str]]:
    """The videos `name.*` of each name, from a sorted list: "/" is the character after "."."""
    return {name: videos[bisect_left(videos, f"{name}.") : bisect_left(videos, f"{name}/")] for name in names}


def _recognises(path: str) -> bool:
    place, _ = address_of(path)
    return all(os.path.isdir(os.path.join(place, name)) for name in (VIDEOS, METAS))


def _open(path: str, media_path: str, renamed: Names) -> Source:
    """Open the folder; `#FILE` after it names another captions.yaml. Raises DATA_FIELD."""
    place, part = address_of(path)
    folder = Path(place)
    asks = read_caption_prompt(Path(os.path.expanduser(part)) if part else folder / ASKS)
    labels = sorted((folder / METAS).glob(f"*{LABEL}"))
    media = media_source(folder / METAS, media_path, root_mode=not media_path)

    def rows(collector: ProblemCollector) -> Rows:
        videos = _videos(Path(media.root) / VIDEOS)
        by_label = _videos_by_label((file.name.removesuffix(LABEL) for file in labels), videos)
        labelled = {video for of_label in by_label.values() for video in of_label}
        if without := [video for video in videos if video not in labelled]:
            message = f"{len(without)} of {len(videos)} videos have no label in {METAS}: {shown_names(without)}"
            collector.add(LEFT_OUT, str(folder / VIDEOS), message, severity="warning")
        lacking: Counter[str] = Counter()
        for index, file in enumerate(labels):
            try:
                label = parse_json(file, MOST_BYTES)
            except (OSError, ValueError) as broken:
                collector.add(SYNTAX, str(file), f"it cannot be read: {str(broken)[:200]}")
                continue
            if not isinstance(label, dict):
                collector.add(FIELD, str(file), "expected an object")
                continue
            missing = [key for key in asks.keys if key not in label]
            if len(missing) == len(asks.keys):
                message = f"it has none of the requested keys, but {shown_names(list(label)) or 'no key'}"
                collector.add(FIELD, str(file), message, REMEDY)
                continue
            lacking.update(missing)
            name = file.name.removesuffix(LABEL)
            shown = [video for video in by_label[name] if video.endswith(FRONT)] or by_label[name] or [name + FRONT]
            yield index, _row(name, label, f"{VIDEOS}/{shown[0]}", asks)
        if lacking:
            counts = shown_names([f"{key} ({count})" for key, count in lacking.most_common()])
            message = f"of {len(labels)} labels some lack keys, which are trained as null: {counts}"
            collector.add(FIELD, str(folder / METAS), message, REMEDY, severity="warning")
        if not labels:
            collector.add(EMPTY, str(folder / METAS), "there are no labels")

    def fingerprint() -> str:
        return digest_of([asks, *((file.name, content_hash(file)) for file in labels)])

    return Source(folder / METAS, media, rows, fingerprint)


CAPTIONS_FOLDER = SourceKind(
    "captions", _recognises, _open, reads_part=lambda part: part.lower().endswith(CAPTION_FILES)
)
