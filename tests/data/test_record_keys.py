"""Keys of records, turns and parts: each changes what is taught, or is named by whatever reads the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vidqa.core.problem import Problem
from vidqa.data import Record, fingerprint
from vidqa.data.load import check_records, fast_row
from vidqa.datatools.convert import convert
from vidqa.datatools.inspection import inspect_dataset

ANSWER = {"role": "assistant", "content": "yes"}


def asked(part: dict[str, Any], text: str = "What?") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part, {"type": "text", "text": text}]}, ANSWER]}


def said(*turns: tuple[str, str, dict[str, Any]], **row: Any) -> dict[str, Any]:
    return {**row, "messages": [{"role": role, "content": text, **keys} for role, text, keys in turns]}


def read(folder: Path, row: dict[str, Any]) -> tuple[Record | None, list[Problem]]:
    for name in ("a.mp4", "b.png"):
        (folder / name).write_bytes(b"x")
    (folder / "annotations.json").write_text(json.dumps([row]))
    records, problems = check_records(folder)
    return (records[0] if records else None), problems


def named(problems: list[Problem], code: str, severity: str = "warning") -> str:
    return " ".join(each.message for each in problems if (each.code, each.severity) == (code, severity))


def test_keys_of_a_part_belong_to_its_medium(tmp_path: Path) -> None:
    keys = {"video_start": 0.5, "video_end": 1, "nframes": 4.0, "max_pixels": 65536, "fps": None}
    record, problems = read(tmp_path, asked({"type": "video", "video": "a.mp4", **keys}))
    assert record and not problems
    assert dict(record.media[0].keys) == {"video_start": 0.5, "video_end": 1.0, "nframes": 4, "max_pixels": 65536}
    assert record.media[0].key == record.media[0].file  # the same video, whatever is shown of it
    other, _ = read(tmp_path, asked({"type": "video", "video": "a.mp4"}))
    assert other and fingerprint([record]) != fingerprint([other])


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("video", {"fps": 0}, "fps is 0, and must be a number above 0"),
        ("video", {"nframes": 2.5}, "nframes is 2.5, and must be a whole number"),
        ("video", {"nframes": 10**9}, "nframes is 1000000000, and must be a whole number from 1 to 768"),
        ("video", {"nframes": True}, "nframes is True"),
        ("video", {"max_pixels": "65536"}, "max_pixels is '65536'"),
        ("video", {"video_start": -1}, "video_start is -1, and must be a number of at least 0"),
        ("video", {"fps": float("nan")}, "fps is nan"),
        ("video", {"fps": float("inf")}, "fps is inf"),
        ("video", {"fps": 2, "nframes": 4}, "fps and nframes exclude each other"),
        ("video", {"video_start": 2, "video_end": 2}, "video_start is 2 and video_end is 2"),
        ("video", {"min_frames": 8, "max_frames": 4}, "min_frames is 8 and max_frames is 4"),
        ("image", {"min_pixels": 8, "max_pixels": 4}, "min_pixels is 8 and max_pixels is 4"),
        ("image", {"resized_height": 64}, "must be set together"),
    ],
)
def test_keys_that_qwen_vl_utils_refuses_are_errors(
    tmp_path: Path, kind: str, keys: dict[str, Any], message: str
) -> None:
    file = {"video": "a.mp4", "image": "b.png"}[kind]
    record, problems = read(tmp_path, asked({"type": kind, kind: file, **keys}))
    assert record is None and message in named(problems, "DATA_FIELD", "error")


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (asked({"type": "video", "video": "a.mp4", "video_begin": 1}), ["video_begin"]),
        (asked({"type": "image", "image": "b.png", "fps": 2}), ["fps: it is a key of videos"]),
        (
            asked({"type": "video", "video": "a.mp4", "resized_height": 64, "resized_width": 64, "max_pixels": 9}),
            ["max_pixels: resized_height and resized_width hold"],
        ),
        (
            asked({"type": "video", "video": "a.mp4", "nframes": 4, "max_frames": 9}),
            ["max_frames: it bounds fps"],
        ),
        (said(("user", "Q", {"name": "Ann"}), ("assistant", "A", {"tool_calls": [{}]})), ["name", "tool_calls"]),
        (said(("user", "Q", {}), ("assistant", "A", {"reasoning_content": "so"})), ["reasoning_content"]),
        (
            said(("user", "Q", {"train": True}), ("assistant", "A", {})),
            ["train: a turn of the user is never trained on"],
        ),
        (said(("user", "Q", {}), ("assistant", "A", {}), tools=[{}], audios=["a.wav"]), ["tools", "audios"]),
        (said(("user", "Q", {}), ("assistant", "A", {}), rejected_messages=[{}]), ["rejected_messages"]),
        (said(("user", "Q", {}), ("assistant", "A", {}), prompt="R", history=[["S", "B"]]), ["prompt", "history"]),
        (said(("user", "Q", {}), ("assistant", "A", {}), video_start=1, video="a.mp4"), ["video_start"]),
        (said(("user", "Q", {}), ("assistant", "A", {}), start=1, end_time="9", video="a.mp4"), ["start", "end_time"]),
        (asked({"type": "video_url", "video_url": {"url": "a.mp4", "fps": 2}}), ["video_url.fps: it belongs next to"]),
        (asked({"type": "video", "video": "a.mp4", "path": "b.mp4"}), ["path: video names the medium"]),
        (
            {**asked({"type": "video", "video": "a.mp4"}), "conversations": [{"from": "human", "value": "Q"}, ANSWER]},
            ["messages: conversations holds"],
        ),
        (
            said(("user", "Q", {}), ("assistant", "A", {"value": "B"}), teacher_prompt="P"),
            ["content: value holds", "teacher_prompt"],
        ),
    ],
)
def test_keys_without_effect_are_named_alike_by_all_who_read(
    tmp_path: Path, row: dict[str, Any], names: list[str]
) -> None:
    record, problems = read(tmp_path, row)
    text = named(problems, "DATA_LEFT_OUT")
    assert record and all(name in text for name in names)
    converted = convert(tmp_path, tmp_path / "out.json", "llava")
    assert named(converted.problems, "DATA_LEFT_OUT").startswith(text)
    assert named(inspect_dataset(tmp_path, skip_near_duplicates=True).problems, "DATA_LEFT_OUT") == text


def test_fields_of_the_users_own_and_nulls_of_tables_are_not_named(tmp_path: Path) -> None:
    part = {"type": "video", "video": "a.mp4", "image": None, "text": None, "fps": None}
    row = {"label": "dog", "scene": 7, "tools": None, **asked(part)}
    assert read(tmp_path, row)[1] == []


@pytest.mark.parametrize("turns", [(), (("system", "Be brief.", {}),)])
def test_the_field_system_is_the_first_turn(tmp_path: Path, turns: tuple[Any, ...]) -> None:
    row = said(*turns, ("user", "Q", {}), ("assistant", "A", {}), system="Be brief.")
    record, problems = read(tmp_path, row)
    assert record and (record.turns[0].role, record.turns[0].text) == ("system", "Be brief.")
    assert len(record.turns) == 3 and {each.code for each in problems} == {"DATA_FIELD"}


def test_two_different_system_turns_are_an_error(tmp_path: Path) -> None:
    row = said(("system", "Be long.", {}), ("user", "Q", {}), ("assistant", "A", {}), system="Be brief.")
    assert "another system turn" in named(read(tmp_path, row)[1], "DATA_FIELD", "error")


@pytest.mark.parametrize("key", [{"loss": False}, {"weight": 0}, {"train": False}, {"loss": 0, "weight": 0.0}])
def test_a_turn_may_say_that_it_is_not_learned(tmp_path: Path, key: dict[str, Any]) -> None:
    row = said(("user", "Q", {}), ("assistant", "A", key), ("user", "R", {}), ("assistant", "B", {"loss": True}))
    record, _ = read(tmp_path, row)
    assert record and [turn.learned for turn in record.turns] == [True, False, True, True]
    turns = [(turn["role"], turn["content"], {}) for turn in row["messages"]]
    plain, _ = read(tmp_path, said(*turns))
    assert plain and fingerprint([plain]) != fingerprint([record])


@pytest.mark.parametrize("key", [{"weight": 0.5}, {"loss": "false"}, {"loss": True, "weight": 0}])
def test_what_says_otherwise_whether_a_turn_is_learned_is_an_error(tmp_path: Path, key: dict[str, Any]) -> None:
    record, problems = read(tmp_path, said(("user", "Q", {}), ("assistant", "A", key)))
    assert record is None and named(problems, "DATA_FIELD", "error")


@pytest.mark.parametrize("tag", ["<video>", "<image>"])
def test_a_tag_in_a_text_part_is_text_beside_media_parts(tmp_path: Path, tag: str) -> None:
    text = f"Does the page use a {tag} tag?"
    record, problems = read(tmp_path, asked({"type": "video", "video": "a.mp4"}, text))
    assert record and not problems and record.turns[0].parts == (0, text)
    assert fast_row(asked({"type": "video", "video": "a.mp4"}, text)).question.strip() == record.question == text
    alone, _ = read(tmp_path, {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}, ANSWER]})
    assert alone and alone.turns[0].parts == (text,)


def test_a_tag_in_a_text_part_is_a_place_where_no_part_shows_the_listed_media_and_that_is_said(tmp_path: Path) -> None:
    row = {
        "video": "a.mp4",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "<video>\nQ"}]}, ANSWER],
    }
    record, problems = read(tmp_path, row)
    assert record and record.turns[0].parts == (0, "Q")
    assert "place of a medium" in named(problems, "DATA_TAG_COUNT")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("<think>because", "<think> without </think>"),
        ("because</think>yes", "</think> without <think>"),
        ("<think>a<think>b</think>yes", "<think> inside <think>"),
        ("<think>because</think>yes", ""),
        ("a < b > c", ""),
    ],
)
def test_thinking_without_an_end_is_named(tmp_path: Path, answer: str, message: str) -> None:
    record, problems = read(tmp_path, said(("user", "Q", {}), ("assistant", answer, {})))
    text = named([problem for problem in problems if "text only" not in problem.message], "DATA_FIELD")
    assert record and message in text and bool(text) == bool(message)


ROWS = (
    asked({"type": "video", "video": "a.mp4", "video_start": 0.5, "fps": 2}),
    asked({"type": "image", "image": "b.png", "max_pixels": 65536}),
    asked({"type": "video", "video": "a.mp4"}, "a <video> tag"),
    said(("user", "Q", {}), ("assistant", "A", {"weight": 0}), ("user", "R", {}), ("assistant", "B", {}), system="S"),
)


@pytest.mark.parametrize("to", ["llava", "messages", "jsonl", "parquet"])
def test_conversion_keeps_what_they_mean(tmp_path: Path, to: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    read(folder, {})
    rows = [{"id": str(at), **row} for at, row in enumerate(ROWS)]
    (folder / "annotations.json").write_text(json.dumps(rows))
    before, _ = check_records(folder)
    converted = convert(folder, tmp_path / "out", to)
    after, _ = check_records(converted.files[0], folder)
    assert len(before) == len(rows) and converted.facts["dropped"] == {}
    assert [(each.turns, each.media) for each in after] == [(each.turns, each.media) for each in before]


def test_keys_beside_the_path_of_a_listed_video_are_refused(tmp_path: Path) -> None:
    record, problems = read(
        tmp_path, said(("user", "Q", {}), ("assistant", "A", {}), video={"path": "a.mp4", "fps": 2})
    )
    assert record is None and "got an object" in named(problems, "DATA_FIELD", "error")
    assert read(tmp_path, said(("user", "Q", {}), ("assistant", "A", {}), video={"path": "a.mp4", "bytes": None}))[0]
