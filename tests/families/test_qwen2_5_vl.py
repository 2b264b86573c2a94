"""The torch-free half of Qwen2.5-VL against transformers: geometry, frames, pixels, prompts, rope positions, sizes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from awkward import AWKWARD
from clips import decode_frames
from huggingface_hub.errors import StrictDataclassError
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.video_utils import VideoMetadata

from vidqa.core.problem import ProblemError
from vidqa.engine.data.pixels import as_tensor, patchify, resize_frames
from vidqa.families import family_of
from vidqa.families.qwen2_5_vl import QWEN2_5_VL, expand, geometry, parameter_name, rope_positions
from vidqa.video.plan import plan_frames
from vidqa.video.probe import probe
from vidqa.video.types import FramePlan, PixelRules, VideoMeta, VisionSpec, vision_spec

# As published with Qwen2.5-VL and Cosmos-Reason1: one file for both processors, and text settings beside vision_config.
PUBLISHED_PROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PUBLISHED = {
    "model_type": "qwen2_5_vl",
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 128000,
    "max_window_layers": 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 300,
    "vision_config": {
        "depth": 3,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 100,
        "num_heads": 4,
        "in_chans": 3,
        "out_hidden_size": 64,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
        "initializer_range": 0.02,
    },
}
BOUNDS = [(3136, 12845056), (100352, 602112), (784, 50176)]
IMAGE = PixelRules(14, 2, 2, 3136, 12845056)


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(json.dumps(value))


def test_the_published_layout_is_understood(tmp_path: Path) -> None:
    write(tmp_path, "config.json", PUBLISHED)
    write(tmp_path, "preprocessor_config.json", PUBLISHED_PROCESSOR)
    assert family_of(tmp_path) is QWEN2_5_VL
    found = geometry(tmp_path)
    for rules, processor in ((found.video, Qwen2VLVideoProcessor), (found.image, Qwen2VLImageProcessor)):
        theirs = processor.from_pretrained(tmp_path)
        assert (rules.min_pixels, rules.max_pixels) == (theirs.size["shortest_edge"], theirs.size["longest_edge"])
        assert (rules.patch_size, rules.merge_size, rules.factor) == (theirs.patch_size, theirs.merge_size, 28)
        assert np.allclose(rules.mean, np.multiply(theirs.image_mean, 255), rtol=1e-6)
    assert found.positions_per_s == 2 and (found.video.min_frames, found.video.max_frames) == (4, 768)
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig.from_pretrained(tmp_path))
    ours = {tensor.name: tensor.shape for tensor in QWEN2_5_VL.tensors(QWEN2_5_VL.sizes_of(tmp_path))}
    assert ours == {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def test_what_a_folder_does_not_say_is_the_processors_default(tmp_path: Path) -> None:
    write(tmp_path, "config.json", PUBLISHED)
    write(tmp_path, "processor_config.json", {"image_processor": {}, "video_processor": {}})
    found, theirs = geometry(tmp_path).video, Qwen2VLVideoProcessor()
    assert (found.min_pixels, found.max_pixels) == (theirs.size["shortest_edge"], theirs.size["longest_edge"])
    assert (found.min_frames, found.max_frames, found.capped) == (theirs.min_frames, theirs.max_frames, False)


def test_names_of_stored_tensors() -> None:
    assert parameter_name("visual.blocks.0.norm1.weight") == "model.visual.blocks.0.norm1.weight"
    assert parameter_name("model.layers.1.mlp.up_proj.weight") == "model.language_model.layers.1.mlp.up_proj.weight"
    assert parameter_name("model.embed_tokens.weight") == "model.language_model.embed_tokens.weight"
    for name in ("lm_head.weight", "model.visual.merger.ln_q.weight", "model.language_model.norm.weight"):
        assert parameter_name(name) == name


PARTS = [*((None, key) for key in PUBLISHED if key.endswith(("_size", "heads", "layers", "eps", "act", "range")))]
PARTS += [("vision_config", key) for key in PUBLISHED["vision_config"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("part", "key"), PARTS)
def test_null_is_refused_where_transformers_refuses_it(tmp_path: Path, part: str | None, key: str) -> None:
    config = json.loads(json.dumps(PUBLISHED))
    (config[part] if part else config)[key] = None
    write(tmp_path, "config.json", config)
    with torch.device("meta"):
        try:
            theirs = sum(p.numel() for p in Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**config)).parameters())
        except (StrictDataclassError, TypeError):
            with pytest.raises(ProblemError) as caught:
                QWEN2_5_VL.sizes_of(tmp_path)
            (problem,) = caught.value.problems
            assert problem.code == "MODEL_UNSUPPORTED" and key in problem.message
            return
    assert sum(tensor.numel for tensor in QWEN2_5_VL.tensors(QWEN2_5_VL.sizes_of(tmp_path))) == theirs


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_size": 66}, "hidden_size (66)"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.rope_type"),
        ({"vision_config": {**PUBLISHED["vision_config"], "window_size": 20}}, "window_size"),  # type: ignore[dict-item]
        ({"vision_config": {**PUBLISHED["vision_config"], "fullatt_block_indexes": 7}}, "fullatt"),  # type: ignore[dict-item]
        ({"vision_config": 3}, "vision_config must be"),
        ({"text_config": 3}, "text_config must be"),
    ],
)
def test_models_that_are_not_computed_here_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    write(tmp_path, "config.json", {**PUBLISHED, **change})
    with pytest.raises(ProblemError) as caught:
        QWEN2_5_VL.sizes_of(tmp_path)
    (problem,) = caught.value.problems
    assert problem.code == "MODEL_UNSUPPORTED" and named in problem.message


# Frames and sizes against the processor's own.


def rules_of(shortest: int, longest: int, shared: int | None = None) -> PixelRules:
    return PixelRules(
        14, 2, 2, shortest, longest, 4, 768, each_frame=True, capped=shared is not None, shared_pixels=shared
    )


videos = st.builds(
    VideoMeta,
    source_fps=st.sampled_from([1.0, 8.0, 12.5, 24000 / 1001, 25.0, 30000 / 1001, 59.94]),
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
@given(meta=videos, sampling=samplings, bounds=st.sampled_from(BOUNDS), tokens=st.sampled_from([None, 128_000, 2000]))
def test_a_plan_is_what_the_video_processor_does(meta, sampling, bounds, tokens):
    assume(max(meta.width, meta.height) <= 200 * min(meta.width, meta.height))
    sides = {"shortest_edge": bounds[0], "longest_edge": bounds[1]}
    processor = Qwen2VLVideoProcessor(size=sides, cap_pixels_per_frame=tokens is not None, max_video_tokens=tokens or 1)
    rules = rules_of(*bounds, tokens and int(tokens * 28 * 28 * 0.9))
    plan = plan_frames(meta, VisionSpec(rules, IMAGE, **sampling))
    metadata = VideoMetadata(total_num_frames=meta.frame_count, fps=meta.source_fps)
    try:
        indices = processor.sample_frames(metadata, num_frames=sampling.get("nframes"), fps=sampling.get("fps"))
    except ValueError:  # more frames than there are: here some are repeated
        assert sampling["nframes"] >= meta.frame_count and len(plan.indices) >= meta.frame_count
        return
    # For some counts the last number is one behind the end, which no video has.
    assert plan.indices == tuple(index for index in indices.tolist() if index < meta.frame_count)
    video = torch.empty((1, len(plan.indices), 3, meta.height, meta.width), dtype=torch.uint8, device="meta")
    resized = processor.resize(video, processor.size, None, factor=28, cap_pixels_per_frame=tokens is not None)
    assert (plan.height, plan.width) == tuple(resized.shape[-2:])
    assert plan.grid == (len(plan.indices) // 2, plan.height // 14, plan.width // 14)
    metadata.frames_indices = plan.indices
    assert plan.patch_times_s == tuple(at * (2 / metadata.sampled_fps) for at in range(plan.grid[0]))
    assert plan.times_s == tuple(index / meta.source_fps for index in plan.indices)


@settings(max_examples=200, deadline=None)
@given(meta=videos, sampling=samplings, bounds=st.sampled_from(BOUNDS), budget=st.integers(1, 20000))
def test_a_budget_is_never_exceeded(meta, sampling, bounds, budget):
    assume(max(meta.width, meta.height) <= 200 * min(meta.width, meta.height))
    rules = rules_of(*bounds)
    free = plan_frames(meta, VisionSpec(rules, IMAGE, **sampling))
    vision = VisionSpec(rules, IMAGE, **sampling, total_pixels=budget * 784)
    if budget < free.grid[0]:
        with pytest.raises(ProblemError, match="MEDIA_KEYS"):
            plan_frames(meta, vision)
        return
    plan = plan_frames(meta, vision)
    assert plan.tokens <= budget and plan.indices == free.indices
    if free.tokens <= budget:
        assert plan == free
    each = plan_frames(meta, VisionSpec(rules, IMAGE, **sampling, max_pixels=20 * 784))
    assert each.height * each.width <= 20 * 784


def test_few_frames_and_varying_rates() -> None:
    rules = rules_of(784, 50176)
    one = plan_frames(VideoMeta(8.0, 1, 0.125, 56, 56), VisionSpec(rules, IMAGE, fps=2))
    assert (one.indices, one.grid[0], one.patch_times_s) == ((0,), 1, (0.0,))
    three = plan_frames(VideoMeta(8.0, 3, 0.375, 56, 56), VisionSpec(rules, IMAGE, fps=2))
    assert three.indices == (0, 1)
    # Ten frames in the first second, then one per second: of every two seconds the frame that is shown at their start.
    times = tuple([i / 10 for i in range(10)] + [float(t) for t in range(1, 11)])
    meta = VideoMeta(20 / 11, 20, 11.0, 64, 48, frame_times_s=times)
    plan = plan_frames(meta, VisionSpec(rules, IMAGE, nframes=12))
    assert plan.times_s == (0.0, 0.9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
    assert plan.patch_times_s == pytest.approx([at * 11 / 6 for at in range(6)])


PLAIN = ("frames-", "rate-", "odd-size.mp4", "nearly", "narrow", "wide", "large", "tiny.mp4", "b-frames.mp4", "sparse.")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    from tiny_qwen2_5_vl import tiny_config, tiny_processor

    folder = tmp_path_factory.mktemp("tiny")
    processor = tiny_processor()
    processor.save_pretrained(folder)
    tiny_config(processor.tokenizer).save_pretrained(folder)
    return SimpleNamespace(folder=folder, processor=processor)


@pytest.mark.parametrize("name", [name for name in AWKWARD if name.startswith(PLAIN) and name != "frames-1.mp4"])
def test_awkward_videos_are_what_the_processor_makes_of_them(tiny: SimpleNamespace, name: str, tmp_path: Path) -> None:
    path, seen = AWKWARD[name](tmp_path / name), geometry(tiny.folder)
    meta = probe(path)
    assert meta.frame_times_s is None
    plan = plan_frames(meta, vision_spec(seen, fps=3.0))
    processor: Qwen2_5_VLProcessor = tiny.processor
    found = processor(
        text=["<|vision_start|><|video_pad|><|vision_end|>Why?"],
        videos=[decode_frames(path, None, tuple(range(meta.frame_count)))],
        video_metadata=[{"total_num_frames": meta.frame_count, "fps": meta.source_fps}],
        do_sample_frames=True,
        fps=3.0,
        return_tensors="pt",
        return_metadata=True,
    )
    assert tuple(found["video_metadata"][0].frames_indices.tolist()) == plan.indices
    assert tuple(found["video_grid_thw"][0].tolist()) == plan.grid
    frames = resize_frames(decode_frames(path, None, plan.indices), plan.height, plan.width)
    patches = patchify(as_tensor(frames), seen.video, seen.video.mean, seen.video.std)
    assert torch.allclose(patches, found["pixel_values_videos"], atol=1e-5)
    ids = found["input_ids"][0].numpy()
    assert processor.tokenizer.decode(ids) == f"<|vision_start|>{expand(plan, 2)}<|vision_end|>Why?"
    theirs = positions_by_transformers(found["input_ids"], [], [plan.grid], found["second_per_grid_ts"], seen, ids)
    assert (rope_positions(ids, IMAGE_ID, VIDEO_ID, [plan], seen) == theirs).all()


def positions_by_transformers(ids_1S, images, videos, steps, seen, ids) -> np.ndarray:
    config = SimpleNamespace(spatial_merge_size=2, tokens_per_second=int(seen.positions_per_s))
    model = SimpleNamespace(config=SimpleNamespace(vision_config=config))
    model.get_vision_position_ids = Qwen2_5_VLModel.get_vision_position_ids.__get__(model)
    types = (ids_1S == IMAGE_ID).int() + 2 * (ids_1S == VIDEO_ID).int()
    grids = [torch.tensor(grid) if grid else None for grid in (images, videos)]
    found, _ = Qwen2_5_VLModel.get_rope_index(model, ids_1S, types, *grids, second_per_grid_ts=steps)
    assert found.shape[-1] == len(ids)
    return found[:, 0].numpy()


IMAGE_ID, VIDEO_ID, TEXT = 6, 7, 20  # as the tiny tokenizer has the first two
PIECES = st.lists(
    st.one_of(
        st.integers(1, 9),
        st.tuples(
            st.sampled_from(["image", "video"]),
            st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
            st.sampled_from([0.1, 0.5, 2 / 3, 1.0, 1.7, 30.0]),
        ),
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(pieces=PIECES, per_s=st.sampled_from([2.0, 4.0, 3.0]))
def test_rope_positions_are_those_of_the_model(pieces, per_s):
    ids, plans, steps = [TEXT], [], []
    for piece in pieces:
        if isinstance(piece, int):
            ids += [TEXT] * piece
            continue
        kind, (t, h, w), step = piece
        t = 1 if kind == "image" else t
        times = tuple(at * step for at in range(t))
        plans.append(FramePlan(kind, (), (), 0, 0, (t, 2 * h, 2 * w), t * h * w, 4 * t * h * w, times))
        steps += [step] if kind == "video" else []
        ids += [TEXT, *[IMAGE_ID if kind == "image" else VIDEO_ID] * (t * h * w), TEXT]
    seen: Any = SimpleNamespace(video=SimpleNamespace(merge_size=2), positions_per_s=per_s)
    found = rope_positions(np.array(ids), IMAGE_ID, VIDEO_ID, plans, seen)
    images, videos = ([plan.grid for plan in plans if plan.kind == kind] for kind in ("image", "video"))
    told = torch.tensor(steps, dtype=torch.float32)
    assert (found == positions_by_transformers(torch.tensor([ids]), images, videos, told, seen, ids)).all()
