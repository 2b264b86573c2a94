"""Annotation tasks for clips without an answer, in a page of our own, in Label Studio or in FiftyOne, and the import of
the answers.

write_tasks(folder, tasks)                 tasks.json, annotate.html, label_studio.json + .xml, fiftyone/
labelled(folder / "tasks.json", answers)   annotations of answered tasks
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from vidqa.core.files import parse_json, write_json, write_text
from vidqa.core.pages.page import page
from vidqa.data.record import Provenance
from vidqa.data.sources.files import kind_of
from vidqa.datatools.outputs import write_page
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.thumbnails import card_frames
from vidqa.gaps.curation.rows import Row
from vidqa.gaps.problems import INPUT

TASKS, PAGE, STUDIO, STUDIO_LAYOUT = "tasks.json", "annotate.html", "label_studio.json", "label_studio.xml"
FIFTYONE, FIFTYONE_SAMPLES = "fiftyone/metadata.json", "fiftyone/samples.json"
FILES = (TASKS, PAGE, STUDIO, STUDIO_LAYOUT, FIFTYONE, FIFTYONE_SAMPLES)
YES_NO = re.compile(r"(yes|no|true|false)\b(\.?)", re.IGNORECASE)
FRAMES, SHOWN = 6, 200  # frames of one clip; clips on the page, the others are in tasks.json
MOST_BYTES = 1 << 30
_TEXT = "fiftyone.core.fields.StringField"
# Fields are declared because FiftyOne infers none from empty values, as in "answer". "media_type" is left out: with
# "video", its importer requires a file of frame labels for every sample; without it, the file suffixes decide.
FIFTYONE_FIELDS = {
    "name": "to label",
    "sample_fields": {
        "filepath": _TEXT,
        "tags": f"fiftyone.core.fields.ListField({_TEXT})",
        **{name: _TEXT for name in ("sample_id", "question", "kind", "answer")},
    },
}
LAYOUT = """<View>
  <Video name="video" value="$media"/>
  <TextArea name="question" toName="video" value="$question" rows="1" maxSubmissions="1" placeholder="question"/>
  <TextArea name="answer" toName="video" rows="1" maxSubmissions="1" placeholder="answer"/>
</View>
"""


class Task(msgspec.Struct):
    """An annotation task for a clip, as in tasks.json."""

    id: str
    media: str
    medium: Literal["video", "image"]
    question: str
    kind: str | None
    provenance: dict[str, Any]
    curation: dict[str, Any]
    choices: list[str] = []  # the two answers of a yes/no question


def task(texts: Mapping[str, Any], gap: Mapping[str, Any], provenance: Provenance, details: Mapping[str, Any]) -> Row:
    """An annotation task for a clip. A clip without a question gets that of the gap for which it was mined."""
    question = texts["question"] or gap["question"]
    expected = parse_expected(gap["ground_truth"], gap["question"])
    return {
        "id": texts["sample_id"],
        "media": texts["media"],
        "medium": kind_of(texts["media"]) or "video",
        "question": question,
        "choices": choices_like(gap["ground_truth"]) if expected.kind == "yes_no" else [],
        "kind": texts["kind"] or gap["kind"],
        "provenance": provenance.as_field(),
        "curation": dict(details),
    }


def choices_like(ground_truth: str) -> list[str]:
    """The two answers of a yes/no question in the spelling of the set: "No." gives ["Yes.", "No."]."""
    match = YES_NO.match(ground_truth.strip())
    word, point = (match[1], match[2] if match[0] == ground_truth.strip() else "") if match else ("", "")
    pair = ("true", "false") if word.lower() in ("true", "false") else ("yes", "no")
    spelling = str.upper if word.isupper() else str.capitalize if word[:1].isupper() else str.lower
    return [spelling(answer) + point for answer in pair]


def write_tasks(folder: Path, tasks: Sequence[Row]) -> None:
    """Write the tasks in all formats."""
    write_json(folder / TASKS, list(tasks))
    shown = [{**row, **card_frames(row["media"], FRAMES)} for row in tasks[:SHOWN]]
    write_page(
        folder / PAGE,
        page("gaps/curation/annotate.html.j2", title="Label mined clips", tasks=shown, more=len(tasks) - len(shown)),
    )
    # Label Studio's JSON-MIN has its own numbers under "id", and adds the data fields beside them.
    named = [{"sample_id": row["id"], "question": row["question"]} for row in tasks]
    studio = [{"data": {**names, "media": row["media"]}} for row, names in zip(tasks, named, strict=True)]
    write_json(folder / STUDIO, studio)
    write_text(folder / STUDIO_LAYOUT, LAYOUT)
    samples = [
        {"filepath": row["media"], "tags": ["to label"], **names, "kind": row["kind"], "answer": None}
        for row, names in zip(tasks, named, strict=True)
    ]
    write_json(folder / FIFTYONE, FIFTYONE_FIELDS)
    write_json(folder / FIFTYONE_SAMPLES, {"samples": samples})


def labelled(tasks: Path, answers: Path) -> tuple[list[Row], int]:
    """Annotations of answered tasks, and the number of unanswered ones. Raises CURATION_INPUT."""
    task_of = read_tasks(tasks)
    replies = _answers(read_saved(answers), answers)
    if unknown := [name for name, _, _ in replies if name not in task_of]:
        raise INPUT.error(answers, f"{len(unknown)} answers belong to no task, such as {unknown[0]!r}")
    answer_of: dict[str, str] = {}
    for name, _, answer in replies:
        if answer_of.setdefault(name, answer) != answer:
            message = f"{name!r} is answered twice: {answer_of[name][:40]!r} and {answer[:40]!r}"
            raise INPUT.error(answers, message, "keep the right one")
    rows = {name: _annotation(task_of[name], question, answer) for name, question, answer in replies}
    return list(rows.values()), len(task_of) - len(rows)


def read_tasks(path: Path) -> dict[str, Task]:
    """The tasks of a mining, by id. Raises CURATION_INPUT."""
    try:
        return {task.id: task for task in msgspec.convert(read_saved(path), list[Task])}
    except msgspec.ValidationError as wrong:
        raise INPUT.error(path, f"it is not a list of tasks: {wrong}") from wrong


def _annotation(task: Task, question: str, answer: str) -> Row:
    turns = [
        {"from": "human", "value": f"<{task.medium}>\n{question or task.question}"},
        {"from": "gpt", "value": _spelled(answer, task.choices)},
    ]
    kind = {"kind": task.kind} if task.kind else {}
    details = {"provenance": task.provenance, "curation": {**task.curation, "labelled": "by a person"}}
    return {"id": task.id, task.medium: task.media, **kind, "conversations": turns, **details}


def _spelled(answer: str, choices: Sequence[str]) -> str:
    """The choice equal to the answer ignoring case and a final period; else the answer."""
    spellings = {choice.casefold().rstrip("."): choice for choice in reversed(choices)}
    return spellings.get(answer.casefold().rstrip("."), answer)


def read_saved(path: Path) -> Any:
    """The JSON of a file that a person has saved. Raises CURATION_INPUT."""
    try:
        return parse_json(path, MOST_BYTES)
    except (OSError, ValueError) as broken:
        raise INPUT.error(path, f"it cannot be read: {broken}") from broken


def _answers(value: Any, path: Path) -> list[tuple[str, str, str]]:
    """Id, question (or "") and answer of each answered task; the file's format is detected."""
    items = value.get("samples") if isinstance(value, dict) else value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise INPUT.error(path, "it contains no list of answers")
    answers = []
    for at, item in enumerate(items):
        try:
            name, question, answer = _answer(item)
            question, answer = question.strip(), answer.strip()
        except (KeyError, TypeError, IndexError, AttributeError) as unlike:
            message = f"[{at}] is an answer of an unknown kind: {type(unlike).__name__} {unlike}"
            raise INPUT.error(path, message) from unlike
        if answer:
            answers.append((str(name), question, answer))
    return answers


def _answer(item: Mapping[str, Any]) -> tuple[str, str, str]:
    """Read one item of annotate.html, of Label Studio's JSON or JSON-MIN, or of FiftyOne's samples."""
    if "data" in item:  # Label Studio
        written = {
            result["from_name"]: " ".join(result["value"]["text"])
            for annotation in item.get("annotations", [])
            for result in annotation["result"]
            if result.get("type") == "textarea"
        }
        return item["data"]["sample_id"], written.get("question", ""), written.get("answer", "")
    if "filepath" in item:  # FiftyOne
        answer = item.get("answer") or ""
        return item["sample_id"], item.get("question") or "", answer["label"] if isinstance(answer, dict) else answer
    return item.get("sample_id") or item["id"], _text(item.get("question")), _text(item.get("answer"))


def _text(value: Any) -> str:
    """Convert to text: Label Studio's JSON-MIN has one text or a list of several; a program may write a number. Raises
    TypeError for true and false, which a set may spell in many ways."""
    if isinstance(value, bool):
        raise TypeError(f"{value}, not a text")
    return " ".join(value) if isinstance(value, list) else "" if value is None else str(value)
