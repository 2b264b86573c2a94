"""Keys beside one medium: its frames, size and tokens are planned by them, in a plan that is stored, too."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clips import decode_frames, frame_numbers, write_clip, write_image
from tiny_world import tiny_model

from vidqa.core.problem import ProblemError
from vidqa.data import MediaRef, Record, Turn
from vidqa.data.load import check_records
from vidqa.planning.plan import Plan, PlannedSet, cut_into_windows
from vidqa.planning.plan_cache import decode, encode
from vidqa.planning.samples import Planner, Prompting, Sample
from vidqa.video.plan import plan_image
from vidqa.video.types import FramePlan, vision_spec

FRAMES, FPS = 40, 10.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    tiny_model(folder)
    write_clip(folder / "a.mp4", frames=FRAMES, fps=FPS, width=160, height=96)
    write_image(folder / "b.png", width=320, height=192)
    return folder


def planner(folder: Path, **vision: Any) -> Planner:
    return Planner(folder / "model", SimpleNamespace(**(vision or {"nframes": 4})), Prompting())


def records(folder: Path, *parts: dict[str, Any]) -> list[Record]:
    rows = [
        {"messages": [{"role": "user", "content": [part, "What?"]}, {"role": "assistant", "content": "yes"}]}
        for part in parts
    ]
    (folder / "annotations.json").write_text(json.dumps(rows))
    found, problems = check_records(folder)
    assert not problems
    return found


def video(**keys: Any) -> dict[str, Any]:
    return {"type": "video", "video": "a.mp4", **keys}


def planned(folder: Path, part: dict[str, Any], **vision: Any) -> FramePlan:
    samples, problems = planner(folder, **vision).plan(records(folder, part))
    assert not problems
    return samples[0].plans[0]


def range_of(start: float, end: float) -> tuple[int, int]:
    """The first and last frame between two seconds, as qwen-vl-utils counts them."""
    return math.ceil(start * FPS), min(math.floor(end * FPS), FRAMES - 1)


@pytest.mark.parametrize(("start", "end"), [(0.5, 1.0), (0.55, 2.49), (0.0, 0.3), (1.0, 99.0)])
@pytest.mark.parametrize("count", [2, 4])
def test_the_frames_between_two_seconds_are_those_of_qwen_vl_utils(
    folder: Path, start: float, end: float, count: int
) -> None:
    plan = planned(folder, video(video_start=start, video_end=end, nframes=count))
    expected = np.linspace(*range_of(start, end), count).round().astype(int).tolist()
    assert list(plan.indices) == expected
    assert frame_numbers(decode_frames(folder / "a.mp4", None, plan.indices)) == expected


KEYS = (
    {"fps": 2.0},
    {"fps": 5.0, "min_frames": 12, "max_frames": 16},
    {"fps": 5.0, "max_frames": 6},
    {"nframes": 6},
    {"nframes": 4, "max_pixels": 64 * 64},
    {"nframes": 4, "min_pixels": 512 * 512},
    {"nframes": 4, "total_pixels": 2 * 64 * 64},
    {"nframes": 4, "resized_height": 64, "resized_width": 128},
    {"nframes": 4, "video_start": 1.0},
    {"nframes": 4, "video_end": 2.0},
)


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize(
    "table", [{"nframes": 10}, {"fps": 1.0}, {"nframes": 10, "resized_height": 32, "resized_width": 32}], ids=str
)
def test_a_key_of_a_medium_takes_the_place_of_the_tables(
    folder: Path, keys: dict[str, Any], table: dict[str, Any]
) -> None:
    """What a medium asks for is what the table would ask for with these keys alone; other media keep the table's."""
    others = {} if any("pixels" in name for name in keys) else {k: v for k, v in table.items() if "resized" in k}
    alone = planned(folder, video(), **{**others, **keys})
    samples, problems = planner(folder, **table).plan(records(folder, video(**keys), video()))
    assert not problems and samples[0].plans[0] == alone
    assert samples[1].plans[0] == planned(folder, video(), **table) != alone


def test_a_key_of_an_image_is_its_own(folder: Path) -> None:
    image = {"type": "image", "image": "b.png"}
    asked = [{}, {"max_pixels": 96 * 64}, {"resized_height": 64, "resized_width": 64}]
    samples, _ = planner(folder).plan(records(folder, *({**image, **keys} for keys in asked)))
    geometry = planner(folder).geometry
    expected = [plan_image(320, 192, vision_spec(geometry, nframes=4, **keys)) for keys in asked]
    assert [sample.plans[0] for sample in samples] == expected and len({plan.tokens for plan in expected}) == 3


def test_samples_with_other_frames_of_one_video_share_no_prefix(folder: Path) -> None:
    samples, _ = planner(folder).plan(records(folder, video(), video(video_start=1), video(), video(nframes=4)))
    whole, later, again, same = (sample.prefix_key for sample in samples)
    assert whole == again == same != later


@pytest.mark.parametrize("keys", [{"max_frames": 4}, {"video_start": 30.0}, {"min_pixels": 2 * 10**9}])
def test_keys_that_cannot_hold_are_problems_of_the_record(folder: Path, keys: dict[str, Any]) -> None:
    samples, problems = planner(folder, nframes=4).plan(records(folder, video(**keys)))
    assert not samples and problems[0].code == "MEDIA_KEYS" and "(id 0)" in problems[0].where


def test_a_stored_plan_keeps_keys_and_what_is_learned(folder: Path) -> None:
    medium = MediaRef("video", "a.mp4", str(folder / "a.mp4"), keys=(("fps", 2.0), ("max_pixels", 65536)))
    turns = (Turn("user", (0, "Q")), Turn("assistant", ("A",), False), Turn("user", ("R",)), Turn("assistant", ("B",)))
    record = Record("r", turns, (medium,), source="set[0]")
    samples, problems = planner(folder).plan([record])
    plan = Plan({"train": PlannedSet([record], samples, problems)}, "")
    stored = decode(encode(plan, {}, {}))
    assert not problems and stored == plan
    keys = stored.sets["train"].records[0].media[0].keys
    assert [type(value) for _, value in keys] == [float, int], "nframes must stay a whole number"


def test_only_turns_that_are_learned_are_supervised(folder: Path) -> None:
    def sample(first: bool, last: bool, system: str = "") -> tuple[Planner, Sample]:
        turns = [Turn("user", ("Q",)), Turn("assistant", ("first",), first)]
        turns += [Turn("user", ("R",)), Turn("assistant", ("last",), last)]
        own = Planner(folder / "model", SimpleNamespace(nframes=4), Prompting(system))
        return own, own.plan([Record("r", tuple(turns))])[0][0]

    def learned(first: bool, last: bool, system: str = "") -> str:
        own, made = sample(first, last, system)
        encoded = own.encode(made)
        assert np.count_nonzero(encoded.supervised) == made.supervised
        return own.chat.decode(encoded.token_ids[encoded.supervised])

    for system in ("", "Be brief."):
        both, first, last = learned(True, True, system), learned(True, False, system), learned(False, True, system)
        assert both == first + last and "first" in first and "last" in last
        assert learned(False, False, system) == ""


def test_a_turn_that_is_context_needs_no_thinking(folder: Path) -> None:
    turns = (Turn("user", ("Q",)), Turn("assistant", ("A",), False))
    turns += (Turn("user", ("R",)), Turn("assistant", ("<think>so</think>B",)))
    think = Planner(folder / "model", SimpleNamespace(nframes=4), Prompting(response_mode="think"))
    assert think.plan([Record("r", turns)])[1] == []


def test_windows_are_cut_of_the_part_that_a_record_shows(folder: Path) -> None:
    found = cut_into_windows(records(folder, video(video_start=1.0, video_end=3.0)), 1.5, 0.5)
    assert [each.media[0].span for each in found] == [(1.0, 2.5), (2.0, 3.0)]
    samples, problems = planner(folder).plan(found)
    assert not problems and [sample.plans[0].indices[0] for sample in samples] == [10, 20]


def test_a_model_without_such_a_bound_says_so(folder: Path) -> None:
    geometry = planner(folder).geometry
    bare = replace(geometry, video=replace(geometry.video, max_frame_tokens=None))
    with pytest.raises(ProblemError, match="does not support it"):
        vision_spec(bare, nframes=4, cap_pixels_per_frame=True)
