"""Answers of people come back from the page, from Label Studio and from FiftyOne."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip

from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.data.record import Provenance
from vidqa.gaps.curation.labels import labelled, task, write_tasks

GAP = {"sample_id": "k", "question": "Is it open?", "ground_truth": "Yes.", "kind": "door"}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    rows = []
    for name in ("a", "b", "</script>"):
        media = str(write_clip(tmp_path / f"{len(rows)}.mp4", frames=4))
        texts = {"sample_id": name, "media": media, "question": None, "kind": None}
        rows.append(task(texts, GAP, Provenance("mined", 2, "k"), {"similarity": 0.9}))
    write_tasks(tmp_path, rows)
    return tmp_path


def given(folder: Path, value: Any) -> Path:
    (folder / "answers.json").write_text(json.dumps(value))
    return folder / "answers.json"


def studio(name: str, answer: str) -> dict[str, Any]:
    result = {"from_name": "answer", "to_name": "video", "type": "textarea", "value": {"text": [answer]}}
    return {"id": 7, "data": {"sample_id": name, "question": "Is it open?"}, "annotations": [{"result": [result]}]}


@pytest.mark.parametrize(
    "answers",
    [
        [{"id": "a", "question": "Is the gate open?", "answer": "yes"}, {"id": "b", "question": "", "answer": " "}],
        [studio("a", "yes"), {"data": {"sample_id": "b"}, "annotations": []}],
        [{"id": 7, "sample_id": "a", "media": "/0.mp4", "answer": "yes", "annotator": 1, "annotation_id": 3}],
        {"samples": [{"filepath": "0.mp4", "sample_id": "a", "answer": {"_cls": "Classification", "label": "yes"}}]},
    ],
    ids=["page", "label studio", "label studio min", "fiftyone"],
)
def test_answers_come_back_as_annotations(tasks: Path, answers: Any) -> None:
    rows, left = labelled(tasks / "tasks.json", given(tasks, answers))
    (tasks / "labelled.json").write_text(json.dumps(rows))
    (record,) = load_records(tasks / "labelled.json")
    assert (record.id, record.answer, record.kind, left) == ("a", "Yes.", "door", 2)  # as the set writes it
    assert record.question in ("Is the gate open?", "Is it open?")
    assert record.provenance == Provenance("mined", 2, "k") and record.media[0].path == str(tasks / "0.mp4")


def test_the_number_zero_is_an_answer(tasks: Path) -> None:
    ((row,), _) = labelled(tasks / "tasks.json", given(tasks, [{"id": "a", "answer": 0}]))
    assert row["conversations"][1]["value"] == "0"


def test_what_was_exported_can_be_imported(tasks: Path) -> None:
    samples = json.loads((tasks / "fiftyone/samples.json").read_text())
    samples["samples"][1]["answer"] = "no"
    rows, left = labelled(tasks / "tasks.json", given(tasks, samples))
    assert [(row["id"], left) for row in rows] == [("b", 2)]
    exported = json.loads((tasks / "label_studio.json").read_text())
    assert [each["data"]["sample_id"] for each in exported] == ["a", "b", "</script>"]
    for name in ("question", "answer"):
        assert f'name="{name}"' in (tasks / "label_studio.xml").read_text()


def test_fiftyones_importer_is_told_every_field_and_waits_for_no_frame_labels(tasks: Path) -> None:
    metadata = json.loads((tasks / "fiftyone/metadata.json").read_text())
    samples = json.loads((tasks / "fiftyone/samples.json").read_text())["samples"]
    assert all(set(sample) == set(metadata["sample_fields"]) for sample in samples)
    # LegacyFiftyOneDatasetImporter pops "frames" from each sample of a data set whose media type is video.
    assert metadata.get("media_type") != "video" or all("frames" in sample for sample in samples)


def test_the_page_shows_every_clip_and_loads_nothing(tasks: Path) -> None:
    page = (tasks / "annotate.html").read_text()
    assert page.count("data:image/jpeg") == 3 * 4 and page.count("<article") == 3
    assert page.count("</script>") == 1 and 'data-id="&lt;/script&gt;"' in page
    assert re.findall(r'(?:src|href)="(?!data:)', page) == [] and "script-src 'sha256-" in page
    texts = {"sample_id": "c", "media": "/no/c.mp4", "question": "\nWhich?\nA. red\nB. blue", "kind": None}
    write_tasks(tasks, [task(texts, GAP, Provenance("mined", 2, "k"), {})])
    page = (tasks / "annotate.html").read_text()
    assert 'rows="3">\nWhich?\nA. red\nB. blue</textarea>' in page, "a question keeps its lines"
    assert "No frames: /no/c.mp4 cannot be opened" in page


@pytest.mark.parametrize(
    ("ground_truth", "choices"),
    [
        ("Yes", ["Yes", "No"]),
        ("no", ["yes", "no"]),
        ("NO.", ["YES.", "NO."]),
        ("False", ["True", "False"]),
        ("Yes, it is.", ["Yes", "No"]),
        ("The gate opens.", []),
    ],
)
def test_choices_and_labels_are_spelled_as_in_the_set(tmp_path: Path, ground_truth: str, choices: list[str]) -> None:
    texts = {"sample_id": "a", "media": "a.mp4", "question": "Is it open?", "kind": None}
    asked = task(texts, {**GAP, "ground_truth": ground_truth}, Provenance("mined", 1, "k"), {})
    assert asked["choices"] == choices
    (tmp_path / "tasks.json").write_text(json.dumps([asked]))
    for answer in ("yes", "YES.", "Not at all", *choices):
        (row,), _ = labelled(tmp_path / "tasks.json", given(tmp_path, [{"id": "a", "answer": answer}]))
        same = [choice for choice in choices if choice.strip(".").lower() == answer.strip(".").lower()]
        assert row["conversations"][1]["value"] == (same[0] if same else answer)


@pytest.mark.parametrize(
    "answers",
    [
        *({"no": 1}, [{"what": 1}], [3], [{"id": "unknown", "answer": "yes"}], [{"id": ["a"], "answer": "yes"}]),
        [{"filepath": "a.mp4", "sample_id": "a", "question": 3, "answer": "yes"}],
        [{"id": "a", "answer": True}],
        [{"id": "a", "answer": "yes"}, {"id": "a", "answer": "no"}],
    ],
)
def test_other_files_are_refused(tasks: Path, answers: Any) -> None:
    with pytest.raises(ProblemError, match="CURATION_INPUT"):
        labelled(tasks / "tasks.json", given(tasks, answers))


@pytest.mark.parametrize("other", [{"no": 1}, [3], [{"id": "a", "question": "Is it open?"}]])
def test_other_tasks_are_refused(tasks: Path, other: Any) -> None:
    (tasks / "other.json").write_text(json.dumps(other))
    with pytest.raises(ProblemError, match="CURATION_INPUT"):
        labelled(tasks / "other.json", given(tasks, [{"id": "a", "answer": "yes"}]))


@pytest.mark.parametrize("wrong", [{"curation": "x"}, {"medium": ["video"]}, {"choices": [3]}, {"question": None}])
def test_a_task_with_a_value_of_a_wrong_type_is_refused(tasks: Path, wrong: dict[str, Any]) -> None:
    rows = json.loads((tasks / "tasks.json").read_text())
    (tasks / "tasks.json").write_text(json.dumps([{**rows[0], **wrong}]))
    with pytest.raises(ProblemError, match=f"(?s)CURATION_INPUT.*{next(iter(wrong))}"):
        labelled(tasks / "tasks.json", given(tasks, [{"id": "a", "answer": "yes"}]))
