"""Long videos in windows: a record about one becomes a record for each window, in the order of time.

    windowed(records, 30.0, 5.0)     0 to 30 s, 25 to 55 s, 50 to 80 s, ...

A window is planned as the clip that it would be if somebody had cut it out: its frames are spread over it alone, and
its timestamps begin at 0, as those of the clips did that a model was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vidqa.data.record import MediaRef, Record
from vidqa.video.probe import probe_many
from vidqa.video.types import VideoMeta

MARK = "#t="  # between a record's id and its window
Span = tuple[float, float]


def cut_into_windows(records: Sequence[Record], window_s: float, overlap_s: float) -> list[Record]:
    """The records, those that show one video and nothing else cut where it is longer than `window_s` seconds; 0 cuts
    none. A video whose header cannot be read is left whole: whoever plans it says what is wrong."""
    if not window_s:
        return list(records)
    single = {record.media[0].file: record.media[0] for record in records if _is_one_video(record)}
    headers = zip(single, probe_many(single.values()), strict=True)
    durations = {file: header.duration_s for file, header in headers if isinstance(header, VideoMeta)}
    cut_records = []
    for record in records:
        whole = durations.get(record.media[0].file, 0.0) if _is_one_video(record) else 0.0
        start, end = _shown(record.media[0], whole) if whole else (0.0, 0.0)
        cut = window_spans(end - start, window_s, overlap_s)
        cut_records += [_part(record, (start + first, start + last)) for first, last in cut] or [record]
    return cut_records


def _shown(ref: MediaRef, duration_s: float) -> Span:
    """The part of a video that the record's own keys show, in seconds of the file."""
    keys = dict(ref.keys)
    return min(keys.get("video_start", 0.0), duration_s), min(keys.get("video_end", duration_s), duration_s)


def window_spans(duration_s: float, window_s: float, overlap_s: float) -> list[Span]:
    """The windows of a video, in seconds; none where one holds all of it. The last one ends with the video."""
    if duration_s <= window_s:
        return []
    windows = [(0.0, window_s)]
    while windows[-1][1] < duration_s:
        start = len(windows) * (window_s - overlap_s)
        windows.append((start, min(start + window_s, duration_s)))
    return windows


def source_id(record: Record) -> str:
    """The id of the record that a window was cut from; of another record, its own."""
    return record.id.rpartition(MARK)[0] if window_of(record) else record.id


def window_of(record: Record) -> Span | None:
    """The window of a record, in seconds of the file."""
    return record.media[0].span if record.media else None


def _is_one_video(record: Record) -> bool:
    return len(record.media) == 1 and record.media[0].kind == "video"


def _part(record: Record, span: Span) -> Record:
    medium: MediaRef = replace(record.media[0], span=span)
    start, end = span
    return replace(record, id=f"{record.id}{MARK}{start:.10g},{end:.10g}", media=(medium,))
