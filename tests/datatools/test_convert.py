"""Conversion: round trips change no record, every format is read, what is lost is said, wrong input is a problem."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs import run_here, run_next
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.data.record import Record
from vidqa.datatools.convert import SUFFIX, convert
from vidqa.datatools.outputs import write_page
from vidqa.datatools.reading import detected

MEDIA = {"video": ["a.mp4", "sub/b c.mp4", "é.mp4"], "image": ["p.png", "q.jpg"]}


@cache
def media_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vidqa-media-"))
    fill(folder)
    return folder


def fill(folder: Path) -> Path:
    for name in (name for names in MEDIA.values() for name in names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def same(records: list[Record]) -> list[tuple]:
    return [(r.id, r.turns, r.media, r.kind, r.video_fps) for r in records]


def turns(question: str = "Is it open?", answer: str = "Yes") -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


def codes(stopped: pytest.ExceptionInfo[ProblemError]) -> set[str]:
    return {problem.code for problem in stopped.value.problems}


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda text: text.strip())
media = st.one_of(*(st.tuples(st.just(kind), st.sampled_from(names)) for kind, names in MEDIA.items()))
asked = st.lists(words | media, min_size=1, max_size=5)
answers = words | st.sampled_from(["<think>a\nb</think>\n\nYes", "a <video> tag", "(B)\r\nred\t"])


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """A row in LLaVA or in message form, with one to three questions, media anywhere in them, and other fields."""
    said = draw(st.lists(st.tuples(asked, answers), min_size=1, max_size=3))
    row: dict[str, Any] = draw(st.fixed_dictionaries({}, optional={"video_fps": st.floats(0.5, 240), "note": words}))
    row |= draw(st.fixed_dictionaries({}, optional={"kind": words, "category": words, "type": st.just(3)}))
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(words)})
    if draw(st.booleans()):
        for question, answer in said:
            parts = [
                {"type": piece[0], piece[0]: piece[1]} if isinstance(piece, tuple) else {"type": "text", "text": piece}
                for piece in question
            ]
            messages += [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
        return {**row, "messages": messages}
    for kind in MEDIA:
        found = [p[1] for question, _ in said for p in question if isinstance(p, tuple) and p[0] == kind]
        row |= {f"{kind}s": found} if found else {}
    for question, answer in said:
        text = "".join(piece if isinstance(piece, str) else f"<{piece[0]}>" for piece in question)
        messages += [{"from": "human", "value": text}, {"from": "gpt", "value": answer}]
    return {**row, "conversations": messages}


@settings(max_examples=100, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=4), st.sampled_from([*SUFFIX, "hf"]))
def test_there_and_back_nothing_changes(written: list[dict[str, Any]], form: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = [{"id": f"r{at}", **row} for at, row in enumerate(written)]
        (folder / "in.json").write_text(json.dumps(written), encoding="utf-8")
        before = load_records(folder / "in.json", media_folder())
        there = convert(folder / "in.json", folder / "there", form, media_path=str(media_folder()))
        assert there.facts["records"] == len(before)
        convert(folder / "there", folder / "back.json", "llava", media_path=str(media_folder()))
        assert same(load_records(folder / "back.json", media_folder())) == same(before)
        if form in ("llava", "messages", "jsonl"):
            assert same(load_records(there.files[0], media_folder())) == same(before)
            back = json.loads((folder / "back.json").read_text(encoding="utf-8"))
            assert [row.get("note") for row in back] == [row.get("note") for row in written]


def write_rows(folder: Path, written: list[dict[str, Any]]) -> Path:
    fill(folder)
    (folder / "annotations.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def test_the_shapes_are_those_that_others_read(tmp_path: Path) -> None:
    row = {"id": 7, "video": "a.mp4", "category": "door", "conversations": turns("<video>\nIs it open?")}
    root = write_rows(tmp_path / "data", [row])
    for form in (*SUFFIX, "hf"):
        convert(root, tmp_path / form, form)
    llava = json.loads((tmp_path / "llava/annotations.json").read_text())
    assert llava == [{"id": "7", "video": "a.mp4", "kind": "door", "conversations": turns("<video>\nIs it open?")}]
    content = [{"type": "video", "video": "a.mp4"}, {"type": "text", "text": "Is it open?"}]
    messages = json.loads((tmp_path / "messages/annotations.json").read_text())
    assert messages[0]["messages"][0] == {"role": "user", "content": content}
    assert messages[0]["messages"][1] == {"role": "assistant", "content": "Yes"}
    assert json.loads((tmp_path / "jsonl/annotations.jsonl").read_text()) == llava[0]
    card = (tmp_path / "hf/README.md").read_text()
    files = yaml.safe_load(card.split("---\n")[1])["configs"][0]["data_files"]
    assert [entry["split"] for entry in files] == ["train"] and list((tmp_path / "hf").glob(files[0]["path"]))
    table = pq.read_table(tmp_path / "hf/data/train-00000-of-00001.parquet")
    assert table.column_names == ["id", "kind", "video_fps", "messages"] and table.num_rows == 1


def test_what_is_lost_is_counted(tmp_path: Path) -> None:
    part = [{"type": "video", "video": "a.mp4", "fps": 2, "frames": 2}, {"type": "text", "text": "Why?"}]
    messages = [{"role": "user", "content": part}, {"role": "assistant", "content": "x", "weight": 1, "name": "y"}]
    root = write_rows(
        tmp_path / "data",
        [{"id": n, "note": n, "split": None, "messages": messages, "category": "c"} for n in range(3)]
        + [{"id": "z", "video": "a.mp4", "conversations": turns(), "messages": []}],
    )
    made = convert(root, tmp_path / "l", "llava")
    assert made.facts["dropped"] == {"messages[].content[].frames": 3, "messages[].name": 3, "messages": 1}
    assert {p.code for p in made.problems} == {"DATA_LEFT_OUT"}
    assert convert(root, tmp_path / "p.parquet", "parquet").facts["dropped"]["note"] == 3


def arrow_folder(folder: Path, written: list[dict[str, Any]], shards: int = 1) -> Path:
    """As `save_to_disk` of the datasets package leaves it: Arrow streams and state.json."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(written)
    names = [f"data-{n:05}-of-{shards:05}.arrow" for n in range(shards)]
    step = -(-len(written) // shards)
    for number, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table.slice(number * step, step))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_folder_of_save_to_disk_is_read(tmp_path: Path) -> None:
    written = [{"id": f"{n}", "video": "a.mp4", "extra": n, "conversations": turns(f"q{n}")} for n in range(5)]
    folder = arrow_folder(tmp_path / "saved", written, shards=2)
    made = convert(folder, tmp_path / "o.json", "llava", media_path=str(media_folder()))
    records = load_records(tmp_path / "o.json", media_folder())
    assert made.facts["from"] == "hf" and [r.question for r in records] == [f"q{n}" for n in range(5)]
    assert [row["extra"] for row in json.loads((tmp_path / "o.json").read_text())] == list(range(5))


def test_splits_are_not_mixed(tmp_path: Path) -> None:
    made = write_rows(tmp_path / "data", [{"video": "a.mp4", "conversations": turns()}])
    convert(made, tmp_path / "hf", "hf")
    shard = tmp_path / "hf/data/train-00000-of-00001.parquet"
    shutil.copy(shard, tmp_path / "hf/data/test-00000-of-00001.parquet")
    (tmp_path / "hf/README.md").unlink()  # which names the one that is meant
    with pytest.raises(ProblemError) as stopped:
        convert(tmp_path / "hf", tmp_path / "o.json", "llava")
    assert codes(stopped) == {"DATA_SPLIT"} and "test, train" in str(stopped.value)
    convert(shard, tmp_path / "o.json", "llava", media_path=str(made))
    arrow_folder(tmp_path / "dict/train", [{"id": "x", "video": "a.mp4", "conversations": turns()}])
    (tmp_path / "dict/dataset_dict.json").write_text('{"splits": ["train"]}')
    assert convert(tmp_path / "dict", tmp_path / "one.json", "llava", media_path=str(made)).facts["records"] == 1
    arrow_folder(tmp_path / "dict/test", [{"id": "y"}])
    with pytest.raises(ProblemError) as stopped:
        convert(tmp_path / "dict", tmp_path / "o.json", "llava")
    assert codes(stopped) == {"DATA_SPLIT"}


CSV = """Video,question,answer,id,kind,options,camera
a.mp4,"What falls,
and why?",a box,one,what,a cup|a box|a book,7
a.mp4, "Is it open?", no,two,open,,
sub/b c.mp4,Which?,C,three,what,"['red', 'green', 'blue']",
a.mp4,Describe it.,"Yes, a door opens",four,,,
,,,,,,
"""


def csv(folder: Path, text: str = CSV) -> Path:
    fill(folder)
    (folder / "q.csv").write_text(text, encoding="utf-8-sig")
    return folder / "q.csv"


def test_questions_of_a_csv(tmp_path: Path) -> None:
    made = convert(csv(tmp_path), tmp_path / "annotations.json", "llava")
    records = load_records(tmp_path)
    assert [(r.id, r.question, r.answer, r.kind) for r in records] == [
        ("one", "What falls,\nand why?", "a box", "what"),
        ("two", "Is it open?", "no", "open"),
        ("three", "Which?", "C", "what"),
        ("four", "Describe it.", "Yes, a door opens", None),
    ]
    assert [r.media[0].written for r in records] == ["a.mp4", "a.mp4", "sub/b c.mp4", "a.mp4"]
    first = json.loads((tmp_path / "annotations.json").read_text())[0]
    assert (first["camera"], first["options"]) == ("7", "a cup|a box|a book") and made.facts["dropped"] == {}


def test_prompt_forms(tmp_path: Path) -> None:
    made = convert(csv(tmp_path), tmp_path / "annotations.json", "llava", forms=["mcq", "yes_no"])
    records = load_records(tmp_path)
    assert [r.answer for r in records] == ["B", "No", "C", "Yes, a door opens"]
    asked = "What falls,\nand why?\n(A) a cup\n(B) a box\n(C) a book\nAnswer with the letter of the right option."
    assert records[0].question == asked and records[3].question == "Describe it."
    assert records[1].question == "Is it open?\nAnswer with yes or no."
    assert made.facts["prompts"] == {"mcq": 2, "yes_no": 1} and made.facts["dropped"] == {}
    again = convert(tmp_path, tmp_path / "again.json", "llava", forms=["mcq", "yes_no"])
    assert same(load_records(tmp_path / "again.json")) == same(records)  # the forms are put on once
    assert again.facts["prompts"] == {"mcq": 2, "yes_no": 1}


def test_columns_for_each_option_are_listed_and_a_window_goes_to_its_video(tmp_path: Path) -> None:
    text = "video,question,A,B,answer,from,video_end\na.mp4,Which?,a cup,a box,B,0.5,1\na.mp4,Why?,it,she,A,,\n"
    columns = {"video_start": "from"}
    made = convert(csv(tmp_path, text), tmp_path / "annotations.json", "llava", forms=["mcq"], columns=columns)
    first, second = load_records(tmp_path)
    assert (first.answer, first.question.split("\n")[:3]) == ("B", ["Which?", "(A) a cup", "(B) a box"])
    assert dict(first.media[0].keys) == {"video_start": 0.5, "video_end": 1.0} and second.media[0].keys == ()
    assert made.problems == [] and "a" not in json.loads((tmp_path / "annotations.json").read_text())[0]


@pytest.mark.parametrize("name", ["file", "path", "clip", "Filename"])
def test_usual_names_of_the_video_column_are_understood(tmp_path: Path, name: str) -> None:
    table = csv(tmp_path, f"question,answer,{name},camera\nIs it open?,Yes,a.mp4,7\nWhat is it?,a cup,p.png,8\n")
    convert(table, tmp_path / "annotations.json", "llava")
    assert [[(m.kind, m.written) for m in r.media] for r in load_records(tmp_path)] == [
        [("video", "a.mp4")],
        [("image", "p.png")],
    ]
    beside = csv(tmp_path, f"video,question,answer,{name}\na.mp4,Is it open?,Yes,of another\n")
    convert(beside, tmp_path / "beside.json", "llava")
    (row,) = json.loads((tmp_path / "beside.json").read_text())
    assert (row["video"], row[name.lower()]) == ("a.mp4", "of another")  # no alias where the column itself is there


def test_columns_are_renamed(tmp_path: Path) -> None:
    table = csv(tmp_path, "Recording,Frage,answer,topic,video\na.mp4,Is it open?,Yes,doors,old\n")
    names = {"video": "Recording", "question": "frage", "kind": "topic", "was": "video"}
    convert(table, tmp_path / "o.json", "llava", columns=names)
    (record,) = load_records(tmp_path / "o.json")
    assert (record.media[0].written, record.question, record.kind) == ("a.mp4", "Is it open?", "doors")
    for wrong in ({"video": "absent"}, {"video": "Recording"}, {}):  # not there; two of one name; not all are there
        with pytest.raises(ProblemError) as stopped:
            convert(table, tmp_path / "p.json", "llava", columns=wrong)
        assert codes(stopped) == {"DATA_FIELD"} and "recording" in str(stopped.value)
    jsonl = tmp_path / "q.jsonl"
    jsonl.write_text(json.dumps({"recording": "a.mp4", "conversations": turns(), "video": "not this.mp4"}))
    convert(jsonl, tmp_path / "j.json", "llava", columns={"video": "recording"})
    assert load_records(tmp_path / "j.json")[0].media[0].written == "a.mp4"


def test_problems_of_a_csv_name_the_line_that_an_editor_shows(tmp_path: Path) -> None:
    text = (
        'video,question,answer\na.mp4,"What falls,\nand why?",a box\n\na.mp4,,Yes\nx.mp4,"two\nlines",No\na.mp4,short\n'
    )
    with pytest.raises(ProblemError) as stopped:
        convert(csv(tmp_path, text), tmp_path / "o.json", "llava")
    found = [(p.code, p.where.rpartition("q.csv")[2].split()[0]) for p in stopped.value.problems]
    assert found == [
        ("DATA_FIELD", ":5"),
        ("DATA_MEDIA_MISSING", ":6"),
        ("DATA_SYNTAX", ":8"),
    ]
    twice = csv(tmp_path, "id,video,question,answer\nx,a.mp4,q,a\n\nx,a.mp4,q,a\n")
    with pytest.raises(ProblemError, match="line 2 has the same id"):
        convert(twice, tmp_path / "o.json", "llava")
    made = convert(csv(tmp_path, "video,question,answer\n\na.mp4,q,a\na.mp4,r,a\n"), tmp_path / "o.json", "llava")
    assert made.facts["records"] == 2
    assert [r.id for r in load_records(tmp_path / "o.json")] == ["0", "1"]  # ids are still those of the place


def test_options_in_the_question_and_thinking_are_kept(tmp_path: Path) -> None:
    written = [
        {"id": 1, "video": "a.mp4", "conversations": turns("Which?\nA. red\nB. blue", "<think>so</think>\n\nBlue")},
        {"id": 2, "video": "a.mp4", "options": ["B", "A"], "conversations": turns("Which letter?", "B")},
        {"id": 3, "video": "a.mp4", "options": ["blue", "red"], "conversations": turns("(A) red (B) blue", "red")},
    ]
    convert(write_rows(tmp_path, written), tmp_path / "o.jsonl", "jsonl", forms=["mcq"])
    records = load_records(tmp_path / "o.jsonl")
    assert [r.answer for r in records] == ["<think>so</think>\n\nB", "A", "A"]  # of the letters that are shown
    assert records[0].question == "Which?\nA. red\nB. blue\nAnswer with the letter of the right option."


@pytest.mark.parametrize("answer", ["D", "a pen", "same", "AB"])
def test_an_answer_that_is_no_single_option_is_refused(tmp_path: Path, answer: str) -> None:
    text = f"video,question,answer,options\na.mp4,Which?,{answer},same|same|other\n"
    with pytest.raises(ProblemError) as stopped:
        convert(csv(tmp_path, text), tmp_path / "o.json", "llava", forms=["mcq"])
    assert codes(stopped) == {"DATATOOLS_PROMPT"} and not (tmp_path / "o.json").exists()


@pytest.mark.parametrize("to", ["llava", "parquet"])
def test_a_column_to_rename_that_no_row_has_is_refused(tmp_path: Path, to: str) -> None:
    rows = write_rows(tmp_path, [{"id": 1, "video": "a.mp4", "door": "left", "conversations": turns()}])
    (first,) = convert(rows, tmp_path / "one", to, columns={"kind": "door"}, media_path=str(tmp_path)).files
    assert load_records(first, tmp_path)[0].kind == "left"
    with pytest.raises(ProblemError, match="no row has a field dor"):
        convert(first, tmp_path / "two", "llava", columns={"place": "dor"}, media_path=str(tmp_path))


@pytest.mark.parametrize("to", ["llava", "messages", "jsonl", "parquet", "hf"])
def test_the_wrong_answer_of_a_pair_is_kept(tmp_path: Path, to: str) -> None:
    rows = write_rows(tmp_path, [{"id": 1, "video": "a.mp4", "rejected": "No", "conversations": turns()}])
    convert(rows, tmp_path / "out", to, media_path=str(tmp_path))
    (written,) = [path for path in (tmp_path / "out").rglob("*") if path.suffix in (".json", ".jsonl", ".parquet")]
    assert load_records(written, tmp_path)[0].rejected == "No"


def test_a_form_that_fits_nothing_is_said(tmp_path: Path) -> None:
    made = convert(csv(tmp_path, "video,question,answer\na.mp4,Why?,so\n"), tmp_path / "o", "llava", forms=["mcq"])
    assert [p.code for p in made.problems] == ["DATATOOLS_PROMPT"]


def tao_vl(folder: Path, **more: Any) -> Path:
    fill(folder / "videos")
    items = [
        {"video_id": "videos/a.mp4", "question": "Is it?", "answer": "Yes", "reasoning": " It moves. ", "view": 3},
        {"image_id": "videos/p.png", "question": "What?", "answer": "A door", "item_index": "named"},
    ]
    metadata = {"type": "annotation", "task": "bcq", "license": "MIT"}
    whole = {"format": "tao-vl-reason-v1.0", "metadata": metadata, "media_root": None, "items": items, **more}
    (folder / "bcq.json").write_text(json.dumps(whole))
    return folder


def test_tao_vl_reason(tmp_path: Path) -> None:
    tao_vl(tmp_path)
    made = convert(tmp_path / "bcq.json", tmp_path / "o.json", "llava")
    records = load_records(tmp_path / "o.json", made.media_path)
    assert [(r.id, r.kind, r.question) for r in records] == [("0", "bcq", "Is it?"), ("named", "bcq", "What?")]
    assert [r.answer for r in records] == ["<think>It moves.</think>\n\nYes", "A door"]
    assert [r.media[0].kind for r in records] == ["video", "image"]
    assert made.facts["dropped"] == {"metadata.license": 2} and made.facts["from"] == "tao-vl-reason-v1.0"
    assert json.loads((tmp_path / "o.json").read_text())[0]["view"] == 3


def test_an_id_that_two_files_of_tao_have_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    folder = tao_vl(tmp_path)
    (first, *_) = sorted(folder.glob("*.json"))
    whole = json.loads(first.read_text())
    whole["items"] = [{**whole["items"][0], "item_index": "same"}]
    for name in ("x.json", "y.json"):
        (folder / name).write_text(json.dumps(whole))
    with pytest.raises(ProblemError, match="same id"):
        convert(folder, tmp_path / "o.json", "llava")


def test_fields_of_tao_are_not_renamed(tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as stopped:
        convert(tao_vl(tmp_path), tmp_path / "o.json", "llava", columns={"kind": "task"})
    assert codes(stopped) == {"USAGE"}


def test_tao_vl_reason_with_several_files_and_media_roots(tmp_path: Path) -> None:
    item = {"video_id": "a.mp4", "question": "Why?", "answer": "so"}
    tao_vl(tmp_path, media_root="videos/", items=[item])
    other = {"format": "tao-vl-reason-v1.0", "metadata": {}, "media_root": str(media_folder()), "items": [item, item]}
    (tmp_path / "mcq.json").write_text(json.dumps(other))
    (tmp_path / "notes.json").write_text("[]")
    made = convert(tmp_path, tmp_path / "out" / "o.json", "llava")
    records = load_records(tmp_path / "out" / "o.json", made.media_path)
    assert [r.id for r in records] == ["bcq-0", "mcq-0", "mcq-1"]
    assert [r.media[0].path for r in records[:2]] == [str(tmp_path / "videos/a.mp4"), str(media_folder() / "a.mp4")]
    assert convert(tmp_path, tmp_path / "o2.json", "llava", media_path=str(media_folder())).facts["records"] == 3


def cosmos(folder: Path, changed: dict[str, Any] | None = None, **sample: Any) -> Path:
    fill(folder / "media")
    said = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "video", "video": "video_0"}, {"type": "text", "text": "What moves?"}]},
        {
            "role": "assistant",
            "reasoning_content": [{"type": "text", "text": "Look."}],
            "content": [{"type": "text", "text": "A car."}],
        },
    ]
    whole = {
        "version": "cosmos-reason-v1.0",
        "metadata": {"type": "conversation", "tags": ["x"]},
        "conversations": said,
    }
    (folder / "text").mkdir()
    (folder / "text/s.json").write_text(json.dumps({**whole, **(changed or {})}))
    samples = [{"id": "s", "conversation": "text/s.json", "media": "media/a.mp4", **sample}]
    meta = {"version": "cosmos-reason-v1.0", "metadata": {"type": "meta", "license": "MIT"}, "samples": samples}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def test_cosmos_reason(tmp_path: Path) -> None:
    made = convert(cosmos(tmp_path), tmp_path / "o.json", "llava")
    (record,) = load_records(tmp_path / "o.json", made.media_path)
    assert (record.id, record.question, record.answer) == ("s", "What moves?", "<think>Look.</think>\n\nA car.")
    assert record.turns[0].text == "Be brief." and record.media[0].written == "media/a.mp4"
    assert made.facts["dropped"] == {"metadata.license": 1, "metadata.tags": 1}


def user(part: dict[str, Any]) -> dict[str, Any]:
    said = {"role": "assistant", "content": [{"type": "text", "text": "x"}]}
    return {"conversations": [{"role": "user", "content": [part]}, said]}


WRONG_COSMOS = [
    ({"conversation": "text/absent.json"}, None, "DATATOOLS_FORMAT"),
    ({"conversation": "../s.json"}, None, "DATATOOLS_FORMAT"),
    ({"media": 3}, None, "DATATOOLS_FORMAT"),
    ({"media": "media/absent.mp4"}, None, "DATA_MEDIA_MISSING"),
    ({}, {"version": "cosmos-reason-v2.0"}, "DATATOOLS_FORMAT"),
    ({}, user({"type": "video", "video": "video_1"}), "DATATOOLS_FORMAT"),
    ({}, {"conversations": [{"role": "user", "content": "text"}]}, "DATATOOLS_FORMAT"),
    ({}, {"conversations": []}, "DATA_FIELD"),
]


@pytest.mark.parametrize("sample, conversation, code", WRONG_COSMOS)
def test_wrong_cosmos_reason(tmp_path: Path, sample: dict, conversation: dict | None, code: str) -> None:
    with pytest.raises(ProblemError) as stopped:
        convert(cosmos(tmp_path, conversation, **sample), tmp_path / "o.json", "llava")
    assert codes(stopped) == {code}


@pytest.mark.parametrize(
    "more",
    [
        {"items": {}},
        {"items": ["x"]},
        {"items": [{"video_id": "videos/a.mp4", "image_id": "videos/p.png", "question": "q", "answer": "a"}]},
        {"items": [{"video_id": "videos/a.mp4", "question": "q"}]},
        {"items": [{"video_id": "videos/a.mp4", "question": "q", "answer": 3}]},
    ],
)
def test_wrong_tao_vl_reason(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ProblemError) as stopped:
        convert(tao_vl(tmp_path, **more), tmp_path / "o.json", "llava")
    assert codes(stopped) == {"DATATOOLS_FORMAT"}


@pytest.mark.parametrize(
    "text, code",
    [
        ("video,question\na.mp4,q\n", "DATA_FIELD"),
        ("", "DATA_FIELD"),
        ("video,question,answer\na.mp4,q,a,more\n", "DATA_SYNTAX"),
        ("video,question,answer\na.mp4,q\n", "DATA_SYNTAX"),
        ('video,question,answer\na.mp4,"q,a\n', "DATA_SYNTAX"),
        ("video,question,answer\nabsent.mp4,q,a\n", "DATA_MEDIA_MISSING"),
        ("video,question,answer\na.mp4,,a\n", "DATA_FIELD"),
        ("video,question,answer\na.mp4,q,\n", "DATA_FIELD"),
        ("video,question,answer,video_fps\na.mp4,q,a,fast\n", "DATA_FIELD"),
        ("video,question,answer\n,,\n", "DATA_EMPTY"),
    ],
)
def test_wrong_csv(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(ProblemError) as stopped:
        convert(csv(tmp_path, text), tmp_path / "o.json", "llava")
    assert codes(stopped) == {code} and not (tmp_path / "o.json").exists()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "x", "\x00", "../s.json", "user", "video_0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "x"]), inner),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(["bcq.json", "meta.json", "text/s.json"]))
def test_any_wrong_value_is_read_or_refused(data: st.DataObject, name: str) -> None:
    """Two values of a right data set replaced by something else, or left out."""
    with tempfile.TemporaryDirectory() as folder:
        root = tao_vl(Path(folder)) if name == "bcq.json" else cosmos(Path(folder))
        whole = json.loads((root / name).read_text())
        for _ in range(2):
            container, key = data.draw(st.sampled_from(places(whole) or [(whole, "x")]))
            container[key] = data.draw(json_values)
        (root / name).write_text(json.dumps(whole))
        try:
            form, path = ("tao-vl-reason-v1.0", root / name) if name == "bcq.json" else ("cosmos-reason-v1.0", root)
            assert convert(path, root / "o", "parquet", form).facts["records"]
        except ProblemError as refused:
            assert refused.problems


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_are_a_csv_or_refused(tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "q.csv"
        path.write_bytes(b"video,question,answer,options\n" + tail)
        try:
            assert convert(path, Path(name) / "o", "jsonl", forms=["mcq", "yes_no"]).facts["records"]
        except ProblemError as refused:
            assert refused.problems


def test_a_file_of_tao_that_repeats_a_key_is_refused(tmp_path: Path) -> None:
    file = tao_vl(tmp_path) / "bcq.json"
    file.write_text(file.read_text().replace('"question"', '"question": "Shut?", "question"', 1))
    for path in (tmp_path, file):
        with pytest.raises(ProblemError, match=r"(?s)DATA_SYNTAX.*repeats the key 'question'.*key of an object once"):
            convert(path, tmp_path / "o.json", "llava")


def test_inputs_that_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no parquet")
    (tmp_path / "empty").mkdir()
    wanted = {
        "absent": "DATA_FILE_MISSING",
        "x.txt": "DATATOOLS_FORMAT",
        "empty": "DATATOOLS_FORMAT",
        "x.parquet": "DATA_SYNTAX",
    }
    for name, code in wanted.items():
        with pytest.raises(ProblemError) as stopped:
            convert(tmp_path / name, tmp_path / "o.json", "llava")
        assert codes(stopped) == {code}


def test_formats_are_told_apart(tmp_path: Path) -> None:
    found = [detected(csv(tmp_path / "c")), detected(tao_vl(tmp_path / "t")), detected(tmp_path / "t/bcq.json")]
    found += [detected(cosmos(tmp_path / "k")), detected(write_rows(tmp_path / "l", []))]
    (arrow,) = arrow_folder(tmp_path / "a", [{"id": "x", "video": "a.mp4", "conversations": turns()}]).glob("*.arrow")
    found += [detected(arrow), detected(arrow.parent)]
    assert found == ["csv", "tao-vl-reason-v1.0", "tao-vl-reason-v1.0", "cosmos-reason-v1.0", "llava", "hf", "hf"]
    assert convert(arrow, tmp_path / "o.json", "llava", media_path=str(media_folder())).facts["records"] == 1


def test_another_output_is_never_replaced(tmp_path: Path) -> None:
    root = write_rows(tmp_path / "data", [{"id": "x", "video": "a.mp4", "conversations": turns()}])
    for form in (*SUFFIX, "hf"):
        assert convert(root, tmp_path / form, form).facts["written"]
        assert not convert(root, tmp_path / form, form).facts["written"]
    with pytest.raises(ProblemError) as stopped:
        convert(root, root / "annotations.json", "llava")
    assert codes(stopped) == {"OUTPUT_EXISTS"}


@pytest.mark.parametrize(("to", "name"), [("parquet", "m.csv"), ("llava", "m.jsonl"), ("hf", "m.parquet")])
def test_an_output_with_the_ending_of_another_format_is_refused(tmp_path: Path, to: str, name: str) -> None:
    root = write_rows(tmp_path / "data", [{"id": "x", "video": "a.mp4", "conversations": turns()}])
    with pytest.raises(ProblemError) as stopped:
        convert(root, tmp_path / name, to)
    assert codes(stopped) == {"USAGE"} and not (tmp_path / name).exists()
    (tmp_path / name).mkdir()  # a folder of that name may be meant
    assert convert(root, tmp_path / name, to).facts["written"]


def test_a_folder_in_place_of_a_page_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="name a new file"):
        write_page(tmp_path, "page")


def test_the_script(tmp_path: Path) -> None:
    script = [
        sys.executable,
        str(SKILL_ROOT / "scripts/convert_dataset.py"),
        "--in",
        str(csv(tmp_path / "c")),
        "--json",
    ]
    command = [*script, "--to", "llava", "--out", "new", "--prompt", "mcq", "--prompt", "mcq"]
    done = run_here(command, cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["data"]["prompts"] == {"mcq": 2}, said
    assert said["data"]["files"] == ["new/annotations.json"]
    looked = run_next(said["next"][0], "--json", cwd=tmp_path)
    assert json.loads(looked.stdout)["data"]["records"] == 4


def test_a_part_of_a_file_is_converted_alone(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("video,question,answer\na.mp4,Is it?,Yes\nb.mp4,Is it?,No\n")
    (tmp_path / "a.mp4").write_bytes(b"x")
    (tmp_path / "b.mp4").write_bytes(b"y")
    convert(f"{tmp_path}/rows.csv#train[1:]", tmp_path / "out.json", "llava")
    assert [record.answer for record in load_records(tmp_path / "out.json")] == ["No"]
    convert(f"{tmp_path}/out.json#[:1]", tmp_path / "again.jsonl", "jsonl")
    with pytest.raises(ProblemError, match="DATA_SPLIT"):
        convert(f"{tmp_path}/out.json#test", tmp_path / "no.json", "llava")


def test_a_csv_of_a_spreadsheet_has_semicolons_or_names_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    path = tmp_path / "q.csv"
    path.write_text("\ufeffvideo;question;answer;note, own\na.mp4;Is it, now, open?;Yes;\n")
    convert(path, tmp_path / "q.json", "llava")
    assert load_records(tmp_path / "q.json")[0].question == "Is it, now, open?"
    for number, separator in enumerate(";,\t"):  # the first line that Excel reads
        rows = (
            f"sep={separator}",
            separator.join(("video", "question", "answer")),
            f"a.mp4{separator}Open?{separator}No",
        )
        path.write_text("\r\n".join(rows), newline="")
        convert(path, tmp_path / f"{number}.json", "llava")
        assert load_records(tmp_path / f"{number}.json")[0].question == "Open?"
    path.write_bytes("video,question,answer\na.mp4,Ist die T\u00fcr offen?,Ja\n".encode("cp1252"))
    with pytest.raises(ProblemError, match=r"(?s)DATA_SYNTAX.*not UTF-8.*CSV UTF-8"):
        convert(path, tmp_path / "r.json", "llava")


def test_a_number_as_answer_is_told_how_it_is_text(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "How many?"}, {"from": "gpt", "value": 5}]
    (tmp_path / "n.json").write_text(json.dumps([{"id": 1, "conversations": turns}]))
    with pytest.raises(ProblemError, match='write it as text: "5"'):
        convert(tmp_path / "n.json", tmp_path / "m.json", "llava")
