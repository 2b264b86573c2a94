"""More rows of those there are: variants of their clips, other words, counter-questions; or rows of a generator.

made = augment(Augmentation(annotations, media, out))            augmented.json, videos/, preview.html
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np

from vidqa.contract.files import write_json
from vidqa.contract.problem import Problem
from vidqa.curation import paraphrase
from vidqa.curation.mined_page import pictures
from vidqa.curation.problems import GENERATOR, VARIANT
from vidqa.curation.rows import Row, counted, read_rows, written
from vidqa.curation.variants import SAFE, VARIANTS, read_clip, write_clip
from vidqa.dataset.record import Provenance, Record, Turn
from vidqa.datatools.outputs import json_list, write_page
from vidqa.evaluation.answers import parse_expected
from vidqa.pages.page import page

ANNOTATIONS, PREVIEW, SUMMARY = "augmented.json", "preview.html", "augmentation.json"
GENERATED = "generated.json"
SHOWN = 40
GENERATOR_S = 24 * 3600.0


@dataclass(frozen=True)
class Augmentation:
    """What is asked for. `each` variants of every clip that one record shows; `variants` by name."""

    annotations: Path
    media: str
    out: Path
    variants: tuple[str, ...] = SAFE
    each: int = 1
    reword: bool = True
    counter: bool = True
    round: int = 1
    seed: int = 0


def augment(asked: Augmentation) -> tuple[list[Row], list[Problem]]:
    """The rows that were written, and the clips that could not be read."""
    pairs = read_rows(asked.annotations, asked.media)
    rows: list[Row] = []
    problems: list[Problem] = []
    for number, (row, record) in enumerate(pairs):
        draw = np.random.default_rng([asked.seed, number])
        clip = record.media[0] if len(record.media) == 1 and record.media[0].kind == "video" else None
        if clip is not None and clip.member is None:
            for at in range(asked.each):
                try:
                    rows.append(_variant(asked, row, record, f"{number}-{at}", draw))
                except (OSError, av.FFmpegError, ValueError) as broken:
                    problems.append(VARIANT.at(clip.file, f"{type(broken).__name__}: {broken}", severity="warning"))
                    break
        found = paraphrase.countered(record.question, record.answer) if asked.counter else None
        if found:
            rows.append(_written(asked, row, _said(record, *found), {"counter_question": True}, f"counter-{number}"))
    (asked.out).mkdir(parents=True, exist_ok=True)
    (asked.out / ANNOTATIONS).write_bytes(json_list(rows))
    write_json(asked.out / SUMMARY, {"rows": len(rows), "by_kind": counted(rows), "not_read": len(problems)})
    write_preview(asked.out, rows)
    return rows, problems


def _variant(asked: Augmentation, row: Row, record: Record, name: str, draw: np.random.Generator) -> Row:
    """One variant of a clip, written, and the row about it."""
    shows_a_part = any(name in ("video_start", "video_end") for name, _ in record.media[0].keys)
    at_its_speed = shows_a_part or paraphrase.asks_for_time(record.question)
    suited = [name for name in asked.variants if name != "speed" or not at_its_speed]
    chosen = str(draw.choice(suited or ["encode"]))
    frames, fps = read_clip(record.media[0].path)
    frames, fps, drawn = VARIANTS[chosen].apply(frames, fps, draw)
    crf = int(draw.integers(18, 31))
    path = (asked.out / "videos" / f"{name}-{chosen}.mp4").absolute()
    write_clip(path, frames, fps, crf)
    shown = replace(record.media[0], written=str(path), path=str(path), size=path.stat().st_size, span=None)
    record = replace(record, media=(shown,), video_fps=None)
    if chosen == "flip":
        record = _each_text(record, paraphrase.mirrored)
    details: dict[str, Any] = {"variant": chosen, **drawn, "crf": crf}
    if asked.reword and parse_expected(record.answer, record.question).kind == "yes_no":
        record = _said(record, paraphrase.reworded(record.question, int(draw.integers(3))), record.answer)
        details["reworded"] = True
    return _written(asked, row, record, details, name)


def _written(asked: Augmentation, row: Row, record: Record, details: dict[str, Any], name: str) -> Row:
    gap = record.provenance.gap if record.provenance else None
    made = replace(record, id=f"{record.id}-{name}")
    return written(row, made, Provenance("augmented", asked.round, gap), {"of": record.id, **details})


def _each_text(record: Record, change: Any) -> Record:
    turns = [
        replace(turn, parts=tuple(change(part) if isinstance(part, str) else part for part in turn.parts))
        for turn in record.turns
    ]
    return replace(record, turns=tuple(turns))


def _said(record: Record, question: str, answer: str) -> Record:
    """The record with another last question and answer; media stay before the text."""
    turns: list[Turn] = list(record.turns)
    at = max(number for number, turn in enumerate(turns) if turn.role == "user")
    media = tuple(part for part in turns[at].parts if not isinstance(part, str))
    turns[at] = Turn("user", (*media, question))
    turns[at + 1 :] = [Turn("assistant", (answer,))]
    return replace(record, turns=tuple(turns))


def _shown_text(value: str | list[dict[str, Any]]) -> str:
    return value if isinstance(value, str) else "\n".join(part["text"] for part in value if "text" in part)


def write_preview(folder: Path, rows: Sequence[Row]) -> None:
    shown = []
    for row in rows[:SHOWN]:
        media = row.get("video") or row.get("image") or ""
        turns = [_shown_text(turn["value"]) for turn in row["conversations"]]
        shown.append({"id": row["id"], "turns": turns, "curation": row["curation"], "frames": pictures(media, 6)})
    write_page(
        folder / PREVIEW,
        page("curation/preview.html.j2", title="New rows", rows=shown, count=len(rows), kinds=counted(rows)),
    )


@dataclass(frozen=True)
class Generation:
    """A program of the user's that makes rows. It reads the request (JSON) on stdin, and writes annotations."""

    command: str
    annotations: Path
    media: str
    out: Path
    licence: str
    source: str
    round: int = 1


def generate(asked: Generation) -> list[Row]:
    """Run the generator and take in what it wrote. Raises CURATION_GENERATOR."""
    if not asked.licence.strip() or not asked.source.strip():
        raise GENERATOR.error("--generator", "its licence or its source is not named", "add --licence and --source")
    asked.out.mkdir(parents=True, exist_ok=True)
    file = (asked.out / "from_generator.json").absolute()
    request = {
        "schema": "vidqa.generation.v1",
        "annotations": str(asked.annotations.absolute()),
        "media": asked.media,
        "write_annotations": str(file),
        "media_folder": str((asked.out / "videos").absolute()),
    }
    try:
        done = subprocess.run(
            shlex.split(asked.command), input=json.dumps(request), text=True, capture_output=True, timeout=GENERATOR_S
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as failed:
        raise GENERATOR.error(asked.command, f"it could not be run: {failed}") from failed
    if done.returncode or not file.is_file():
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise GENERATOR.error(
            asked.command, f"exit code {done.returncode}, no annotations in {file}; it said: {said[0]}"
        )
    details = {"generator": asked.command, "licence": asked.licence, "source": asked.source}
    made = []
    for row, record in read_rows(file, asked.out):
        gap = record.provenance.gap if record.provenance else None
        made.append(written(row, record, Provenance("generated", asked.round, gap), details))
    (asked.out / GENERATED).write_bytes(json_list(made))
    write_preview(asked.out, made)
    return made
