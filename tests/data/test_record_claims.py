"""What records state about their videos is compared with the files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from tests.clips import write_clip
from vidqa.data import Record
from vidqa.data.claims import disagreements, fps_differs
from vidqa.data.record import MediaRef
from vidqa.video.probe import probe


def test_stated_rates_and_ends_are_compared_with_the_file(tmp_path: Path) -> None:
    """Once per file and value; a rate within 1 % and an end within a frame are the file's."""
    path = str(write_clip(tmp_path / "ntsc.mp4", frames=30, fps=Fraction(30000, 1001)))
    meta = probe(path)
    assert not fps_differs(meta, None) and not fps_differs(meta, 30) and fps_differs(meta, 25)

    def record(at: int, fps: float | None = None, **keys: float) -> Record:
        ref = MediaRef("video", "ntsc.mp4", path, keys=tuple(keys.items()))
        return Record(str(at), (), (ref,), fps, source=f"annotations.json[{at}]")

    stated = [record(0, 30), record(1, 25), record(2, 25), record(3, video_start=0.5), record(4, video_end=1.03)]
    stated += [record(at, video_end=end) for at, end in ((5, 1.1), (6, 2.0), (7, 1.1))]
    problems = disagreements(stated, {path: meta})
    assert {(problem.code, problem.severity) for problem in problems} == {("MEDIA_READ_DIFFERENTLY", "warning")}
    assert [(problem.where, problem.message) for problem in problems] == [
        (
            "annotations.json[1]",
            "video_fps is 25, the file has 29.97 frames per second, which are used (ntsc.mp4); and in 1 more records",
        ),
        (
            "annotations.json[5]",
            "video_end is 1.1, the video ends at 1.001 s, where the used part ends (ntsc.mp4); and in 1 more records",
        ),
        ("annotations.json[6]", "video_end is 2, the video ends at 1.001 s, where the used part ends (ntsc.mp4)"),
    ]
    assert disagreements(stated, {}) == []
