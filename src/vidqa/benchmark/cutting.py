"""Cut the clips of subsets that are not part of the benchmark's download from their raw data sets.

holoassist   NAME_coarse_I_fine_J.mp4: the event J with the label "Fine grained action" of the video NAME
agibot       TASK-EPISODE-CAMERA-FIRST-END.mp4: those frames of the camera's video
bridgev2     FOLDER.EPISODE.X.clipframeNNN.mp4: frames 0 to NNN of an episode, from the TFRecord files of the set

A clip appears only when it is complete. Existing clips are kept, so that a stopped run can be resumed.
"""

from __future__ import annotations

import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidqa.benchmark.problems import BENCHMARK_CUT
from vidqa.benchmark.questions import clips_of, home_of
from vidqa.benchmark.tfrecord import examples
from vidqa.core.cli import counting
from vidqa.core.files import parse_json
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.archive import open_archive
from vidqa.video.decode import read_frames
from vidqa.video.encode import write_h264
from vidqa.video.probe import probe

if TYPE_CHECKING:
    import numpy as np


ANNOTATIONS = "data-annotation-trainval-v1_1.json"
FINE = "Fine grained action"
HOLOASSIST = re.compile(r"(?P<video>.+?)_coarse_\d+_fine_(?P<id>\d+)")
AGIBOT = re.compile(r"(?P<task>\d+)-(?P<episode>\d+)-(?P<camera>\w+)-(?P<first>\d+)-(?P<end>\d+)")
BRIDGE = re.compile(r"(?P<folder>[^.]+)\.(?P<episode>\d+)\.[^.]+\.clipframe(?P<last>\d{3,})")
DEMUXERS = {b"\xff\xd8": "jpeg_pipe", b"\x89P": "png_pipe"}  # by the first bytes of an encoded picture
MOST_BYTES = 4 << 30
BRIDGE_FPS = Fraction(30)
IMAGES = "steps/observation/image_0"


@dataclass(frozen=True)
class Part:
    """A part of a video file, or of a member of a tar: `start` and `end` in seconds, or with `in_frames` in frames; the
    end is exclusive."""

    path: Path
    member: str | None
    start: float
    end: float
    in_frames: bool = False


def parse_name(pattern: re.Pattern[str], clip: str) -> dict[str, str]:
    """Parse a clip's name. Raises BENCHMARK_CUT."""
    match = pattern.fullmatch(clip.removesuffix(".mp4"))
    if match is None:
        raise BENCHMARK_CUT.error(clip, "its name does not give its source")
    return match.groupdict()


class Videos:
    """The videos below a folder, unpacked or in tars, indexed by path suffix."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_end: dict[str, list[tuple[Path, str | None]]] = defaultdict(list)
        for path in sorted(folder.rglob("*")):
            if path.suffix == ".mp4":
                self._add(path, None, path.as_posix())
            elif path.suffix == ".tar" and path.is_file():
                for name in open_archive(path).members:
                    if name.endswith(".mp4"):
                        self._add(path, name, f"{path.parent.as_posix()}/{name}")

    def _add(self, path: Path, member: str | None, name: str) -> None:
        parts = name.split("/")
        for depth in range(1, min(6, len(parts)) + 1):
            self.by_end["/".join(parts[-depth:])].append((path, member))
            self.by_end["/".join(parts[-depth:-1]) + "/"].append((path, member))

    def find(self, clip: str, end: str) -> tuple[Path, str | None]:
        """The video with this path suffix; if it ends in /, the first one in such a folder. Raises BENCHMARK_CUT."""
        if not (videos := self.by_end.get(end)):
            raise BENCHMARK_CUT.error(clip, f"no video {end} is in {self.folder}")
        return videos[0]


def holoassist(raw: Path, clips: Sequence[str]) -> Iterator[tuple[str, Part | ProblemError]]:
    """Yield the part of every clip, or an error. Raises BENCHMARK_CUT."""
    events = _events(raw / ANNOTATIONS)
    videos = Videos(raw)

    def part(clip: str) -> Part:
        name = parse_name(HOLOASSIST, clip)
        event = events.get((name["video"], int(name["id"])))
        if event is None:
            raise BENCHMARK_CUT.error(clip, f"{ANNOTATIONS} has no {FINE.lower()} {name['id']} of {name['video']}")
        return Part(*videos.find(clip, f"{name['video']}/Export_py/"), *event)

    return _parts(clips, part)


def agibot(raw: Path, clips: Sequence[str]) -> Iterator[tuple[str, Part | ProblemError]]:
    """Yield the part of every clip, or an error."""
    videos = Videos(raw)

    def part(clip: str) -> Part:
        name = parse_name(AGIBOT, clip)
        path, member = videos.find(clip, f"{name['task']}/{name['episode']}/videos/{name['camera']}.mp4")
        return Part(path, member, int(name["first"]), int(name["end"]), in_frames=True)

    return _parts(clips, part)


def _parts(clips: Iterable[str], part: Any) -> Iterator[tuple[str, Part | ProblemError]]:
    for clip in clips:
        try:
            yield clip, part(clip)
        except ProblemError as missing:
            yield clip, missing


def _events(file: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Start and end in seconds of the fine grained actions, by video and id. Raises BENCHMARK_CUT."""
    try:
        entries = parse_json(file, MOST_BYTES)
        return {
            (entry["video_name"], int(event["id"])): (float(event["start"]), float(event["end"]))
            for entry in entries
            for event in entry.get("events", [])
            if event.get("label") == FINE
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as broken:
        raise BENCHMARK_CUT.error(file, f"it cannot be read: {type(broken).__name__} {str(broken)[:150]}") from broken


def bridge_episodes(raw: Path, clips: Sequence[str]) -> Iterator[tuple[str, list[bytes] | ProblemError]]:
    """Yield the encoded pictures of every clip, or an error, in the order of the files. Raises BENCHMARK_CUT."""
    files = sorted(path for path in raw.rglob("*.tfrecord*") if path.is_file())
    if not files:
        raise BENCHMARK_CUT.error(raw, "it contains no TFRecord file")
    requested: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    for clip in clips:
        try:
            name = parse_name(BRIDGE, clip)
        except ProblemError as unnamed:
            yield clip, unnamed
        else:
            requested[name["folder"], name["episode"]].append((clip, int(name["last"])))
    broken: list[str] = []
    for file in files:
        try:
            for example in examples(file):
                for clip, last in requested.pop(_episode(example, requested), []):
                    images = example.get(IMAGES, [])
                    too_short = f"frames 0 to {last} are needed, its episode has {len(images)}"
                    yield clip, images[: last + 1] if len(images) > last else BENCHMARK_CUT.error(clip, too_short)
        except (OSError, ValueError) as failed:
            broken.append(f"{file.name} cannot be read: {str(failed)[:100]}")
        if not requested:
            return
    why = "".join(f"; {reason}" for reason in broken[:3])
    for (folder, episode), rest in requested.items():
        for clip, _ in rest:
            yield clip, BENCHMARK_CUT.error(clip, f"no episode {episode} of {folder} is in {len(files)} files{why}")


def _episode(example: Mapping[str, list[Any]], requested: Mapping[tuple[str, str], Any]) -> tuple[str, str]:
    """The key of an episode among the requested ones: the end of its path with dashes, and its number."""
    paths, numbers = (example.get(f"episode_metadata/{name}", []) for name in ("file_path", "episode_id"))
    path = paths[0].decode("utf-8", "replace") if paths and isinstance(paths[0], bytes) else ""
    dashed = path.removesuffix("/out.npy").replace("/", "-")
    number = str(numbers[0]) if numbers else ""
    return next((key for key in requested if key[1] == number and dashed.endswith(key[0])), (dashed, number))


# Functions by subset, of the raw set's folder and clip names; they yield the source of each clip, or an error.
SOURCES: dict[str, Callable[[Path, list[str]], Iterator[tuple[str, Part | list[bytes] | ProblemError]]]] = {
    "holoassist": holoassist,
    "agibot": agibot,
    "bridgev2": bridge_episodes,
}


@dataclass
class Cut:
    """Result of cutting: the written clips, those that existed before, and the problems of the others."""

    folder: Path
    written: list[str] = field(default_factory=list)
    existing: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def cut(name: str, raw: Path, data: Path) -> Cut:
    """Cut the missing clips of a subset. Raises BENCHMARK_DATA, BENCHMARK_CUT."""
    home = home_of(data)
    result = Cut(home / name / "clips")
    missing: list[str] = []
    for clip in clips_of(home, name):
        (result.existing if (result.folder / clip).is_file() else missing).append(clip)
    with counting(f"{name} clips", len(missing)) as advance:
        for clip, source in SOURCES[name](raw, missing) if missing else ():
            try:
                if isinstance(source, ProblemError):
                    raise source
                if isinstance(source, Part):
                    frames, rate = _part_frames(clip, source)
                else:
                    frames, rate = map(_decoded, source), BRIDGE_FPS
                write_h264(result.folder / clip, frames, rate, "fast")
                result.written.append(clip)
            except ProblemError as failed:
                result.problems += [_named(clip, problem) for problem in failed.problems]
            except (OSError, ValueError) as failed:
                result.problems.append(BENCHMARK_CUT.at(clip, str(failed)[:200]))
            advance()
    return result


def _named(clip: str, problem: Problem) -> Problem:
    """Convert a problem of a video to one of the clip to be cut from it."""
    if problem.code == BENCHMARK_CUT.name:
        return problem
    return BENCHMARK_CUT.at(clip, f"{problem.where}: {problem.message}")


def _part_frames(clip: str, part: Part) -> tuple[Iterator[np.ndarray], Fraction]:
    """Decode a part of a video. Returns frames and frame rate. Raises BENCHMARK_CUT, and problems of the video."""
    meta = probe(part.path, part.member)
    if part.in_frames:
        first, end = int(part.start), int(part.end)
    elif meta.frame_times_s is not None:
        inside = [at for at, time in enumerate(meta.frame_times_s) if part.start <= time < part.end]
        first, end = (inside[0], inside[-1] + 1) if inside else (0, 0)
    else:
        first, end = (math.ceil(round(second * meta.source_fps, 6)) for second in (part.start, part.end))
    end = min(end, meta.frame_count)
    if not 0 <= first < end:
        unit = "frames" if part.in_frames else "seconds"
        message = f"{unit} {part.start:g} to {part.end:g} are not in its video of {meta.duration_s:.1f} seconds"
        raise BENCHMARK_CUT.error(clip, message)
    rate = Fraction(meta.source_fps).limit_denominator(1001)
    return read_frames(part.path, part.member, range(first, end)), rate


def _decoded(image: bytes) -> np.ndarray:
    """Decode a picture of an episode, JPEG or PNG."""
    import av

    demuxer = DEMUXERS.get(image[:2])
    if demuxer is None:
        raise ValueError("a picture of its episode is neither JPEG nor PNG")
    try:
        with av.open(io.BytesIO(image), "r", format=demuxer) as container:
            return next(container.decode(video=0)).to_ndarray(format="rgb24")
    except (av.FFmpegError, StopIteration) as broken:
        raise ValueError(f"a picture of its episode does not decode: {broken}") from broken
