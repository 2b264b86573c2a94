"""Preflight decodes what every record shows of a file, in one request for each file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clips import write_clip
from tiny_world import tiny_model

from vidqa.data import MediaRef, Record, Turn
from vidqa.planning.samples import Planner, Prompting
from vidqa.preflight.media_checks import _requests


def test_all_views_of_a_file_are_decoded_at_once(tmp_path: Path) -> None:
    model, clip = tiny_model(tmp_path), write_clip(tmp_path / "a.mp4", frames=20, fps=5)

    def record(name: str, **keys: Any) -> Record:
        medium = MediaRef("video", "a.mp4", str(clip), keys=tuple(sorted(keys.items())))
        return Record(name, (Turn("user", (0, "Q")), Turn("assistant", ("A",))), (medium,))

    planner = Planner(model, SimpleNamespace(nframes=2), Prompting())
    samples, problems = planner.plan([record("whole"), record("part", video_start=1.0, video_end=2.0), record("again")])
    context: Any = SimpleNamespace(to_decode=samples)
    (request,) = _requests(context)
    assert not problems and request.indices == (0, 5, 10, 19)
