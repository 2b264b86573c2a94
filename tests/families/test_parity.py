"""Our chat gives exactly the text and ids of transformers' processor, with real frames."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Qwen3VLProcessor

from vidqa.data import MediaRef, Record, Turn, load_records
from vidqa.families import family_of
from vidqa.families.chat import Chat, load_chat
from vidqa.video.plan import plan_frames, plan_image
from vidqa.video.types import FramePlan, VideoMeta, vision_spec

# Not the tiny model's own template: one with counters, generation blocks, loop controls, tojson and set.
ELABORATE = """\
{% set seen = namespace(video=0, image=0) %}
{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
<|im_start|>system
Be {{ {'kind': 'hélpful <b>'} | tojson }}.<|im_end|>
    {% endif %}
    {% if message.role == 'tool' %}{% continue %}{% endif %}
<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}
{% generation %}
{{- message.content -}}
<|im_end|>
{% endgeneration %}
{% elif message.content is string %}
{{- message.content -}}
<|im_end|>
{% else %}
    {% for part in message.content %}
        {% if part.type == 'video' %}
            {%- set seen.video = seen.video + 1 -%}
Video {{ seen.video }}: <|vision_start|><|video_pad|><|vision_end|>
        {%- elif part.type == 'image' %}
            {%- set seen.image = seen.image + 1 -%}
Picture {{ seen.image }}: <|vision_start|><|image_pad|><|vision_end|>
        {%- else -%}
            {{ part.text }}
        {%- endif %}
    {% endfor %}
<|im_end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
TEXTS = (
    "Is the door open?",
    "  two  spaces ",
    "\n\nlines\n\n",
    "門は開いていますか？",
    "cafe\u0301 naïve 🎬🏃‍♀️",
    "assistant",
    "<think> <answer> <0.5 seconds>",
    "a\tb 12345 1.5",
    "{{ messages }} {% if %}",
    "x" * 300,
)


@pytest.fixture(scope="module")
def elaborate_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elaborate")
    processor = Qwen3VLProcessor.from_pretrained(model_folder)
    processor.chat_template = ELABORATE
    processor.save_pretrained(folder)
    (folder / "config.json").write_bytes((model_folder / "config.json").read_bytes())
    return folder


@pytest.fixture(scope="module", params=["model_folder", "elaborate_folder"])
def pair(request: pytest.FixtureRequest) -> Any:
    """(our chat, transformers' processor, folder) of one model folder."""
    folder = request.getfixturevalue(request.param)
    return load_chat(folder), Qwen3VLProcessor.from_pretrained(folder), folder


def some_record(draw: random.Random) -> Record:
    """One to three questions, up to three media anywhere in them, with or without a system turn."""
    kinds = [draw.choice(["video", "image"]) for _ in range(draw.randrange(4))]
    turns, placed = [], 0
    if draw.random() < 0.4:
        turns.append(Turn("system", (draw.choice(TEXTS),)))
    questions = draw.randrange(1, 4)
    for at in range(questions):
        here = len(kinds) - placed if at == questions - 1 else draw.randrange(len(kinds) - placed + 1)
        parts: list[str | int] = [*range(placed, placed + here), draw.choice(TEXTS)]
        if draw.random() < 0.5:
            parts.insert(draw.randrange(len(parts)), draw.choice(TEXTS))
        placed += here
        turns += [Turn("user", tuple(parts)), Turn("assistant", (draw.choice(TEXTS),))]
    media = tuple(MediaRef(kind, f"{at}", f"/{at}") for at, kind in enumerate(kinds))
    return Record("r", tuple(turns), media)


def media_and_plans(draw: random.Random, record: Record, folder: Path) -> tuple[dict[str, Any], list[FramePlan]]:
    """Real pixels for the processor, and our plans for the same media."""
    vision = vision_spec(family_of(folder).geometry(folder), fps=2)
    inputs: dict[str, Any] = {"images": [], "videos": [], "video_metadata": []}
    plans = []
    for medium in record.media:
        height, width, frames = 32 * draw.randrange(1, 5), 32 * draw.randrange(1, 5), draw.randrange(8, 60)
        if medium.kind == "image":
            inputs["images"].append(np.zeros((height, width, 3), np.uint8))
            plans.append(plan_image(width, height, vision))
            continue
        rate = draw.choice([8.0, 29.97, 24.0])
        inputs["videos"].append(np.zeros((frames, height, width, 3), np.uint8))
        inputs["video_metadata"].append({"total_num_frames": frames, "fps": rate})
        plans.append(plan_frames(VideoMeta(rate, frames, frames / rate, width, height), vision))
    return {name: value for name, value in inputs.items() if value}, plans


def as_messages(record: Record, turns: tuple[Turn, ...]) -> list[dict[str, Any]]:
    def content(turn: Turn) -> Any:
        if all(isinstance(part, str) for part in turn.parts):
            return turn.text
        parts = [(part, "text") if isinstance(part, str) else (part, record.media[part].kind) for part in turn.parts]
        return [{"type": kind, "text": part} if kind == "text" else {"type": kind} for part, kind in parts]

    return [{"role": turn.role, "content": content(turn)} for turn in turns]


@pytest.mark.parametrize("seed", range(25))
def test_text_and_ids_equal_the_processors(pair: tuple[Chat, Qwen3VLProcessor, Path], seed: int) -> None:
    chat, processor, folder = pair
    draw = random.Random(seed)
    record = some_record(draw)
    inputs, plans = media_and_plans(draw, record, folder)
    if "videos" in inputs:
        inputs |= {"do_sample_frames": True, "fps": 2}
    for for_generation in (False, True):
        turns = record.turns[:-1] if for_generation else record.turns
        text = processor.apply_chat_template(
            as_messages(record, turns), tokenize=False, add_generation_prompt=for_generation
        )
        encoded = chat.encode(record, plans, response_mode="hybrid", for_generation=for_generation)
        assert encoded.text == text
        assert encoded.token_ids.tolist() == processor(text=[text], **inputs)["input_ids"][0]
        assert len(encoded.supervised) == len(encoded.token_ids)


def test_learned_tokens_are_those_of_generation_blocks(elaborate_folder: Path) -> None:
    """The elaborate template marks with its own tag what the assistant says; another way to the same tokens."""
    chat, processor = load_chat(elaborate_folder), Qwen3VLProcessor.from_pretrained(elaborate_folder)
    newline = chat.tokens.core.token_to_id("Ċ")
    records = [record for record in map(some_record, map(random.Random, range(60))) if not record.media]
    assert len(records) > 10
    for record in records:
        found = processor.apply_chat_template(
            as_messages(record, record.turns), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        encoded = chat.encode(record, [], response_mode="hybrid")
        marked = np.array(found["assistant_masks"][0], bool)
        # The block ends after the newline that follows the end of the turn; we do not teach that newline.
        theirs = np.array(found["input_ids"][0])[marked]
        ours = encoded.token_ids[encoded.supervised]
        assert ours[ours != newline].tolist() == theirs[theirs != newline].tolist()


VIDEO, IMAGE = {"type": "video"}, {"type": "image"}
# What a user wrote, and the text and media that the model shall see: a tag takes one line break on each side with it,
# as NVIDIA's loader of LLaVA records does, and nothing else is taken.
WRITTEN = [
    ("<video>\nWhy?", [VIDEO, "Why?"]),
    ("<video>\r\nWhy?", [VIDEO, "\r\nWhy?"]),
    ("Why?\n<video>", ["Why?", VIDEO]),
    ("<video>Why?", [VIDEO, "Why?"]),
    ("<video> Why?", [VIDEO, " Why?"]),
    ("<video>\n\n  Why?\n", [VIDEO, "\n  Why?\n"]),
    ("First <video> and", ["First ", VIDEO, " and"]),
    (" First\n\n<video>\nand \n", [" First\n", VIDEO, "and \n"]),
    ("<image>\n<video>\nWhy?", [IMAGE, VIDEO, "Why?"]),
    ("<image> <video>\n", [IMAGE, " ", VIDEO]),
    ("Here: <image>, there:\t<video>\nWhy? ", ["Here: ", IMAGE, ", there:\t", VIDEO, "Why? "]),
    ("\tNothing to tag \n", [VIDEO, IMAGE, "\tNothing to tag \n"]),
    ([VIDEO, "\nWhy?\n"], [VIDEO, "\nWhy?\n"]),
    ([" a ", " b ", VIDEO, "\n", IMAGE, " c"], [" a ", " b ", VIDEO, "\n", IMAGE, " c"]),
    (["Look:\n<video>\n", " Why?"], ["Look:", VIDEO, " Why?"]),
]


@pytest.mark.parametrize(("written", "shown"), WRITTEN)
def test_white_space_of_annotations_reaches_the_model_as_the_processor_renders_it(
    pair: tuple[Chat, Qwen3VLProcessor, Path], tmp_path: Path, written: Any, shown: list[Any]
) -> None:
    chat, processor, folder = pair
    media = [part["type"] for part in shown if isinstance(part, dict)]
    for kind in set(media):
        (tmp_path / kind).write_bytes(b"x")
    content = written if isinstance(written, str) else [_part(part) for part in written]
    turns = [("system", " Be brief.\n"), ("user", content), ("assistant", " Yes \n")]
    turns += [("user", " And then? "), ("assistant", "\tNo\n\nor ")]
    row = {kind: kind for kind in set(media)} | {"messages": [{"role": role, "content": said} for role, said in turns]}
    (tmp_path / "annotations.json").write_text(json.dumps([row]))
    (record,) = load_records(tmp_path)
    vision = vision_spec(family_of(folder).geometry(folder), fps=2)
    plans = [
        plan_image(64, 64, vision) if medium.kind == "image" else plan_frames(VideoMeta(8.0, 8, 1.0, 64, 64), vision)
        for medium in record.media
    ]
    messages = [{"role": role, "content": said} for role, said in turns]
    messages[1]["content"] = [_part(part) for part in shown]
    pixels = {"images": np.zeros((64, 64, 3), np.uint8), "videos": np.zeros((8, 64, 64, 3), np.uint8)}
    inputs: dict[str, Any] = {name: [pixels[name]] for name in pixels if name.removesuffix("s") in media}
    if "videos" in inputs:
        inputs |= {"video_metadata": [{"total_num_frames": 8, "fps": 8.0}], "do_sample_frames": True, "fps": 2}
    for for_generation in (False, True):
        until = messages[:-1] if for_generation else messages
        text = processor.apply_chat_template(until, tokenize=False, add_generation_prompt=for_generation)
        encoded = chat.encode(record, plans, for_generation=for_generation)
        assert encoded.text == text
        assert encoded.token_ids.tolist() == processor(text=[text], **inputs)["input_ids"][0]


def test_text_parts_of_an_answer_follow_each_other_as_in_the_processors(model_folder: Path, tmp_path: Path) -> None:
    """Without a separator, as in Qwen's templates."""
    messages = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": list(map(_part, ("So", "it is. ")))},
    ]
    (tmp_path / "annotations.json").write_text(json.dumps([{"messages": messages}]))
    (record,) = load_records(tmp_path)
    text = Qwen3VLProcessor.from_pretrained(model_folder).apply_chat_template(messages, tokenize=False)
    assert load_chat(model_folder).encode(record, []).text == text and "Soit is. <|im_end|>" in text


def _part(part: Any) -> dict[str, str]:
    return {"type": "text", "text": part} if isinstance(part, str) else part
