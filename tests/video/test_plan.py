"""Frame plans against transformers' own processors, over random videos, rates, sizes and budgets."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import Qwen2VLImageProcessor, Qwen3VLVideoProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.video_utils import VideoMetadata

from vidqa.core.problem import ProblemError
from vidqa.video.plan import plan_frames, plan_image
from vidqa.video.types import PixelRules, VideoMeta, VisionSpec, vision_spec

IMAGE = PixelRules(16, 2, 2, 65536, 16777216)
BOUNDS = [(4096, 25165824), (131072, 786432), (1024, 262144)]


def rules_of(shortest: int, longest: int, cap: int | None = None) -> PixelRules:
    return PixelRules(
        16, 2, 2, shortest, longest, min_frames=4, max_frames=768, capped=cap is not None, max_frame_tokens=cap
    )


def video_processor(rules: PixelRules, longest: int | None = None) -> Qwen3VLVideoProcessor:
    sides = {"shortest_edge": rules.min_pixels, "longest_edge": longest or rules.max_pixels}
    cap = rules.max_frame_tokens
    return Qwen3VLVideoProcessor(size=sides, cap_pixels_per_frame=cap is not None, max_video_tokens=cap or 768)


def resized_by_processor(processor: Qwen3VLVideoProcessor, frames: int, height: int, width: int) -> tuple[int, int]:
    """The size the real `resize` gives: a video without memory behind its pixels (meta device) is enough."""
    video = torch.empty((1, frames, 3, height, width), dtype=torch.uint8, device="meta")
    out = processor.resize(
        video, size=processor.size, resample=None, factor=32, temporal_factor=2,
        cap_pixels_per_frame=processor.cap_pixels_per_frame,
    )  # fmt: skip
    return tuple(out.shape[-2:])


videos = st.builds(
    VideoMeta,
    source_fps=st.sampled_from([1.0, 8.0, 12.5, 24000 / 1001, 25.0, 30000 / 1001, 59.94, 120.0]),
    frame_count=st.integers(2, 6000),
    duration_s=st.just(0.0),
    width=st.integers(8, 1000),
    height=st.integers(8, 1000),
)
samplings = st.one_of(
    st.fixed_dictionaries({"fps": st.sampled_from([0.1, 0.5, 1, 2, 3.3, 4, 10, 30])}),
    st.fixed_dictionaries({"nframes": st.integers(2, 200)}),
)


@settings(max_examples=200, deadline=None)
@given(meta=videos, sampling=samplings, bounds=st.sampled_from(BOUNDS), cap=st.sampled_from([None, None, 768, 100]))
def test_a_plan_is_what_the_video_processor_does(meta, sampling, bounds, cap):
    rules = rules_of(*bounds, cap)
    processor = video_processor(rules)
    plan = plan_frames(meta, VisionSpec(rules, IMAGE, **sampling))

    metadata = VideoMetadata(total_num_frames=meta.frame_count, fps=meta.source_fps)
    asked = {"num_frames": sampling.get("nframes"), "fps": sampling.get("fps")}
    indices = processor.sample_frames(metadata, **asked)
    assert plan.indices == tuple(indices.tolist())

    assert (plan.height, plan.width) == resized_by_processor(processor, len(indices), meta.height, meta.width)
    assert plan.grid == ((len(indices) + 1) // 2, plan.height // 16, plan.width // 16)
    assert plan.patches == plan.grid[0] * plan.grid[1] * plan.grid[2] == plan.tokens * 4

    text = Qwen3VLProcessor._calculate_timestamps(None, indices.tolist(), meta.source_fps, 2)
    assert [f"{t:.1f}" for t in plan.patch_times_s] == [f"{t:.1f}" for t in text]
    assert plan.times_s == tuple(i / meta.source_fps for i in plan.indices)


@settings(max_examples=300, deadline=None)
@given(meta=videos, sampling=samplings, bounds=st.sampled_from(BOUNDS), budget=st.integers(1, 20000))
def test_a_budget_is_never_exceeded_and_is_the_processors_where_that_holds_it(meta, sampling, bounds, budget):
    rules = rules_of(*bounds)
    total_pixels = budget * 1024
    vision = VisionSpec(rules, IMAGE, **sampling, total_pixels=total_pixels)
    frames = len(plan_frames(meta, VisionSpec(rules, IMAGE, **sampling)).indices)
    patches = (frames + 1) // 2
    if budget < patches:
        with pytest.raises(ProblemError) as caught:
            plan_frames(meta, vision)
        assert caught.value.problems[0].code == "MEDIA_KEYS"
        assert str(patches * 1024) in caught.value.problems[0].remedy
        return
    plan = plan_frames(meta, vision)
    assert plan.tokens <= budget
    assert plan.height >= 32 and plan.width >= 32 and plan.height % 32 == plan.width % 32 == 0
    theirs = resized_by_processor(video_processor(rules, total_pixels * 2), frames, meta.height, meta.width)
    if patches * theirs[0] * theirs[1] // 1024 <= budget:
        assert (plan.height, plan.width) == theirs


def test_a_budget_is_nearly_used_up_where_the_processor_would_exceed_it():
    # Five frames are three temporal patches, but the processor counts four frames and would take 4/3 of the budget.
    vision = VisionSpec(rules_of(4096, 25165824), IMAGE, nframes=5, total_pixels=3000 * 1024)
    plan = plan_frames(VideoMeta(30.0, 300, 10.0, 1920, 1080), vision)
    assert 0.85 * 3000 <= plan.tokens <= 3000


@settings(max_examples=200, deadline=None)
@given(
    width=st.integers(1, 3000),
    height=st.integers(1, 3000),
    bounds=st.sampled_from([(65536, 16777216), (3136, 1003520), (1024, 262144)]),
)
def test_an_image_plan_is_what_the_image_processor_does(width, height, bounds):
    assume(max(width, height) <= 200 * min(width, height))
    rules = PixelRules(16, 2, 2, *bounds)
    sides = {"shortest_edge": bounds[0], "longest_edge": bounds[1]}
    processor = Qwen2VLImageProcessor(patch_size=16, merge_size=2, size=sides)
    plan = plan_image(width, height, VisionSpec(rules_of(4096, 4096), rules, fps=1))
    assert plan.patches == processor.get_number_of_image_patches(height, width, {})
    image = torch.empty((1, 3, height, width), dtype=torch.uint8, device="meta")
    assert (plan.height, plan.width) == processor.resize(image, processor.size, None, factor=32).shape[-2:]
    assert plan.grid[0] == 1 and plan.indices == (0,)


@given(width=st.integers(1, 3000), height=st.integers(1, 3000), budget=st.integers(1, 3000))
def test_an_image_holds_its_budget_and_else_has_the_processors_size(width, height, budget):
    """The processor enlarges narrow pictures to its lower bound, which may be above its upper one."""
    assume(max(width, height) <= 200 * min(width, height))
    plan = plan_image(width, height, VisionSpec(rules_of(4096, 4096), IMAGE, fps=1, total_pixels=budget * 1024))
    assert 1 <= plan.tokens <= budget
    sides = smart_resize(height, width, 32, IMAGE.min_pixels, budget * 1024)
    if sides[0] * sides[1] <= budget * 1024:
        assert (plan.height, plan.width) == sides


@settings(max_examples=200, deadline=None)
@given(meta=videos, sampling=samplings, bounds=st.sampled_from(BOUNDS), tokens=st.integers(1, 300))
def test_max_pixels_bounds_every_frame(meta, sampling, bounds, tokens):
    rules = rules_of(*bounds)
    free = plan_frames(meta, VisionSpec(rules, IMAGE, **sampling))
    plan = plan_frames(meta, VisionSpec(rules, IMAGE, **sampling, max_pixels=tokens * 1024))
    assert plan.height * plan.width <= tokens * 1024
    assert (plan.indices, plan.tokens <= free.tokens) == (free.indices, True)
    if free.height * free.width <= tokens * 1024:
        assert plan == free
    both = VisionSpec(rules, IMAGE, **sampling, max_pixels=tokens * 1024, total_pixels=free.grid[0] * 1024)
    assert plan_frames(meta, both).tokens == free.grid[0]  # the smaller bound holds: one token a pair of frames


def test_max_pixels_bounds_an_image_and_says_when_it_is_too_small():
    small = VisionSpec(rules_of(4096, 4096), IMAGE, fps=1, max_pixels=81920)
    assert plan_image(1920, 1080, small).tokens <= 80
    with pytest.raises(ProblemError) as caught:
        plan_frames(VideoMeta(30.0, 300, 10.0, 640, 480), VisionSpec(rules_of(4096, 4096), IMAGE, fps=1, max_pixels=99))
    (problem,) = caught.value.problems
    assert (problem.where, problem.code) == ("vision.max_pixels", "MEDIA_KEYS") and "1024" in problem.remedy


def test_a_whole_call_of_the_processor_agrees_with_the_plan():
    rules = rules_of(4096, 262144)
    meta = VideoMeta(7.0, 23, 23 / 7, 131, 77)
    plan = plan_frames(meta, VisionSpec(rules, IMAGE, fps=3))
    metadata = VideoMetadata(total_num_frames=23, fps=7.0, width=131, height=77, duration=23 / 7)
    video = np.zeros((23, 77, 131, 3), np.uint8)
    out = video_processor(rules)(
        [video], video_metadata=[metadata], fps=3, do_sample_frames=True, return_metadata=True, return_tensors="pt"
    )
    assert tuple(out["video_grid_thw"][0].tolist()) == plan.grid
    assert len(out["pixel_values_videos"]) == plan.patches
    assert list(out["video_metadata"][0].frames_indices) == list(plan.indices)


@pytest.mark.parametrize("frames", [3, 5, 7, 9])
@pytest.mark.parametrize("longest", range(250000, 1050000, 50000))
def test_odd_counts_are_rounded_to_even_halves(frames, longest):
    rules = rules_of(4096, longest)
    plan = plan_frames(VideoMeta(8.0, 100, 12.5, 320, 320), VisionSpec(rules, IMAGE, nframes=frames))
    assert (plan.height, plan.width) == resized_by_processor(video_processor(rules), frames, 320, 320)


@pytest.mark.parametrize("asked", [None, False, True])
@pytest.mark.parametrize("by_folder", [False, True])
def test_frames_are_capped_as_the_key_says_and_else_as_the_folder_does(asked, by_folder):
    """The default of transformers decides nothing: it is told what the plan goes by, and gives the same grid."""
    rules = replace(rules_of(4096, 25165824, 768), capped=by_folder)
    vision = vision_spec(SimpleNamespace(video=rules, image=IMAGE), nframes=4, cap_pixels_per_frame=asked)
    capped = by_folder if asked is None else asked
    plan = plan_frames(VideoMeta(8.0, 4, 0.5, 1280, 736), vision)
    processor = Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 25165824})
    video = torch.zeros((4, 3, 736, 1280), dtype=torch.uint8)
    made = processor([video], cap_pixels_per_frame=capped, do_sample_frames=False, return_tensors="pt")
    assert tuple(made["video_grid_thw"][0].tolist()) == plan.grid
    assert (plan.tokens > 2 * 768) != capped


def test_a_single_frame_is_doubled_where_transformers_refuses_it():
    rules = rules_of(4096, 262144)
    plan = plan_frames(VideoMeta(8.0, 1, 0.125, 64, 48), VisionSpec(rules, IMAGE, fps=2))
    assert plan.indices == (0,) and plan.grid == (1, plan.height // 16, plan.width // 16)
    assert plan.patch_times_s == (0.0,)


def test_a_variable_rate_is_sampled_by_time():
    # Ten frames in the first second, then one per second: even numbers would put half of the samples in that second.
    times = tuple([i / 10 for i in range(10)] + [float(t) for t in range(1, 11)])
    meta = VideoMeta(20 / 11, 20, 11.0, 64, 48, frame_times_s=times)
    plan = plan_frames(meta, VisionSpec(rules_of(4096, 262144), IMAGE, nframes=11))
    assert plan.times_s == tuple(float(t) for t in range(11))
    assert plan.indices == (0, *range(10, 20))
    assert plan.patch_times_s[:2] == (0.5, 2.5)


def test_a_variable_rate_of_one_frame():
    meta = VideoMeta(1.0, 1, 1.0, 64, 48, frame_times_s=(0.0,))
    assert plan_frames(meta, VisionSpec(rules_of(4096, 262144), IMAGE, fps=2)).indices == (0,)


def test_a_very_narrow_picture_is_refused():
    with pytest.raises(ProblemError) as caught:
        plan_frames(VideoMeta(8.0, 8, 1.0, 6500, 32), VisionSpec(rules_of(4096, 262144), IMAGE, fps=2))
    assert caught.value.problems[0].code == "MEDIA_TOO_NARROW"


@settings(max_examples=150, deadline=None)
@given(
    meta=videos,
    fps=st.sampled_from([0.1, 0.5, 2, 10]),
    frames=st.tuples(st.integers(2, 60), st.integers(1, 200)).map(sorted),
    least=st.integers(1024, 300_000),
)
def test_bounds_of_frames_and_their_least_size_are_the_processors(meta, fps, frames, least):
    """Its min_frames and max_frames, and shortest_edge counted over the frames of a video, the padded one included."""
    rules = rules_of(4096, 25165824)
    geometry = SimpleNamespace(video=rules, image=IMAGE)
    vision = vision_spec(geometry, fps=fps, min_frames=frames[0], max_frames=frames[1], min_pixels=least)
    plan = plan_frames(meta, vision)
    metadata = VideoMetadata(total_num_frames=meta.frame_count, fps=meta.source_fps)
    processor = Qwen3VLVideoProcessor(min_frames=frames[0], max_frames=frames[1], cap_pixels_per_frame=False)
    assert plan.indices == tuple(processor.sample_frames(metadata, fps=fps).tolist())
    shortest = least * 2 * plan.grid[0]
    bounded = video_processor(rules_of(shortest, max(rules.max_pixels, shortest)))
    sides = resized_by_processor(bounded, max(2, len(plan.indices)), meta.height, meta.width)
    assert (plan.height, plan.width) == sides
    picture = plan_image(meta.width, meta.height, vision)
    assert picture.height * picture.width >= min(least, IMAGE.max_pixels)


def test_sides_are_those_that_are_asked_for_and_bounds_hold_beside_a_least_size():
    meta = VideoMeta(8.0, 80, 10.0, 640, 480)
    geometry = SimpleNamespace(video=rules_of(4096, 25165824), image=IMAGE)
    asked = vision_spec(geometry, nframes=4, resized_height=100, resized_width=401)
    assert [(plan.height, plan.width) for plan in (plan_frames(meta, asked), plan_image(9, 999, asked))] == [
        (96, 416),
        (96, 416),
    ]
    larger = vision_spec(geometry, nframes=4, min_pixels=1_000_000, max_pixels=2_000_000)
    plan = plan_frames(meta, larger)
    assert 1_000_000 <= plan.height * plan.width <= 2_000_000
    bounded = vision_spec(geometry, nframes=4, min_pixels=1_000_000, total_pixels=200_000)
    assert plan_frames(meta, bounded).tokens <= 200_000 // 1024  # the upper bound holds


@pytest.mark.parametrize(("end", "last"), [(0.95, 2), (1.0, 3), (1.5, 3), (2.0, 4), (9.0, 5)])
def test_the_frame_at_the_end_of_a_part_is_its_last_at_a_variable_rate_too(end, last):
    meta = VideoMeta(2.0, 6, 3.0, 640, 480, frame_times_s=(0.0, 0.1, 0.2, 1.0, 2.0, 2.5))
    geometry = SimpleNamespace(video=rules_of(4096, 25165824), image=IMAGE)
    assert plan_frames(meta, vision_spec(geometry, nframes=2, video_start=0.1, video_end=end)).indices == (1, last)


def test_a_part_of_every_video_is_a_clip_cut_out_of_it():
    meta = VideoMeta(8.0, 80, 10.0, 640, 480)
    geometry = SimpleNamespace(video=rules_of(4096, 25165824), image=IMAGE)
    cut = VideoMeta(8.0, 41, 41 / 8, 640, 480)  # the frame that begins at the end is shown, too
    shown = plan_frames(meta, vision_spec(geometry, fps=2, video_start=2, video_end=7))
    alone = plan_frames(cut, vision_spec(geometry, fps=2))
    assert shown.indices == tuple(16 + index for index in alone.indices) and shown.times_s == alone.times_s
    assert plan_frames(meta, vision_spec(geometry, fps=2, video_start=5)).indices[0] == 40
    ends = plan_frames(meta, vision_spec(geometry, fps=2, video_end=99))
    assert ends == plan_frames(meta, vision_spec(geometry, fps=2))
    windowed = plan_frames(meta, vision_spec(geometry, fps=2, video_start=2), (0.0, 4.0))
    assert windowed.indices[0] == 16 and windowed.indices[-1] == 31
    with pytest.raises(ProblemError, match="no frame is between"):
        plan_frames(meta, vision_spec(geometry, fps=2, video_start=11))
