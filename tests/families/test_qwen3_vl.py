"""The torch-free half of Qwen3-VL against transformers: geometry, placeholders, rope positions."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import (
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLVideoProcessor,
)
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.video_utils import VideoMetadata

from vidqa.core.problem import ProblemError
from vidqa.families import family_of, quantization_of, require_plain_weights
from vidqa.families.qwen3_vl import QWEN3_VL, expand, geometry, rope_positions
from vidqa.planning.adapters import check_adapter
from vidqa.video.plan import plan_frames, plan_image
from vidqa.video.types import VideoMeta, vision_spec

# Sizes as published with Qwen3-VL and Cosmos-Reason2, in the layout of two files.
OLDER_IMAGE = {"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2,
               "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # fmt: skip
OLDER_VIDEO = {**OLDER_IMAGE, "size": {"longest_edge": 25165824, "shortest_edge": 4096}}


def write(folder, name, value):
    (folder / name).write_text(json.dumps(value))


def assert_rules_are_those_of(rules, processor):
    for name in ("patch_size", "merge_size", "temporal_patch_size"):
        assert getattr(rules, name) == getattr(processor, name)
    assert (rules.min_pixels, rules.max_pixels) == (processor.size["shortest_edge"], processor.size["longest_edge"])
    scale = 1 / processor.rescale_factor
    assert np.allclose(rules.mean, np.multiply(processor.image_mean, scale), rtol=1e-6)
    assert np.allclose(rules.std, np.multiply(processor.image_std, scale), rtol=1e-6)


def test_geometry_of_the_older_layout(tmp_path):
    write(tmp_path, "preprocessor_config.json", OLDER_IMAGE)
    write(tmp_path, "video_preprocessor_config.json", OLDER_VIDEO)
    found = geometry(tmp_path)
    assert_rules_are_those_of(found.video, Qwen3VLVideoProcessor.from_pretrained(tmp_path))
    assert_rules_are_those_of(found.image, Qwen2VLImageProcessor.from_pretrained(tmp_path))
    assert (found.video.min_frames, found.video.max_frames, found.video.factor) == (4, 768, 32)
    assert found.video.max_pixels == 25165824 and found.video.mean == (127.5, 127.5, 127.5)


def test_geometry_of_the_nested_layout_wins_over_files_beside_it(tmp_path):
    write(tmp_path, "video_preprocessor_config.json", OLDER_VIDEO)
    write(tmp_path, "processor_config.json", {
        "image_processor": {**OLDER_IMAGE, "patch_size": 14},
        "video_processor": {**OLDER_VIDEO, "min_frames": 8, "max_frames": 100, "cap_pixels_per_frame": True},
    })  # fmt: skip
    found = geometry(tmp_path)
    assert (found.image.patch_size, found.image.factor) == (14, 28)
    assert (found.video.min_frames, found.video.max_frames, found.video.capped) == (8, 100, True)


def test_what_a_folder_does_not_say_is_the_processors_default(tmp_path):
    write(tmp_path, "processor_config.json", {"image_processor": {}, "video_processor": {"size": None}})
    found = geometry(tmp_path)
    assert_rules_are_those_of(found.video, Qwen3VLVideoProcessor())
    assert_rules_are_those_of(found.image, Qwen2VLImageProcessor())
    assert (found.video.min_frames, found.video.max_frames) == (4, 768)
    assert (Qwen3VLVideoProcessor().min_frames, Qwen3VLVideoProcessor().max_frames) == (4, 768)


def test_a_video_without_its_own_file_takes_the_images(tmp_path):
    write(tmp_path, "preprocessor_config.json", {**OLDER_IMAGE, "min_pixels": 4000})
    found = geometry(tmp_path)
    assert found.video.max_pixels == 16777216 == Qwen3VLVideoProcessor.from_pretrained(tmp_path).size["longest_edge"]
    assert found.image.min_pixels == 4000 == Qwen2VLImageProcessor.from_pretrained(tmp_path).size["shortest_edge"]


def test_the_tiny_model_is_understood(tmp_path):
    from vidqa.engine.families.tiny_qwen3_vl import tiny_config, tiny_processor

    processor = tiny_processor()
    processor.save_pretrained(tmp_path)
    tiny_config(processor.tokenizer).save_pretrained(tmp_path)
    assert family_of(tmp_path) is QWEN3_VL
    assert_rules_are_those_of(geometry(tmp_path).video, processor.video_processor)
    assert_rules_are_those_of(geometry(tmp_path).image, processor.image_processor)
    assert QWEN3_VL.placeholders == {"image": processor.image_token, "video": processor.video_token}


BAD_VIDEO_SETTINGS = [
    {"resample": 2},
    {"do_resize": False},
    {"patch_size": 0},
    {"patch_size": "16"},
    {"size": 224},
    {"size": {}},
    {"image_mean": 0.5},
    {"image_mean": [0.5, [], {}]},
    {"rescale_factor": 0},
]


@pytest.mark.parametrize("video", BAD_VIDEO_SETTINGS)
def test_settings_that_this_program_does_not_compute_are_refused(tmp_path, video):
    write(tmp_path, "processor_config.json", {"video_processor": video, "image_processor": {}})
    with pytest.raises(ProblemError) as caught:
        geometry(tmp_path)
    problem = caught.value.problems[0]
    assert problem.code == "MODEL_UNSUPPORTED" and next(iter(video)) in problem.message


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("processor_config.json", {"video_processor": 3}, "MODEL_UNSUPPORTED"),
        ("processor_config.json", {}, "MODEL_BROKEN"),
        ("processor_config.json", [], "MODEL_BROKEN"),
        ("other.json", {}, "MODEL_BROKEN"),
    ],
)
def test_folders_that_cannot_be_used(tmp_path, name, change, code):
    write(tmp_path, name, change)
    with pytest.raises(ProblemError) as caught:
        geometry(tmp_path)
    assert caught.value.problems[0].code == code


def test_another_architecture_is_refused(tmp_path):
    write(tmp_path, "config.json", {"model_type": "llama"})
    with pytest.raises(ProblemError) as caught:
        family_of(tmp_path)
    assert caught.value.problems[0].code == "MODEL_UNSUPPORTED" and "qwen3_vl" in caught.value.problems[0].message


@given(frames=st.integers(2, 400), fps=st.sampled_from([7.0, 25.0, 30000 / 1001]), asked=st.sampled_from([0.5, 2, 4]))
@settings(max_examples=50, deadline=None)
def test_expand_is_what_transformers_puts_into_the_prompt(frames, fps, asked):
    processor = tiny()
    rules = tiny_geometry()
    plan = plan_frames(VideoMeta(fps, frames, frames / fps, 100, 60), vision_spec(rules, fps=asked))
    metadata = VideoMetadata(total_num_frames=frames, fps=fps, frames_indices=np.array(plan.indices))
    inputs = {"video_grid_thw": torch.tensor([plan.grid]), "video_metadata": [metadata]}
    text = expand(plan, 2)
    assert text == processor.replace_video_token(inputs, 0)
    assert text.count("<|video_pad|>") == plan.tokens


def test_expand_of_an_image():
    plan = plan_image(300, 200, vision_spec(tiny_geometry(), fps=2))
    inputs = {"image_grid_thw": torch.tensor([plan.grid])}
    assert expand(plan, 2) == tiny().replace_image_token(inputs, 0) == QWEN3_VL.placeholders["image"] * plan.tokens


TINY = {}


def tiny() -> Qwen3VLProcessor:
    from vidqa.engine.families.tiny_qwen3_vl import tiny_processor

    return TINY.setdefault("processor", tiny_processor())


def tiny_geometry():
    from pathlib import Path
    from tempfile import TemporaryDirectory

    if "geometry" not in TINY:
        with TemporaryDirectory() as folder:
            tiny().save_pretrained(folder)
            TINY["geometry"] = geometry(Path(folder))
    return TINY["geometry"]


TEXT, IMAGE, VIDEO, START = 1, 7, 8, 2
MERGED = SimpleNamespace(video=SimpleNamespace(merge_size=2))
GRIDS = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6))


def media(kind, grid):
    return SimpleNamespace(kind=kind, grid=grid)


PIECES = st.lists(st.one_of(st.integers(1, 9), st.tuples(st.sampled_from(["image", "video"]), GRIDS)), max_size=8)


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES)
def test_rope_positions_are_those_of_the_model(pieces):
    """Any interleaving of text, images and videos; each temporal patch stands behind a start token, as in prompts."""
    ids, images, videos = [TEXT], [], []
    for piece in pieces:
        if isinstance(piece, int):
            ids += [TEXT] * piece
            continue
        kind, (t, h, w) = piece
        t = 1 if kind == "image" else t
        (images if kind == "image" else videos).append((t, 2 * h, 2 * w))
        for _ in range(t):
            ids += [START, *[IMAGE if kind == "image" else VIDEO] * (h * w), START]
    plans = [media("image", grid) for grid in images] + [media("video", grid) for grid in videos]
    found = rope_positions(np.array(ids), IMAGE, VIDEO, plans, MERGED)

    model = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    model.get_vision_position_ids = Qwen3VLModel.get_vision_position_ids.__get__(model)
    ids_1S = torch.tensor([ids])
    types = (ids_1S == IMAGE).int() + 2 * (ids_1S == VIDEO).int()
    grids = [torch.tensor(grid) if grid else None for grid in (images, videos)]
    expected, _ = Qwen3VLModel.get_rope_index(model, ids_1S, types, *grids)
    assert found.dtype == np.int64 and (found == expected[:, 0].numpy()).all()


def test_rope_positions_refuse_grids_that_do_not_fit():
    ids = np.array([TEXT, VIDEO, VIDEO, TEXT])
    for videos in ([], [(1, 2, 2)], [(1, 2, 6)], [(1, 2, 4), (1, 2, 2)]):
        with pytest.raises(ValueError):
            rope_positions(ids, IMAGE, VIDEO, [media("video", grid) for grid in videos], MERGED)
    found = rope_positions(ids, IMAGE, VIDEO, [media("video", (1, 2, 4))], MERGED)
    assert found.tolist() == [[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantization_config says that the weights are quantized (fp8)",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "(compressed-tensors)"),
        ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, "text_config.quantization_config"),
    ],
)
def test_quantized_weights_are_named(tmp_path, config, named):
    write(tmp_path, "config.json", {"model_type": "qwen3_vl", **config})
    with pytest.raises(ProblemError) as caught:
        family_of(tmp_path)
    (problem,) = caught.value.problems
    assert problem.code == "MODEL_QUANTIZED" and named in problem.message


def test_an_empty_quantization_config_is_none_and_a_file_of_one_is_one(tmp_path):
    write(tmp_path, "config.json", {"model_type": "qwen3_vl", "quantization_config": None})
    assert family_of(tmp_path) is QWEN3_VL
    write(tmp_path, "hf_quant_config.json", {})
    with pytest.raises(ProblemError, match="MODEL_QUANTIZED"):
        family_of(tmp_path)


def test_compressed_tensors_are_read_but_not_trained(tmp_path):
    table = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}}
    write(tmp_path, "config.json", {"model_type": "qwen3_vl", "quantization_config": table})
    assert family_of(tmp_path) is QWEN3_VL and quantization_of(tmp_path) == table
    with pytest.raises(ProblemError, match="MODEL_QUANTIZED"):
        require_plain_weights(tmp_path, "training begins with")


SIZED = {
    "model_type": "qwen3_vl",
    "text_config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "initializer_range": 0.02,
        "vocab_size": 300,
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 128,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
        "initializer_range": 0.02,
    },
}


@pytest.mark.parametrize(
    ("part", "key"), [(part, key) for part in ("text_config", "vision_config") for key in SIZED[part]]
)
def test_null_is_refused_where_transformers_refuses_it(tmp_path, part, key):
    """A key written as null is not one left out: the model's own class decides."""
    config = json.loads(json.dumps(SIZED))
    config[part][key] = None
    write(tmp_path, "config.json", config)
    with torch.device("meta"):
        try:
            theirs = sum(p.numel() for p in Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config)).parameters())
        except StrictDataclassError:
            with pytest.raises(ProblemError) as caught:
                QWEN3_VL.sizes_of(tmp_path)
            (problem,) = caught.value.problems
            assert problem.code == "MODEL_UNSUPPORTED" and f"{part}.{key}" in problem.message
            return
    assert sum(tensor.numel for tensor in QWEN3_VL.tensors(QWEN3_VL.sizes_of(tmp_path))) == theirs


def adapter_folder(tmp_path, rank, **config):
    save_file({"base_model.model.a.lora_A.weight": torch.zeros(rank, 8)}, tmp_path / "adapter_model.safetensors")
    write(tmp_path, "adapter_config.json", {"peft_type": "LORA", **config})
    return tmp_path


def test_the_ranks_of_an_adapter_are_those_of_its_matrices(tmp_path):
    check_adapter(adapter_folder(tmp_path, 4, r=4))
    check_adapter(adapter_folder(tmp_path, 2, r=4, rank_pattern={"a": 2}))
    check_adapter(adapter_folder(tmp_path, 8))  # PEFT's own default
    for rank, config, code in (
        (4, {"r": 8}, "MODEL_BROKEN"),
        (4, {"r": 10**7}, "MODEL_UNSUPPORTED"),
        (4, {"r": None}, "MODEL_UNSUPPORTED"),
        (4, {"r": 4, "rank_pattern": {"a": "4"}}, "MODEL_UNSUPPORTED"),
        (4, {"r": 4, "rank_pattern": [4]}, "MODEL_UNSUPPORTED"),
        (4, {"r": 4, "peft_type": "IA3"}, "MODEL_UNSUPPORTED"),
    ):
        with pytest.raises(ProblemError, match=code):
            check_adapter(adapter_folder(tmp_path, rank, **config))
