"""A window of a video is planned as the clip that it would be if it had been cut out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from clips import decode_frames, frame_numbers, write_clip
from tiny_world import tiny_model

from vidqa.core.problem import ProblemError
from vidqa.data.record import MediaRef, Record, Turn
from vidqa.planning.plan import cut_into_windows, source_id, window_of, window_spans
from vidqa.planning.samples import Planner, Prompting
from vidqa.video.plan import plan_frames
from vidqa.video.probe import probe
from vidqa.video.types import vision_spec


def record(path: Path, name: str = "a", *more: Path) -> Record:
    media = tuple(MediaRef("video", each.name, str(each)) for each in (path, *more))
    return Record(name, (Turn("user", (*range(len(media)), "Why?")),), media, source=f"list[{name}]")


def test_windows_cover_a_video_and_have_the_overlap_in_common() -> None:
    assert window_spans(30.0, 30.0, 5.0) == []
    assert window_spans(31.0, 30.0, 5.0) == [(0.0, 30.0), (25.0, 31.0)]
    assert window_spans(80.0, 30.0, 5.0) == [(0.0, 30.0), (25.0, 55.0), (50.0, 80.0)]
    assert window_spans(61.0, 20.0, 0.0) == [(0.0, 20.0), (20.0, 40.0), (40.0, 60.0), (60.0, 61.0)]


def test_records_are_cut_where_one_video_is_longer_than_a_window(tmp_path: Path) -> None:
    long = write_clip(tmp_path / "long.mp4", frames=50, fps=10)
    short = write_clip(tmp_path / "short.mp4", frames=10, fps=10)
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    asked = [record(long), record(short, "b"), record(tmp_path / "broken.mp4", "c"), record(long, "d", short)]
    found = cut_into_windows(asked, 2.0, 0.5)
    assert [each.id for each in found] == ["a#t=0,2", "a#t=1.5,3.5", "a#t=3,5", "b", "c", "d"]
    assert [window_of(each) for each in found[:3]] == [(0.0, 2.0), (1.5, 3.5), (3.0, 5.0)]
    assert [source_id(each) for each in found] == ["a", "a", "a", "b", "c", "d"]
    assert cut_into_windows(asked, 0.0, 0.0) == asked


@pytest.mark.parametrize("vision", [{"fps": 3.0}, {"nframes": 5}])
@pytest.mark.parametrize("times", [None, [0, 1, 2, 3, 7, 8, 9, 13, 14, 15, 16, 20, 21, 22, 24, 29, 30, 31, 32, 39]])
def test_a_window_is_planned_like_the_clip_that_was_cut_out(
    tmp_path: Path, model: Path, vision: dict[str, float], times: list[int] | None
) -> None:
    """`times`, in tenths of a second, of a video whose frame rate varies."""
    first, end = 7, 15
    shown_at = times or list(range(20))
    of_whole = times and [100 * at for at in times]
    of_cut = times and [100 * (at - times[first]) for at in times[first:end]]
    whole = write_clip(tmp_path / "whole.mp4", frames=20, fps=10, times_ms=of_whole)
    cut = write_clip(tmp_path / "cut.mp4", frames=end - first, fps=10, times_ms=of_cut, first_number=first)
    span = (shown_at[first] / 10, shown_at[end] / 10)
    asked = vision_spec(Planner(model, SimpleNamespace(nframes=4), Prompting()).geometry, **vision)  # type: ignore[arg-type]
    part, clip = plan_frames(probe(whole), asked, span), plan_frames(probe(cut), asked)
    assert replace(part, times_s=(), patch_times_s=()) == replace(
        clip, indices=tuple(first + at for at in clip.indices), times_s=(), patch_times_s=()
    )
    assert part.times_s == pytest.approx(clip.times_s) and part.patch_times_s == pytest.approx(clip.patch_times_s)
    shown = frame_numbers(decode_frames(whole, None, part.indices))
    assert shown == frame_numbers(decode_frames(cut, None, clip.indices))


def test_the_last_window_ends_with_the_last_frame(tmp_path: Path, model: Path) -> None:
    meta = probe(write_clip(tmp_path / "a.mp4", frames=50, fps=10))
    asked = vision_spec(Planner(model, SimpleNamespace(nframes=4), Prompting()).geometry, nframes=4)
    assert plan_frames(meta, asked, (3.0, meta.duration_s)).indices[-1] == 49
    with pytest.raises(ProblemError, match="MEDIA_KEYS"):
        plan_frames(meta, asked, (7.0, 9.0))


def test_windows_of_one_video_are_samples_of_their_own(tmp_path: Path, model: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", frames=50, fps=10)
    planner = Planner(model, SimpleNamespace(nframes=4), Prompting(for_generation=True))
    parts = cut_into_windows([record(clip)], 2.0, 0.5)
    samples, problems = planner.plan(parts)
    assert not problems and [each.record for each in samples] == parts
    assert [each.plans[0].indices for each in samples] == [(0, 6, 13, 19), (15, 21, 28, 34), (30, 36, 43, 49)]
    assert all(each.plans[0].times_s[0] == 0 for each in samples)
    assert len({each.prefix_key for each in samples}) == 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))
