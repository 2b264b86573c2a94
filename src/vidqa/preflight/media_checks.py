"""Media checks: files are readable, all planned frames decode, and no file has a near duplicate in another set."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path

from vidqa.core.cli import FILE_REFUSED, counting
from vidqa.core.problem import Exit, Problem
from vidqa.data.claims import disagreements
from vidqa.data.near_duplicates import THUMBNAILS, keep_signatures, near_duplicate_pairs, signature, signatures
from vidqa.data.record import MediaRef, Record
from vidqa.data.record_groups import real_key
from vidqa.jobs.platforms.local import cpu_count
from vidqa.preflight import media_probe
from vidqa.preflight.data_checks import write_shared
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.preflight.media_probe import ProbeRow, Rows
from vidqa.preflight.problems import SPLIT_NEAR
from vidqa.video.pool import Decoded, DecodePool, DecodeRequest
from vidqa.video.probe import Header, header_problems
from vidqa.video.problems import VIDEO_DECODE_TIMEOUT
from vidqa.video.types import FramePlan, VideoMeta

SAVE_EVERY_S = 20.0  # the most that an interrupted preflight loses


def probed(inputs: Inputs) -> list[Problem]:
    """Check the header of every file, and the annotations' video_fps and video_end against them."""
    inputs.facts["media_files"] = len(inputs.headers)
    seconds = sum(header.duration_s for header in inputs.headers.values() if isinstance(header, VideoMeta))
    inputs.facts["video_seconds"] = round(seconds, 1)
    problems = []
    for key, header in inputs.headers.items():
        _, used_by = inputs.media[key]
        problems += [_used(problem, used_by) for problem in header_problems(header, key)]
    problems += disagreements((record for part in inputs.sets for record in part.records), inputs.headers)
    return list(_as_bad_sample(inputs, problems))


def decoded(inputs: Inputs) -> list[Problem]:
    """Decode every planned frame of every file (of `probe_sample` files), in workers that are killed if they hang.
    Results of an earlier preflight are reused for unchanged files."""
    requests = dict(islice(_requests(inputs), inputs.probe_sample))
    place = media_probe.place_for(inputs.spec_path)
    rows = media_probe.read_rows(place)
    row_by_file = {file: row for file, request in requests.items() if (row := _still_true(request, rows)) is not None}
    left = {request: file for file, request in requests.items() if file not in row_by_file}
    inputs.facts |= {"media_decoded": len(requests), "media_reused": len(row_by_file), "media_probe": str(place)}
    unwritable: list[Problem] = []
    last = time.monotonic()
    with counting("decoding", len(left)) as advance:
        try:
            for request, answer, seconds in _decode(left, inputs.decoding.decode_timeout_s):
                row = row_by_file[left[request]] = _row(request, inputs.headers[left[request]], answer, seconds)
                if row.exit_code in (Exit.OK, Exit.INPUT):  # a failure of the machine is not stored for the file
                    rows[row.identity] = row
                advance()
                if time.monotonic() - last > SAVE_EVERY_S:
                    _save(place, rows)
                    last = time.monotonic()
        finally:  # also on an interrupt
            if left:
                unwritable = _save(place, rows)
    inputs.rows |= row_by_file
    broken = []
    for file in requests:
        row, (_, used_by) = row_by_file[file], inputs.media[file]
        if row.code:
            problem = Problem(row.code, file, row.message, row.remedy, row.exit_code)
            broken.append(_used(problem, used_by))
    return [*_as_bad_sample(inputs, broken), *unwritable]


def _requests(inputs: Inputs) -> Iterator[tuple[str, DecodeRequest]]:
    """Every planned file, by MediaRef.file, and a request for all its planned frames."""
    views: dict[str, dict[Hashable, tuple[MediaRef, FramePlan]]] = {}
    for sample in inputs.to_decode:
        for ref, plan in zip(sample.record.media, sample.plans, strict=True):
            views.setdefault(ref.file, {})[ref.view] = ref, plan
    for file, of_file in views.items():
        ref, first = next(iter(of_file.values()))
        indices = first.indices
        if len(of_file) > 1:
            indices = tuple(sorted({index for _, plan in of_file.values() for index in plan.indices}))
        yield file, DecodeRequest(ref.path, ref.member, ref.kind, indices, first.height, first.width)


def _still_true(request: DecodeRequest, rows: Rows) -> ProbeRow | None:
    """The row of an earlier preflight if the file is unchanged. A file that timed out is decoded again."""
    row = rows.get((request.path, request.member, media_probe.plan_key(request)))
    if row is None or row.code == VIDEO_DECODE_TIMEOUT.name:
        return None
    return row if row.content_key and row.content_key == media_probe.content_key(request.path) else None


def _decode(requests: Iterable[DecodeRequest], timeout_s: float) -> Iterator[tuple[DecodeRequest, Decoded, float]]:
    """Request, its frames or problem, and seconds, of every request, as they end. At most one per worker is submitted,
    so that the seconds are those of decoding."""
    workers = max(1, cpu_count())
    waiting: dict[Future[Decoded], tuple[DecodeRequest, float]] = {}
    remaining = iter(requests)
    with DecodePool(workers, timeout_s, THUMBNAILS) as pool:  # workers return thumbnails, not the frames
        while True:
            while len(waiting) < workers and (request := next(remaining, None)) is not None:
                waiting[pool.submit(request)] = (request, time.monotonic())
            if not waiting:
                return
            for ended in wait(waiting, return_when=FIRST_COMPLETED).done:
                request, started = waiting.pop(ended)
                yield request, ended.result(), time.monotonic() - started


def _row(request: DecodeRequest, header: Header, answer: Decoded, seconds: float) -> ProbeRow:
    video = header if isinstance(header, VideoMeta) else None
    size = None if isinstance(header, list) else header
    problem = answer if isinstance(answer, Problem) else None
    return ProbeRow(
        path=request.path,
        member=request.member,
        kind=request.kind,
        content_key=media_probe.content_key(request.path),
        plan_key=media_probe.plan_key(request),
        fps=video.source_fps if video else None,
        frames=video.frame_count if video else None,
        width=size.width if size else None,
        height=size.height if size else None,
        duration_s=video.duration_s if video else None,
        rotation=video.rotation if video else None,
        frames_decoded=0 if isinstance(answer, Problem) else len(answer),
        decode_s=round(seconds, 4),
        code=problem.code if problem else "",
        message=problem.message if problem else "",
        remedy=problem.remedy if problem else "",
        exit_code=problem.exit_code if problem else 0,
        glance=None if isinstance(answer, Problem) else signature(answer),
    )


def _save(place: Path, rows: Rows) -> list[Problem]:
    try:
        media_probe.write_rows(place, rows.values())
    except OSError as failed:
        return [FILE_REFUSED.at(place, f"{failed.strerror or failed}", severity="warning")]
    return []


def near_duplicates(inputs: Inputs) -> list[Problem]:
    """Find files of two sets that look alike: the same scene, cut or re-encoded. Compares the decoded planned frames;
    without them, three frames of each file."""
    inputs.require_disjoint_sets()
    by_file = {key: row.glance for key, row in inputs.rows.items() if row.glance is not None}
    if not inputs.rows:
        looked_at = [ref for ref, _ in inputs.media.values()][: inputs.probe_sample]
        by_file = signatures(looked_at, inputs.headers, inputs.decoding.decode_timeout_s)
    else:
        keep_signatures(_signed(inputs, by_file), inputs.headers)
    if not by_file:
        raise Skip("no file could be decoded")
    sides = [
        (part.name, sorted({ref.file for record in part.records for ref in record.media} & by_file.keys()))
        for part in inputs.sets
    ]
    real_keys = {key: real_key(ref) for key, (ref, _) in inputs.media.items()}
    equal = {(key, key) for key in real_keys.values()}
    problems = []
    for (name, these), (other, those) in combinations(sides, 2):
        where = f"{name} and {other}"
        reported = equal.union(inputs.leaks.get(where, {}).get("same_content", ()))  # by the check `disjoint`
        pairs = near_duplicate_pairs([by_file[key] for key in these], [by_file[key] for key in those])
        named = [(these[left], those[right]) for left, right in pairs]
        twins = [(one, copy) for one, copy in named if (real_keys[one], real_keys[copy]) not in reported]
        shown = write_shared(inputs, where, "look_alike", twins)
        if twins:
            message = f"{len(twins)} pairs of files of {name} and {other} look the same{shown}"
            problems.append(SPLIT_NEAR.at(where, message, severity="warning"))
    return problems


def _signed(inputs: Inputs, by_file: dict[str, bytes]) -> Iterator[tuple[MediaRef, tuple[int, ...], bytes]]:
    """Every file with its signature and the frames of the signature."""
    for file, request in _requests(inputs):
        if file in by_file:
            frames = request.indices
            three = (frames[0], frames[len(frames) // 2], frames[-1])
            yield inputs.media[file][0], three, by_file[file]


def _used(problem: Problem, by: list[Record]) -> Problem:
    more = f" and {len(by) - 1} more" if len(by) > 1 else ""
    return replace(problem, message=f"{problem.message} (used by {by[0].source}{more})")


def _as_bad_sample(inputs: Inputs, problems: list[Problem]) -> Iterator[Problem]:
    for problem in problems:
        of_the_data = problem.severity == "error" and problem.exit_code == Exit.INPUT
        yield replace(problem, severity=inputs.bad_sample_severity) if of_the_data else problem
