"""Report on a data set: counts, answers and their balance, durations, sizes, rates, tokens, duplicates, problems; as
JSON facts, as text, and as an HTML page with frames."""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from vidqa.core.cli import size_text
from vidqa.core.pages.page import page
from vidqa.core.problem import Problem
from vidqa.data.claims import disagreements
from vidqa.data.load import check_set
from vidqa.data.media import MediaSource
from vidqa.data.near_duplicates import groups_alike
from vidqa.data.record import MediaRef, Record, media_by_key
from vidqa.data.sources.files import is_medium, media_below
from vidqa.datatools.duplicates import answer_class, compared_answer, duplicate_problems, find_duplicates
from vidqa.datatools.problems import DUPLICATES
from vidqa.evaluation.thumbnails import card_frames
from vidqa.planning.samples import Planner, Prompting, Sample
from vidqa.video.probe import header_problems, probe_many
from vidqa.video.types import ImageMeta, VideoMeta

MOST_ANSWERS = 12  # of one kind; the others are counted together
MOST_GROUPS = 50  # sizes, rates, groups of duplicates in the facts
LONGEST = 10
CARDS = 12  # media shown with frames
FRAMES = 4  # of each video
QUESTIONS = 6  # of each medium
BINS = 24
PROBLEMS_SHOWN = 30
SHADES = 6
OTHERS = "(others)"
TWICE = {
    "contradicting": "equal questions with different answers",
    "repeated": "equal questions with one answer",
    "same_content": "files with the same bytes",
    "look_alike": "files that look alike",
}


@dataclass(frozen=True)
class Inspection:
    """Results of an inspection. `facts` is for JSON. `media` are metadata by key, without broken files."""

    facts: dict[str, Any]
    records: list[Record]
    media: dict[str, VideoMeta | ImageMeta]
    samples: list[Sample]
    problems: list[Problem]


def inspect_dataset(
    annotation_path: str | Path,
    media_path: str | Path = "",
    *,
    model: Path | None = None,
    fps: float | None = None,
    nframes: int | None = None,
    skip_near_duplicates: bool = False,
) -> Inspection:
    """Read annotations and the header of every file, and compare three frames of each unless `skip_near_duplicates`.
    With a model folder, plan every sample and count its tokens.

    Invalid records, files and samples are reported as problems; the facts are about the others.
    """
    records, problems, source = check_set(annotation_path, media_path)
    refs = media_by_key(records)
    headers = dict(zip(refs, probe_many(refs.values()), strict=True))
    media = {key: header for key, header in headers.items() if not isinstance(header, list)}
    unused_media, unnamed_members = unreferenced_media(source) if source is not None else ([], {})
    problems += [problem for key, header in headers.items() for problem in header_problems(header, key)]
    problems += disagreements(records, headers)
    samples: list[Sample] = []
    if model is not None:
        planner = Planner(model, SimpleNamespace(fps=fps, nframes=nframes), Prompting())
        usable = [record for record in records if all(ref.key in media for ref in record.media)]
        samples, unplanned = planner.plan(usable)
        problems += unplanned
    twice = find_duplicates(records)
    problems += [problem for what, groups in twice.items() for problem in duplicate_problems(groups, what)]
    alike = None if skip_near_duplicates else groups_alike([refs[key] for key in media], media)[0][:MOST_GROUPS]
    facts = {
        "annotations": str(annotation_path),
        **_counts(records, refs.values()),
        "kinds": _kinds(records),
        **_media_facts(media.values(), refs),
        "tokens": _token_facts(samples),
        **{what: groups[:MOST_GROUPS] for what, groups in twice.items()},
        "look_alike": alike,
        "unused_media": unused_media[:MOST_GROUPS],
        "unused_media_count": len(unused_media),
        "unnamed_members": unnamed_members,
        "problems": dict(Counter(problem.code for problem in problems).most_common()),
    }
    return Inspection(facts, records, media, samples, problems)


def _counts(records: Sequence[Record], refs: Iterable[MediaRef]) -> dict[str, int]:
    kinds = Counter(ref.kind for ref in refs)
    return {
        "records": len(records),
        "videos": kinds["video"],
        "images": kinds["image"],
        "text_only": sum(not record.media for record in records),
        "several_media": sum(len(record.media) > 1 for record in records),
        "questions": sum(turn.role == "user" for record in records for turn in record.turns),
        "several_questions": sum(sum(turn.role == "user" for turn in record.turns) > 1 for record in records),
        "with_system_turn": sum(record.turns[0].role == "system" for record in records),
        "with_thinking": sum("<think>" in record.answer for record in records),
    }


def _kinds(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Count the records and answers of each kind."""
    answers: defaultdict[str, Counter[str]] = defaultdict(Counter)
    compared: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        kind = record.kind or "(no kind)"
        answers[kind][answer_class(record)] += 1
        compared[kind][compared_answer(record)] += 1
    return {
        kind: {
            "records": counts.total(),
            "answers": _most_common(counts),
            "most_common": compared[kind].most_common(1)[0][0],
            "most_common_share": round(max(compared[kind].values()) / counts.total(), 4),
        }
        for kind, counts in sorted(answers.items(), key=lambda item: -item[1].total())
    }


def _most_common(counts: Counter[str]) -> dict[str, int]:
    shown = dict(counts.most_common(MOST_ANSWERS))
    rest = counts.total() - sum(shown.values())
    return {**shown, OTHERS: rest} if rest else shown


def _media_facts(media: Iterable[VideoMeta | ImageMeta], refs: dict[str, MediaRef]) -> dict[str, Any]:
    headers = list(media)
    videos = [header for header in headers if isinstance(header, VideoMeta)]
    return {
        "bytes": sum(ref.size for ref in refs.values()),
        "duration_s": summary([video.duration_s for video in videos]),
        "frames": summary([video.frame_count for video in videos]),
        "sizes": _counted(f"{header.width}x{header.height}" for header in headers),
        "rates": _counted(f"{video.source_fps:.4g}" for video in videos),
        "codecs": _counted(video.codec for video in videos),
        "variable_rate": sum(video.frame_times_s is not None for video in videos),
        "rotated": sum(video.rotation != 0 for video in videos),
    }


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common(MOST_GROUPS))


def _token_facts(samples: Sequence[Sample]) -> dict[str, Any] | None:
    """Token statistics of the samples; None if there are no samples, as without a model."""
    if not samples:
        return None
    longest = sorted(samples, key=lambda sample: -sample.length)[:LONGEST]
    return {
        "per_sample": summary([sample.length for sample in samples]),
        "media": summary([sample.media_tokens for sample in samples]),
        "learned": summary([sample.supervised for sample in samples]),
        "longest": [{"id": sample.record.id, "tokens": sample.length} for sample in longest],
    }


def summary(values: Sequence[float]) -> dict[str, float] | None:
    """Minimum, median, 95th percentile, maximum and sum; None for an empty list. The percentile is one of the items."""
    if not values:
        return None
    ordered = sorted(values)
    figures = {
        "min": ordered[0],
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))],
        "max": ordered[-1],
        "sum": sum(ordered),
    }
    return {name: round(value, 3) for name, value in figures.items()}


def facts_text(facts: dict[str, Any]) -> str:
    """Format the facts as text of about forty lines at most."""
    counts = {name: value for name, value in facts.items() if isinstance(value, int) and name != "unused_media_count"}
    lines = [f"{name.replace('_', ' '):<20} {count}" for name, count in counts.items() if count]
    for name, kind in list(facts["kinds"].items())[:10]:
        answers = ", ".join(f"{answer} {count}" for answer, count in list(kind["answers"].items())[:6])
        lines.append(f"  {name[:18]:<18} {kind['records']}: {answers}")
    tokens = facts["tokens"] or {}
    spans = {"duration s": facts["duration_s"], "frames": facts["frames"], "tokens": tokens.get("per_sample")}
    spans |= {"media tokens": tokens.get("media"), "learned tokens": tokens.get("learned")}
    for name, span in spans.items():
        if span:
            lines.append(f"{name:<20} " + ", ".join(f"{key} {value:g}" for key, value in span.items()))
    for name in ("sizes", "rates", "codecs"):
        if facts[name]:
            lines.append(f"{name:<20} " + ", ".join(f"{key} ({n})" for key, n in list(facts[name].items())[:6]))
    for name, what in TWICE.items():
        if facts[name] is not None:
            lines.append(f"{name.replace('_', ' '):<20} {len(facts[name])} groups of {what}")
    if facts["unused_media"]:
        named = ", ".join(facts["unused_media"][:5])
        lines.append(f"{'unused media':<20} {facts['unused_media_count']} files that no record names: {named}")
    for archive, count in facts["unnamed_members"].items():
        lines.append(f"{'in archives':<20} {count} more media in {archive}, which no record of this set names")
    return "\n".join(lines)


def unreferenced_media(source: MediaSource) -> tuple[list[str], dict[str, int]]:
    """Return (files that no record names, relative to the folder and sorted; for each archive in use the number of its
    unnamed media, which are included where a split links the whole archive).

    Media of an unused archive are listed as archive!member. Copies of used files, such as an archive beside its
    unpacked content, are not counted. Media named by invalid records count as used."""
    used = {ref.path for ref in source.resolved()}
    real = {os.path.realpath(path) for path in used}
    copies = {(os.path.basename(ref.member or ref.path), ref.size) for ref in source.resolved()}
    files = [
        os.path.relpath(path, source.folder)
        for path in (media_below(source.folder) if source.folder else ())
        if path not in used
        and os.path.realpath(path) not in real
        and os.path.exists(path)  # not a broken link
        and (os.path.basename(path), os.path.getsize(path)) not in copies
    ]
    named = {ref.member or ref.path for ref in source.resolved()}
    counts: dict[str, int] = {}
    for archive in source.archives if source.archive_paths else ():
        media = {name: member for name, member in archive.members.items() if is_medium(name)}
        other = [name for name, member in media.items() if (os.path.basename(name), member.size) not in copies]
        own = [name for name in other if (media[name].name or media[name].path) not in named]
        if len(own) == len(media):
            files += [f"{os.path.basename(archive.path)}!{name}" for name in own]
        elif own:
            counts[os.path.basename(archive.path)] = len(own)
    return sorted(files), counts


def inspection_page(inspection: Inspection) -> str:
    """Render the HTML page."""
    facts = inspection.facts
    lengths = facts["duration_s"]
    groups = {what.capitalize(): facts[name] for name, what in TWICE.items()}
    groups["Media that no record names"] = [[name] for name in facts["unused_media"]]
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
    return {"name": name, "records": kind["records"], "answers": answers, "most": kind}


def _histograms(inspection: Inspection) -> list[tuple[str, dict[str, Any]]]:
    durations = [header.duration_s for header in inspection.media.values() if isinstance(header, VideoMeta)]
    series: dict[str, Sequence[float]] = {
        "Duration of videos, seconds": durations,
        "Tokens of samples": [sample.length for sample in inspection.samples],
        "Learned tokens of samples": [sample.supervised for sample in inspection.samples],
    }
    return [(name, histogram(values)) for name, values in series.items() if values]


def histogram(values: Sequence[float], bins: int = BINS) -> dict[str, Any]:
    """Bars of equal width from the smallest to the largest value, with heights in percent of the highest bar."""
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
    """`CARDS` media, evenly spread over the set, each with the records that use it."""
    users: dict[str, tuple[MediaRef, list[Record]]] = {}
    for record in records:
        for ref in media_by_key([record]).values():
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
    """Format a duration with a suitable unit: s, min or h."""
    if value < 90:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 5400 else f"{value / 3600:.3g} h"
