"""Augmentation of rows: variants of their clips, rephrased questions, counter-questions; or a user's generator.

rows, problems = augment(Augmentation(annotations=annotations, out=out))      augmented.json, videos/, preview.html
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from vidqa.core.files import write_json
from vidqa.core.pages.page import page
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.problems import EMPTY
from vidqa.data.record import Provenance, Record, Turn
from vidqa.datatools.outputs import json_list, write_page
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.thumbnails import card_frames
from vidqa.gaps.analysis.storage import require_distinct_paths
from vidqa.gaps.curation.rows import Row, annotation_files, counted, read_rows, written
from vidqa.gaps.curation.variants import (
    CHANGES_TIMES,
    SAFE,
    VARIANTS,
    countered,
    depends_on_time,
    mirrored,
    open_clip,
    reworded,
)
from vidqa.gaps.problems import GENERATOR
from vidqa.video.encode import write_h264
from vidqa.video.problems import MEDIA_UNREADABLE

ANNOTATIONS, PREVIEW, SUMMARY = "augmented.json", "preview.html", "augmentation.json"
GENERATED = "generated.json"
SHOWN, FRAMES = 40, 6  # rows of the preview, frames of each
GENERATOR_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The options of augment_samples.py. `variants` is the number per clip, drawn from the names in `only` (empty: all
    of SAFE) and, with `flip`, mirrored ones. `generator` is a user's command that writes the rows instead."""

    annotations: Path
    out: Path
    media_root: str = ""
    variants: int = 1
    only: Sequence[str] = ()
    flip: bool = False
    reword: bool = True
    counter: bool = True
    generator: str = ""
    licence: str = ""
    source: str = ""
    round: int = 1
    seed: int = 0


def augment(request: Augmentation) -> tuple[list[Row], list[Problem]]:
    """Write the new rows and return them, and a warning for each clip that could not be read. Raises DATA_EMPTY,
    CURATION_GENERATOR, and USAGE for an output that would replace the annotations."""
    files = annotation_files(request.annotations)
    require_distinct_paths([*files, request.out / ANNOTATIONS])
    if request.generator:
        return _generated(request), []
    if not (pairs := [pair for file in files for pair in read_rows(file, request.media_root)]):
        remedy = "name a file with annotations, such as mined/mined.json"
        raise EMPTY.error(request.annotations, "there are no annotations to augment in it", remedy)
    rows: list[Row] = []
    problems: list[Problem] = []
    for number, (row, record) in enumerate(pairs):
        draw = np.random.default_rng([request.seed, number])
        clip = record.media[0] if len(record.media) == 1 and record.media[0].kind == "video" else None
        if clip is not None and clip.member is None:
            for at in range(request.variants):
                try:
                    rows.append(_variant(request, row, record, f"{number}-{at}", draw))
                except ProblemError as broken:
                    problems += [replace(problem, severity="warning") for problem in broken.problems]
                    break
                except (OSError, av.FFmpegError) as refused:
                    message = f"no variant of it can be written: {refused}"
                    problems.append(MEDIA_UNREADABLE.at(clip.file, message, severity="warning"))
                    break
        if request.counter and (counter := countered(record.question, record.answer)):
            opposite = _with_turn(record, *counter)
            rows.append(_written(request, row, opposite, {"counter_question": True}, f"counter-{number}"))
    request.out.mkdir(parents=True, exist_ok=True)
    (request.out / ANNOTATIONS).write_bytes(json_list(rows))
    write_json(request.out / SUMMARY, {"rows": len(rows), "by_kind": counted(rows), "not_read": len(problems)})
    write_preview(request.out, rows)
    return rows, problems


def _variant(request: Augmentation, row: Row, record: Record, name: str, draw: np.random.Generator) -> Row:
    """Write one variant of a clip, and return its row."""
    shows_a_part = any(key in ("video_start", "video_end") for key, _ in record.media[0].keys)
    keeps_times = shows_a_part or depends_on_time(record.question)
    variants = (*(request.only or SAFE), *(("flip",) if request.flip else ()))
    suited = [variant for variant in variants if not (keeps_times and variant in CHANGES_TIMES)]
    chosen = str(draw.choice(suited or ["encode"]))
    clip, drawn = VARIANTS[chosen](open_clip(record.media[0].path), draw)
    crf = int(draw.integers(18, 31))
    path = (request.out / "videos" / f"{name}-{chosen}.mp4").absolute()
    write_h264(path, clip.frames, Fraction(clip.fps).limit_denominator(1000), "veryfast", crf, threads=1)
    shown = replace(record.media[0], written=str(path), path=str(path), size=path.stat().st_size, span=None)
    record = replace(record, media=(shown,), video_fps=None)
    if chosen == "flip":
        record = _map_texts(record, mirrored)
    details: dict[str, Any] = {"variant": chosen, **drawn, "crf": crf}
    if request.reword and parse_expected(record.answer, record.question).kind == "yes_no":
        record = _with_turn(record, reworded(record.question, int(draw.integers(3))), record.answer)
        details["reworded"] = True
    return _written(request, row, record, details, name)


def _written(request: Augmentation, row: Row, record: Record, details: dict[str, Any], name: str) -> Row:
    gap = record.provenance.gap if record.provenance else None
    variant = replace(record, id=f"{record.id}-{name}")
    return written(row, variant, Provenance("augmented", request.round, gap), {"of": record.id, **details})


def _map_texts(record: Record, change: Any) -> Record:
    turns = [
        replace(turn, parts=tuple(change(part) if isinstance(part, str) else part for part in turn.parts))
        for turn in record.turns
    ]
    return replace(record, turns=tuple(turns))


def _with_turn(record: Record, question: str, answer: str) -> Record:
    """Replace the last question and answer of a record; media stay before the text."""
    turns: list[Turn] = list(record.turns)
    at = max(number for number, turn in enumerate(turns) if turn.role == "user")
    media = tuple(part for part in turns[at].parts if not isinstance(part, str))
    turns[at] = Turn("user", (*media, question))
    turns[at + 1 :] = [Turn("assistant", (answer,))]
    return replace(record, turns=tuple(turns))


def write_preview(folder: Path, rows: Sequence[Row]) -> None:
    """Write a page of new rows with frames. Raises ENV_DISK_SPACE."""
    shown = []
    for row in rows[:SHOWN]:
        media = row.get("video") or row.get("image") or ""
        names = [media] if isinstance(media, str) else media
        shown.append({**row, "cards": [card_frames(name, FRAMES) for name in names]})
    html = page("gaps/curation/preview.html.j2", title="New rows", rows=shown, count=len(rows), kinds=counted(rows))
    write_page(folder / PREVIEW, html)


def _generated(request: Augmentation) -> list[Row]:
    """Run the generator and read its output. Raises CURATION_GENERATOR."""
    if not request.licence.strip() or not request.source.strip():
        raise GENERATOR.error("--generator", "its licence or its source is not given", "add --licence and --source")
    request.out.mkdir(parents=True, exist_ok=True)
    file = (request.out / "from_generator.json").absolute()
    message = {
        "schema": "vidqa.generation.v1",
        "annotations": str(request.annotations.absolute()),
        "media": request.media_root,
        "write_annotations": str(file),
        "media_folder": str((request.out / "videos").absolute()),
    }
    try:
        done = subprocess.run(
            shlex.split(request.generator),
            input=json.dumps(message),
            text=True,
            capture_output=True,
            timeout=GENERATOR_S,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as failed:
        raise GENERATOR.error(request.generator, f"it could not be run: {failed}") from failed
    if done.returncode or not file.is_file():
        lines = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise GENERATOR.error(
            request.generator, f"exit code {done.returncode}, no annotations in {file}; it said: {lines[0]}"
        )
    details = {"generator": request.generator, "licence": request.licence, "source": request.source}
    rows = []
    for row, record in read_rows(file, request.out):
        gap = record.provenance.gap if record.provenance else None
        rows.append(written(row, record, Provenance("generated", request.round, gap), details))
    (request.out / GENERATED).write_bytes(json_list(rows))
    write_preview(request.out, rows)
    return rows
