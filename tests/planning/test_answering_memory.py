"""Memory of answering: what the arithmetic says against bytes counted while the generators themselves run, and what may
be read together against the packs and batches that they make."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from clips import write_clip
from live_bytes import LiveBytes
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from vidqa.data import load_records
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.families.tiny_qwen3_vl import tiny_config, tiny_processor
from vidqa.engine.generators._base import Settings
from vidqa.engine.generators.hf import TransformersSession
from vidqa.engine.generators.native import NativeSession
from vidqa.families import Sizes, TextSizes, VisionSizes, family_of
from vidqa.families.qwen3_vl import tensors as tensors_of_qwen3
from vidqa.planning.budget.answering import (
    PACK_TOKENS,
    PAGE,
    AnsweringSetup,
    Reading,
    answering_memory,
    answering_setup,
    cache_bytes_per_token,
    cache_pages,
    readings,
)
from vidqa.planning.budget.memory import GIB
from vidqa.planning.requests import Request, Sampling
from vidqa.planning.samples import Planner, Prompting

WITHIN = 0.06
ANSWER = 3
CPU = torch.device("cpu")
# Where the most is held: in the tower's MLP, where its heads are rotated, in the decoder's MLP.
WIDE = {
    "tower": {"vision": {"hidden_size": 128, "intermediate_size": 2048}},
    "rotation": {"vision": {"hidden_size": 512, "intermediate_size": 512, "num_heads": 8}},
    "decoder": {"text": {"intermediate_size": 4096}},
}
KERNELS = ("add_norm", "silu_mul", "rotated", "vision_heads", "rotate_into", "decode_attention")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Three questions of different lengths about clips of different sizes."""
    root = tmp_path_factory.mktemp("clips")
    listed = []
    for number, (width, height, frames) in enumerate(((192, 192, 8), (192, 128, 8), (128, 128, 4))):
        write_clip(root / f"{number}.mp4", frames=frames, fps=4, width=width, height=height)
        turns = [{"from": "human", "value": "<video>\n" + "What is shown? " * number}, {"from": "gpt", "value": "A"}]
        listed.append({"id": str(number), "video": f"{number}.mp4", "conversations": turns})
    (root / "annotations.json").write_text(json.dumps(listed))
    return load_records(root / "annotations.json", root)


def model(folder: Path, wide: dict[str, Any]) -> Any:
    """In bf16, of three layers, so that in the last one nothing of the vision tower is added."""
    processor = tiny_processor(["What is shown?"], max_pixels=10**9)
    values = tiny_config(processor.tokenizer).to_dict()
    rope = {**values["text_config"]["rope_parameters"], "mrope_section": [24, 20, 20]}
    text = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 1}
    values["text_config"] |= {**text, "head_dim": 128, "num_hidden_layers": 3, "rope_parameters": rope}
    values["text_config"] |= wide.get("text", {})
    values["text_config"].pop("layer_types", None)
    values["vision_config"] |= {"num_heads": 2, **wide.get("vision", {})}
    values["vision_config"]["out_hidden_size"] = values["text_config"]["hidden_size"]
    made = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**values)).to(torch.bfloat16).eval()
    made.config.save_pretrained(folder)
    processor.save_pretrained(folder)
    return made


@pytest.mark.parametrize("wide", list(WIDE))
def test_what_generators_hold_is_what_is_told(wide: str, records: list[Any], tmp_path: Path) -> None:
    made = model(tmp_path, WIDE[wide])
    planner = Planner(tmp_path, SimpleNamespace(fps=None, nframes=8), Prompting(for_generation=True))
    samples, problems = planner.plan(records)
    assert not problems
    source = FrameSource(1, 60.0, None)
    frames, _ = source.collect(source.request(samples))
    source.close()
    requests = [
        Request(
            sample.record.id,
            planner.encode(sample).token_ids,
            Sampling(ANSWER),
            (-1,),
            sample.plans,
            partial(list, each),
        )
        for sample, each in zip(samples, frames, strict=True)
    ]
    sizes = family_of(tmp_path).sizes_of(tmp_path)
    longest, patches = max(sample.length for sample in samples), sum(sample.patches for sample in samples)

    setup = AnsweringSetup("transformers", 2, 3, 4096, ANSWER)
    told = answering_memory(sizes, 0, setup, Reading(3, 3 * longest, longest, patches, masked=True), None)
    with LiveBytes() as live:
        assert len([each for some in stock(made, planner).generate(requests) for each in some]) == 3
    assert GIB * told.peak_gib == pytest.approx(live.peak, rel=WITHIN), live.at
    assert told.moment == ("decoder" if wide == "decoder" else "vision")

    session = NativeSession(made, Settings(tmp_path, None, torch.bfloat16, CPU, planner, 4096, 3))
    setup = AnsweringSetup("native", 2, 3, 4096, ANSWER)
    packed = sum(-(-sample.length // 8) * 8 for sample in samples)
    told = answering_memory(sizes, 0, setup, Reading(3, packed, longest, patches), None)
    live = LiveBytes()
    plain = session.forward.kernels
    session.forward.kernels = SimpleNamespace(**{name: live.whole(getattr(plain, name)) for name in KERNELS})
    with live:
        assert len([each for some in session.generate(requests) for each in some]) == 3
    # On a CPU frames lie where they were decoded, and the tower's MLP holds what GELU takes in beside what it gives.
    gelu = 2 * sizes.vision.intermediate * patches * (wide == "tower")
    expected = max(told.vision, told.decoder) + gelu - sizes.vision.patch_values * patches
    assert expected == pytest.approx(live.peak, rel=WITHIN), live.at


def stock(made: Any, planner: Planner) -> TransformersSession:
    return TransformersSession(made, planner, longest=4096, batch_size=3)


def test_weights_and_cache_are_told_to_the_byte(records: list[Any], tmp_path: Path) -> None:
    """Those that a session holds, on a CPU of so many pages."""
    made = model(tmp_path, {})
    planner = Planner(tmp_path, SimpleNamespace(fps=None, nframes=8), Prompting(for_generation=True))
    session = NativeSession(made, Settings(tmp_path, None, torch.bfloat16, CPU, planner, 1000, 5))
    sizes = family_of(tmp_path).sizes_of(tmp_path)
    weights = sum(parameter.numel() for parameter in made.parameters())
    assert sum(tensor.numel for tensor in tensors_of_qwen3(sizes)) == weights
    rows, page = len(session.pages.users) * PAGE, cache_bytes_per_token(sizes, 2)
    assert session.cache.keys.nbytes + session.cache.values.nbytes == rows * page
    setup = AnsweringSetup("native", 2, 5, 1000, 8)
    told = answering_memory(sizes, weights, setup, Reading(1, 64, 64, 4), None)
    assert told.weights == 2 * weights and told.cache == (-(-1000 // PAGE) + 1) * PAGE * page


def test_the_cache_grows_with_the_gpu_and_no_further_than_its_rows_need() -> None:
    assert cache_pages(64, 1000, 0.0, 1000) == 16  # one row, whatever there is
    assert cache_pages(64, 1000, 32 * PAGE * 1000 / 0.7 + 1, 1000) == 32
    assert cache_pages(64, 1000, 1e15, 1000) == 64 * 16


LARGE = Sizes(
    TextSizes(4096, 36, 32, 8, 128, 12288, 151936, tied=False),
    VisionSizes(1152, 27, 4304, 4096, 3, 16, 2, 2, 3, 2304),
)


def peak(setup: AnsweringSetup, reading: Reading, gib: float = 140.0) -> float:
    return answering_memory(LARGE, 8_767_123_696, setup, reading, gib).peak_gib


def test_what_should_take_more_takes_more() -> None:
    stock, native = (AnsweringSetup(name, 2, 8, 9000, 256) for name in ("transformers", "native"))
    batch, pack = Reading(8, 64000, 8000, 248000, masked=True), Reading(2, 16000, 8000, 62000)
    assert 30 < peak(stock, batch) < 45 and peak(stock, Reading(1, 8000, 8000, 31000)) < 20
    assert peak(native, pack, 140.0) > peak(native, pack, 80.0) > peak(native, pack, 48.0) > 20
    assert peak(native, pack, 48.0) < 48 * 0.9
    one_video = Reading(8, 9000, 8100, 31000, shared=56000)
    assert peak(native, replace(one_video, shared=560000)) > peak(native, one_video)


class Asked:
    """A sample as `readings` looks at it."""

    def __init__(self, length: int, patches: int, prefix: int = 0, key: bytes = b"") -> None:
        self.length, self.patches, self.prefix, self.prefix_key = length, patches, prefix, key
        self.supervised, self.plans = 0, ()


def test_further_attempts_hold_longer_answers() -> None:
    spec = SimpleNamespace(
        generation=SimpleNamespace(max_tokens=64), model=SimpleNamespace(max_length=4096, dtype="bfloat16")
    )
    work = SimpleNamespace(generator="native", batch_size=1)
    once, again = (answering_setup(spec, work, 1000, longer) for longer in (0, 2560))
    assert (once.longest, once.answer, again.longest, again.answer) == (1064, 64, 3624, 2624)
    assert answering_setup(spec, work, 4000, 2560).longest == 4096


def test_what_is_read_together() -> None:
    many: Any = [Asked(length, 4 * length) for length in (100, 6000, 6000, 9000, 300)]
    stock = AnsweringSetup("transformers", 2, 2, 20000, 16)
    assert readings(stock, many, 1) == [
        Reading(2, 18000, 9000, 60000, masked=True),
        Reading(2, 12000, 6000, 25200, masked=True),
        Reading(1, 100, 100, 400),
    ]
    assert readings(stock, many, 2)[0] == Reading(2, 18000, 9000, 37200, masked=True)  # the longest with a short one
    native = AnsweringSetup("native", 2, 2, 20000, 16)
    assert readings(native, many, 1)[0] == Reading(2, 9024 + 6016, 9000, 60000)
    assert all(one.tokens <= PACK_TOKENS for one in readings(native, many, 1))
    alone: Any = [Asked(40000, 160000), Asked(100, 40)]
    assert readings(native, alone, 1)[0] == Reading(1, 40000, 40000, 160000)
    shared: Any = [Asked(8100 + each, 32000, 8000, b"one video") for each in range(8)]
    (one,) = readings(native, shared, 1)
    assert one.prompts == 8 and one.patches == 32000 and one.tokens < 9000 and one.shared == 8000
