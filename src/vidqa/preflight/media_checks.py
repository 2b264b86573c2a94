"""Media: every file can be read, and every frame that the run will ask for can be decoded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from vidqa.data.record import MediaRef, Record
from vidqa.platforms.hardware import cpu_count
from vidqa.preflight._base import Context
from vidqa.problem import Problem, ProblemError
from vidqa.video import fps_disagreement, probe, probe_image
from vidqa.video.pool import DecodePool, DecodeRequest

PROBE_THREADS = 8
# The frames themselves are not wanted here; a corner of each is less to send between processes.
CORNER = "vidqa.preflight.corner:corner"


def probed(context: Context) -> list[Problem]:
    """The header of every file, and the frame rate against what annotations claim."""
    files = list(context.media.values())
    with ThreadPoolExecutor(PROBE_THREADS) as pool:
        found = list(pool.map(lambda file: _probe(*file), files))
    context.facts["media_files"] = len(files)
    context.facts["video_seconds"] = round(sum(seconds for seconds, _ in found), 1)
    return [problem for _, problems in found for problem in _as_bad_sample(context, problems)]


def _probe(ref: MediaRef, used_by: list[Record]) -> tuple[float, list[Problem]]:
    """Seconds of video, and what is wrong with the file."""
    try:
        if ref.kind == "image":
            probe_image(ref.path, ref.member)
            return 0.0, []
        meta = probe(ref.path, ref.member)
    except ProblemError as broken:
        return 0.0, [replace(problem, message=f"{problem.message} ({_users(used_by)})") for problem in broken.problems]
    claims = {record.video_fps: record.source for record in used_by if len(record.media) == 1}
    disagreements = (fps_disagreement(meta, fps, source) for fps, source in claims.items())
    return meta.duration_s, [problem for problem in disagreements if problem]


def decoded(context: Context) -> list[Problem]:
    """Every planned frame of every file (of `probe_sample` files), in workers that are killed when they hang."""
    requests = list(_requests(context))[: context.probe_sample]
    problems = []
    with DecodePool(max(1, cpu_count()), context.spec.engine.decode_timeout_s, CORNER) as pool:
        for request, answer in pool.map(requests):
            if isinstance(answer, Problem):
                used_by = context.media[_key(request)][1]
                problems.append(replace(answer, message=f"{answer.message} ({_users(used_by)})"))
    context.facts["media_decoded"] = len(requests)
    return list(_as_bad_sample(context, problems))


def _requests(context: Context) -> Iterator[DecodeRequest]:
    """One for every file that could be planned."""
    seen = set()
    for samples, _ in context.planned.values():
        for sample in samples:
            for ref, plan in zip(sample.record.media, sample.plans, strict=True):
                if ref.key not in seen:
                    seen.add(ref.key)
                    yield DecodeRequest(ref.path, ref.member, ref.kind, plan.indices, plan.height, plan.width)


def _key(request: DecodeRequest) -> str:
    return MediaRef(request.kind, "", request.path, request.member).key


def _users(records: list[Record]) -> str:
    more = f" and {len(records) - 1} more" if len(records) > 1 else ""
    return f"used by {records[0].source}{more}"


def _as_bad_sample(context: Context, problems: list[Problem]) -> Iterator[Problem]:
    for problem in problems:
        is_error = problem.severity == "error"
        yield replace(problem, severity=context.bad_samples_are) if is_error else problem
