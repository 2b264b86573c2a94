"""results.json: one item per evaluated sample. Written by the evaluation, read by reports and gap analysis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vidqa.core.files import read_object
from vidqa.core.problem import Problem, raise_errors
from vidqa.data.problem_collector import ProblemCollector
from vidqa.data.problems import EMPTY
from vidqa.data.reader import BOM, Fault, json_rows
from vidqa.data.record import Record
from vidqa.evaluation.answers import DIRECTION_TASK, RULES, STATUSES, Parsed, parse_pair
from vidqa.evaluation.problems import RESULTS_FOLDER, RESULTS_FORMAT
from vidqa.evaluation.text import as_text

Item = dict[str, Any]
# In the order of the file. `correct` is None where there is no ground truth. The first four are the original contract.
FIELDS = (
    "video_id",
    "response",
    "question",
    "gt",
    "sample_id",
    "kind",
    "answer_kind",
    "parsed_response",
    "parsed_gt",
    "correct",
    "parse_status",
    "finish_reason",
)
# What may differ between two scores that are compared: which model it was, and where and when it ran.
FREE = frozenset(
    ("model", "created", "run_id", "run_dir", "results_dir", "num_gpus", "batch_size", "host", "duration_s", "versions")
)
_ORIGINAL = FIELDS[:4]
_MORE = ("sample_id", "kind", "answer_kind", "finish_reason")
# The fields of cosmos-reason1's answers.
_COSMOS_REASON1 = {"prompt": "question", "correct_answer": "gt", "full_response": "response", "datasource": "kind"}
WRAPPERS = ("results", "annotations", "data")
CUT = "resume the evaluation; the last line, cut short by a kill, was left out"


def make_item(record: Record, response: str | None, finish_reason: str = "stop", task_type: str = "") -> Item:
    """One judged result. `video_id` is the record's first medium (path, or archive!member), `sample_id` its id."""
    item = {
        "video_id": record.media[0].key if record.media else "",
        "response": response,
        "question": record.question,
        "gt": record.answer,
        "sample_id": record.id,
        "kind": record.kind,
        "finish_reason": finish_reason,
    }
    return judged(item, task_type)


class Judgement(NamedTuple):
    """A response and its ground truth as read by the ground truth's kind; `correct` is None without ground truth."""

    parsed: Parsed
    expected: Parsed
    correct: bool | None


def judge(response: object, gt: object, question: str, finish_reason: str, task_type: str = "") -> Judgement:
    """Whether a response is right: the one rule of evaluations, comparisons and gap tables."""
    parsed, expected = parse_pair(response, gt, question, finish_reason, task_type)
    if expected.status == "empty":
        return Judgement(parsed, expected, None)
    return Judgement(parsed, expected, parsed.status == "parsed" and parsed.answer == expected.answer)


def judged(item: Item, task_type: str = "") -> Item:
    """The item with every field of FIELDS, judged by the present rules; what the item already judged is replaced, but
    an answer that was judged as a direction stays one."""
    question, gt = as_text(item.get("question")), as_text(item.get("gt"))
    reason = as_text(item.get("finish_reason")) or "stop"
    task_type = task_type or (DIRECTION_TASK if item.get("answer_kind") == "direction" else "")
    parsed, expected, correct = judge(item.get("response"), gt, question, reason, task_type)
    return {
        "video_id": as_text(item.get("video_id")),
        "response": None if item.get("response") is None else as_text(item["response"]),
        "question": question,
        "gt": gt,
        "sample_id": as_text(item.get("sample_id")),
        "kind": as_text(item.get("kind")) or parsed.kind,
        "answer_kind": parsed.kind,
        "parsed_response": parsed.answer,
        "parsed_gt": expected.answer,
        "correct": correct,
        "parse_status": parsed.status,
        "finish_reason": reason,
    }


def is_scored(item: Item) -> bool:
    """Whether an item has every field of FIELDS as `judged` writes it."""
    return (
        all(isinstance(item.get(name), str) for name in FIELDS if name not in ("response", "correct"))
        and item["parse_status"] in STATUSES
        and (item.get("correct") is None or isinstance(item["correct"], bool))
    )


def read_results(path: str | Path) -> list[Item]:
    """Every result of a results.json, whoever wrote it, judged. Raises ProblemError with all errors of the file."""
    items, problems = check_results(path)
    raise_errors(problems)
    return items


def check_results(path: str | Path) -> tuple[list[Item], list[Problem]]:
    """The readable results of a file (a list, {"results": [...]}, JSON lines) and what is wrong with the others.

    Results are judged once: those beside a metrics.json of the present rules keep their verdicts; all others, of other
    programs or earlier rules, are judged here.
    """
    where, problems = str(path), ProblemCollector(str(path))
    is_own = read_object(Path(path).with_name("metrics.json")).get("answer_rules") == RULES
    items: list[Item] = []
    try:
        data = Path(path).read_bytes()
    except OSError as wrong:
        raise RESULTS_FOLDER.error(where, f"cannot be opened: {wrong.strerror or wrong}") from wrong
    for index, value in json_items(data, where, problems):
        if (item := usable(value, where, index, problems)) is not None:
            items.append({name: item[name] for name in FIELDS} if is_own and is_scored(item) else judged(item))
    return items, problems.problems


def json_items(data: bytes, where: str, problems: ProblemCollector) -> Iterator[tuple[int, Any]]:
    """(index, value) of each element of a list, of `{"results": [...]}`, or of each line of JSON lines.

    What cannot be read goes to `problems` (RESULTS_FORMAT; a cut last line is only a warning).
    """
    for row in json_rows(data, wrappers=WRAPPERS):
        if not isinstance(row, Fault):
            yield row
        elif row.code is not EMPTY or not data.removeprefix(BOM).strip():  # a list may be empty
            place = row.place if row.element is None else f"[{row.element}]"
            is_cut_line = row.is_truncated and row.element is None
            remedy, severity = (CUT, "warning") if is_cut_line else (None, "error")
            problems.add(RESULTS_FORMAT, f"{where}{place}", row.message, remedy, severity=severity)


def usable(value: Any, file: str, index: int, problems: ProblemCollector) -> Item | None:
    """The element with text in every field of FIELDS that is there (a response may be None), or None if it cannot be
    used; what is wrong with it goes to `problems`."""
    if isinstance(value, dict) and _is_plain(value):
        return value
    where = f"{file}[{index}]"
    if not isinstance(value, dict):
        problems.add(RESULTS_FORMAT, where, f"expected an object, got {shown(value)}")
        return None
    if "full_response" in value or "correct_answer" in value:
        value = {_COSMOS_REASON1.get(name, name): part for name, part in value.items()}
    if not (_has(value, "sample_id") or _has(value, "video_id")):
        problems.add(RESULTS_FORMAT, where, "neither sample_id nor video_id: the sample cannot be named")
        return None
    for name in ("question", "response", "gt"):
        if name not in value:
            message = f"no {name!r} among {', '.join(map(repr, list(value)[:8]))}; read as empty"
            problems.add(RESULTS_FORMAT, where, message, severity="warning")
    wrong = [name for name in ("video_id", "sample_id", "question", "gt") if isinstance(value.get(name), list | dict)]
    for name in wrong:
        problems.add(RESULTS_FORMAT, f"{where}.{name}", f"expected a string, got {shown(value[name])}")
    if wrong:
        return None
    text = {name: as_text(value.get(name)) for name in (*_ORIGINAL, *_MORE)}
    return text if value.get("response") is not None else {**text, "response": None}


def _is_plain(value: Item) -> bool:
    """Whether nothing needs converting: true of nearly every element, and told in as little time as possible."""
    get = value.get
    return (
        type(get("video_id")) is type(get("question")) is type(get("gt")) is type(get("response")) is str
        and type(get("sample_id", "")) is type(get("kind", "")) is str
        and type(get("answer_kind", "")) is type(get("finish_reason", "")) is str
        and value["video_id"] != ""
    )


def _has(value: Item, name: str) -> bool:
    return value.get(name) is not None and value[name] != ""


def shown(value: object) -> str:
    """A value of a wrong type, short enough for a message."""
    text = repr(value)
    return f"{type(value).__name__} {text[:40]}{'…' if len(text) > 40 else ''}"


def compare_recipes(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Differences that make two scores incomparable, as "key: first -> second"; empty when they compare.

    Everything in a recipe counts (frame plan, prompt, generation settings, data, answer rules) except the top-level
    keys in FREE.
    """
    ours, theirs = _leaves(a), _leaves(b)
    return [
        f"{key}: {_shown(ours, key)} -> {_shown(theirs, key)}"
        for key in sorted(ours.keys() | theirs.keys())
        if key.split(".", 1)[0] not in FREE and ours.get(key, ...) != theirs.get(key, ...)
    ]


def _leaves(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            leaves |= _leaves(inner, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = list(inner) if isinstance(inner, tuple) else inner
    return leaves


def _shown(leaves: dict[str, Any], key: str) -> str:
    return repr(leaves[key]) if key in leaves else "(absent)"
