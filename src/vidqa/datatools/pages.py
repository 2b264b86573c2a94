"""Pages: previewed samples, the chat as the model sees it with its planned frames, and an inspected data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vidqa.core.cli import size_text
from vidqa.core.pages.page import image_url, page
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.record import MediaRef, Record
from vidqa.datatools.inspection import Inspection
from vidqa.datatools.preview import Piece, Preview, token_line
from vidqa.datatools.problems import DUPLICATES
from vidqa.evaluation.thumbnails import card_frames, poster_frames
from vidqa.video.types import VideoMeta

CARDS = 12  # media shown with frames
FRAMES = 4  # of each video
QUESTIONS = 6  # of each
BINS = 24
PROBLEMS_SHOWN = 30
SHADES = 6


def inspection_page(inspection: Inspection) -> str:
    """The page as HTML."""
    facts = inspection.facts
    lengths = facts["duration_s"]
    groups = {
        "Contradicting answers": facts["contradicting"],
        "The same question and answer": facts["repeated"],
        "Files with the same content": facts["same_content"],
        "Files that look alike": facts["look_alike"] or [],
        "Media that no record names": [[name] for name in facts["unused_media"]],
    }
    shown = [problem for problem in inspection.problems if problem.code != DUPLICATES.name]
    return page(
        "datatools/inspection.html.j2",
        title="Data set",
        f=facts,
        length=f"{seconds(lengths['sum'])} in all" if lengths else "",
        size=size_text(facts["bytes"]),
        kinds=[_kind(name, kind) for name, kind in facts["kinds"].items()],
        histograms=_histograms(inspection),
        tables=[
            (name, list(facts[key].items())[:8])
            for name, key in (("Sizes", "sizes"), ("Frames per second", "rates"), ("Codecs", "codecs"))
            if facts[key]
        ],
        duplicates=[(name, group) for name, group in groups.items() if group],
        n_problems=len(shown),
        problems=sorted(shown, key=lambda problem: problem.severity != "error")[:PROBLEMS_SHOWN],
        cards=[_card(inspection, ref, records) for ref, records in _spread(inspection.records)],
    )


def _kind(name: str, kind: dict[str, Any]) -> dict[str, Any]:
    answers = [
        {"name": answer, "n": n, "percent": round(100 * n / kind["records"], 3), "shade": min(at, SHADES - 1)}
        for at, (answer, n) in enumerate(kind["answers"].items())
    ]
    return {"name": name, "records": kind["records"], "answers": answers, "most": kind["most_common_share"]}


def _histograms(inspection: Inspection) -> list[tuple[str, dict[str, Any]]]:
    durations = [header.duration_s for header in inspection.media.values() if isinstance(header, VideoMeta)]
    series: dict[str, Sequence[float]] = {
        "Duration of videos, seconds": durations,
        "Tokens of samples": [sample.length for sample in inspection.samples],
        "Learned tokens of samples": [sample.supervised for sample in inspection.samples],
    }
    return [(name, histogram(values)) for name, values in series.items() if values]


def histogram(values: Sequence[float], bins: int = BINS) -> dict[str, Any]:
    """Bars of equal width from the least to the greatest value, their heights in percent of the fullest."""
    low, high = min(values), max(values)
    counts = np.histogram(values, bins)[0].tolist() if low < high else [len(values)]
    step = (high - low) / len(counts)
    bars = [
        {
            "height": round(100 * count / max(counts), 2),
            "title": f"{low + at * step:.4g} to {low + (at + 1) * step:.4g}: {count}",
        }
        for at, count in enumerate(counts)
    ]
    marks = [f"{value:.4g}" for value in dict.fromkeys((low, (low + high) / 2, high))]
    return {"bars": bars, "marks": marks, "note": f"{len(values):,} values, the fullest bar has {max(counts):,}"}


def _spread(records: Sequence[Record]) -> list[tuple[MediaRef, list[Record]]]:
    """`CARDS` of the media, evenly over the set, each with the records that use it."""
    users: dict[str, tuple[MediaRef, list[Record]]] = {}
    for record in records:
        for ref in {ref.key: ref for ref in record.media}.values():
            users.setdefault(ref.key, (ref, []))[1].append(record)
    every = list(users.values())
    return [every[at * len(every) // CARDS] for at in range(CARDS)] if len(every) > CARDS else every


def _card(inspection: Inspection, ref: MediaRef, records: Sequence[Record]) -> dict[str, Any]:
    header = inspection.media.get(ref.key)
    about = f"{header.width}×{header.height}" if header else "not readable"
    if isinstance(header, VideoMeta):
        about = f"{seconds(header.duration_s)}, {header.source_fps:.4g} frames per second, {about}"
    questions = [{"question": record.question, "answer": record.answer} for record in records[:QUESTIONS]]
    more = max(0, len(records) - QUESTIONS)
    frames = card_frames(ref.key, FRAMES) if header else {"frames": [], "fault": "the file cannot be read"}
    return {"name": ref.written, "about": about, **frames, "questions": questions, "more": more}


def seconds(value: float) -> str:
    """A length of time as a person says it."""
    if value < 90:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 5400 else f"{value / 3600:.3g} h"


MOST_FRAMES = 32  # pictures of one medium; the line above them names how many there are


def preview_page(title: str, rendered: Sequence[Preview], problems: Sequence[Problem]) -> str:
    """The page as HTML. Of long videos `MOST_FRAMES` of the planned frames are shown, evenly spread."""
    samples = [
        {**preview.as_dict(), "for_generation": preview.for_generation, "pieces": list(map(_shown, preview.pieces))}
        for preview in rendered
    ]
    return page("datatools/preview.html.j2", title=title, samples=samples, problems=problems)


def _shown(piece: Piece) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": piece.kind, "text": piece.text, "plan": piece.plan}
    if piece.plan is None or piece.ref is None:
        return shown
    indices, times = piece.plan.indices, piece.plan.times_s or (0.0,)
    step = max(1, -(-len(indices) // MOST_FRAMES))
    urls, fault = frame_urls(piece.ref, indices[::step])
    frames = [
        {"url": url, "index": index, "time": time}
        for url, index, time in zip(urls, indices[::step], times[::step], strict=False)
    ]
    return {**shown, "token_line": token_line(piece), "frames": frames, "fault": fault}


def frame_urls(ref: MediaRef, indices: Sequence[int], width: int = 200) -> tuple[list[str], str]:
    """(frames of a medium as data URLs, what is wrong with it or "")."""
    try:
        frames = poster_frames(ref.path, ref.member, indices, width)
    except ProblemError as unreadable:
        return [], unreadable.problems[0].message
    return [image_url(frame) for frame in frames], ""
