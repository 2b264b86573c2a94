"""The results of an evaluation by any program: one judged item per sample.

Formats are results.json, ours and TAO's, and cosmos-reason1's folders of answers: a file per video,
<results>/<model>/<answer type>/<dataset>/<video>.json, a list of objects with video_id, prompt, correct_answer and
full_response. A recipe records how a score was made.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vidqa.core.files import absolute, read_object
from vidqa.core.problem import Problem, ProblemError, raise_errors
from vidqa.data.problems import EMPTY, OUTPUT_EXISTS, ProblemCollector
from vidqa.data.reader import BOM, Fault, json_rows
from vidqa.data.record import Record
from vidqa.evaluation.answers import DIRECTION_TASK, RULES, STATUSES, Parsed, parse_pair
from vidqa.evaluation.problems import RESULTS_FOLDER, RESULTS_FORMAT, RESULTS_TWICE
from vidqa.evaluation.text import as_text

Item = dict[str, Any]
# In the order of the file. `correct` is None without ground truth. The first four are the original contract.
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
# Keys that may differ between comparable scores: the model, and place and time of the run.
FREE = frozenset(
    ("model", "created", "run_id", "run_dir", "results_dir", "num_gpus", "batch_size", "host", "duration_s", "versions")
)
# Fields that are read; the others are judged.
_READ = (*FIELDS[:4], "sample_id", "kind", "answer_kind", "finish_reason")
# The fields of cosmos-reason1's answers.
_COSMOS_REASON1 = {"prompt": "question", "correct_answer": "gt", "full_response": "response", "datasource": "kind"}
WRAPPERS = ("results", "annotations", "data")
CUT = "resume the evaluation; the truncated last line was ignored"
FILE = "results.json"
LISTED = 10  # names in a message
_SHARD = re.compile(r"(?:shard|rank|part)[_-]?\d+", re.IGNORECASE)
OWN = {"benchmark.json", "metrics.json", "metrics.jsonl", "recipe.json", "run.json", "status.json", "problems.json"}


def make_item(record: Record, response: str | None, finish_reason: str = "stop", task_type: str = "") -> Item:
    """Judge one response. `video_id` is the record's first medium (path, or archive!member), `sample_id` its id."""
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
    """A response and its ground truth, parsed as the ground truth's kind; `correct` is None without ground truth."""

    parsed: Parsed
    expected: Parsed
    correct: bool | None


def judge(response: object, gt: object, question: str, finish_reason: str, task_type: str = "") -> Judgement:
    """Judge whether a response is right: the same rule for evaluations, comparisons and gap tables."""
    parsed, expected = parse_pair(response, gt, question, finish_reason, task_type)
    if expected.status == "empty":
        return Judgement(parsed, expected, None)
    return Judgement(parsed, expected, parsed.status == "parsed" and parsed.answer == expected.answer)


def judged(item: Item, task_type: str = "") -> Item:
    """The item with every field of FIELDS, judged by the present rules. Existing verdicts are replaced, but an answer
    that was judged as a direction stays one."""
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


def groups(items: Sequence[Item], name: str) -> list[tuple[str, list[Item]]]:
    """Group the items by one of their fields, in the order of its values."""
    items_of: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        items_of[item[name]].append(item)
    return sorted(items_of.items())


# --- files -----------------------------------------------------------------------------------------------------------


def read_results(path: str | Path) -> list[Item]:
    """Read and judge all results of a results.json of any program. Raises ProblemError with all errors of the file."""
    items, problems = check_results(path)
    raise_errors(problems)
    return items


def check_results(path: str | Path) -> tuple[list[Item], list[Problem]]:
    """The readable results of a file (a list, {"results": [...]}, JSON lines), and the problems of the others.

    Results beside a metrics.json of the present rules keep their verdicts; all others, of other programs or earlier
    rules, are judged here.
    """
    where, problems = str(path), ProblemCollector(str(path))
    is_own = read_object(Path(path).with_name("metrics.json")).get("answer_rules") == RULES
    items: list[Item] = []
    for index, value in json_items(_content(Path(path)), where, problems):
        if (item := usable(value, where, index, problems)) is not None:
            items.append({name: item[name] for name in FIELDS} if is_own and is_scored(item) else judged(item))
    return items, problems.problems


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as unreadable:
        raise RESULTS_FOLDER.error(path, f"cannot be opened: {unreadable.strerror or unreadable}") from unreadable


def json_items(data: bytes, where: str, problems: ProblemCollector) -> Iterator[tuple[int, Any]]:
    """Index and value of each element of a list, of `{"results": [...]}`, or of each line of JSON lines.

    Elements that cannot be read go to `problems` (RESULTS_FORMAT; a truncated last line is only a warning).
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
    """The element with text in every present field of FIELDS (a response may be None), or None if it cannot be used;
    its problems go to `problems`."""
    is_complete = isinstance(value, dict) and value.keys() >= {*FIELDS[:4]} and value["video_id"]
    if is_complete and all(type(value.get(name, "")) is str for name in _READ):  # nearly every element
        return value
    where = f"{file}[{index}]"
    if not isinstance(value, dict):
        problems.add(RESULTS_FORMAT, where, f"expected an object, got {shown(value)}")
        return None
    if "full_response" in value or "correct_answer" in value:
        value = {_COSMOS_REASON1.get(name, name): part for name, part in value.items()}
    if all(value.get(name) in (None, "") for name in ("sample_id", "video_id")):
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
    text = {name: as_text(value.get(name)) for name in _READ}
    return text if value.get("response") is not None else {**text, "response": None}


def shown(value: object) -> str:
    """A value of a wrong type, shortened for a message."""
    text = repr(value)
    return f"{type(value).__name__} {text[:40]}{'…' if len(text) > 40 else ''}"


# --- folders ----------------------------------------------------------------------------------------------------------


def read_evaluation(place: Path) -> tuple[list[Item], list[Problem]]:
    """The judged results of a folder or file, and warnings. The results.json of a folder is in it, or below it as
    `one_evaluation` selects. Raises RESULTS_FOLDER, and every error of the files."""
    if paths := results_files(place):
        read = [check_results(path) for path in paths]
        items, problems = [item for part, _ in read for item in part], [problem for _, part in read for problem in part]
    elif (place / "run.json").is_file():
        raise RESULTS_FOLDER.error(place, "this run has no results.json: it is not an evaluation, or not finished")
    elif place.is_dir() and (files := list(_files_of_videos(place))):
        items, problems = _read_video_files(place, files)
    else:
        raise RESULTS_FOLDER.error(absolute(place), "there is no such file, and no folder of answers by video")
    if any(problem.severity == "error" for problem in problems):
        raise ProblemError(problems)
    if items and not any(item["response"] or item["gt"] for item in items):
        message = f"none of its {len(items):,} elements has a response or a gt: these are not results"
        raise RESULTS_FORMAT.error(place, message, "give the folder that an evaluation wrote")
    if again := len(items) - len(set(map(question_of, items))):
        message = f"{again:,} of {len(items):,} answers are to questions with earlier answers; all count"
        problems.append(RESULTS_TWICE.at(place, message, severity="warning"))
    return items, problems


def question_of(item: Item) -> tuple[str, str, str]:
    """The identity of a question; a results file of another program may have no ids."""
    return item["sample_id"], "" if item["sample_id"] else item["video_id"], item["question"]


def results_files(place: Path) -> list[Path]:
    """The file itself, or the results.json files of a folder, possibly none. Raises RESULTS_FOLDER, and RESULTS_FORMAT
    for another file of an evaluation, such as its report."""
    if place.is_file():
        is_results = place.name == FILE or (place.suffix in (".json", ".jsonl") and place.name not in OWN)
        if not is_results and (place.parent / FILE).is_file():
            message = f"{place.name} is not the results of the evaluation in {place.parent}"
            raise RESULTS_FORMAT.error(place, message, f"give the run folder: {place.parent}")
        return [place]
    return list(map(Path, one_evaluation(str(place), sorted(map(str, place.rglob(FILE))))))


def one_evaluation(place: str, paths: list[str]) -> list[str]:
    """Select the results files of the evaluation in `place`: the one directly in it, the only one, or all if each is in
    a separate folder named shard_0, rank-1, part2, ... under one parent. Raises RESULTS_FOLDER, which lists them."""
    direct = [path for path in paths if path == place or (path.rpartition("/")[0] or ".") == place.rstrip("/")]
    if direct or len(paths) < 2:
        return direct or paths
    folders = [f"./{path}".rsplit("/", 2)[-3:-1] for path in paths]
    is_sharded = len({parent for parent, _ in folders}) == 1 and all(_SHARD.fullmatch(folder) for _, folder in folders)
    if not is_sharded:
        raise RESULTS_FOLDER.error(place, f"{len(paths)} results files: {_listed(set(paths))}")
    return paths


def read_dataset(place: Path, dataset: str) -> tuple[list[Item], list[Problem]]:
    """The judged results of one data set: a folder of its name at any depth, or the items of that kind in a results
    file. Raises RESULTS_FOLDER, also if folders of several models contain one, and the errors of the files."""
    if not place.is_dir() or results_files(place):
        items, problems = read_evaluation(place)
        if not (chosen := [item for item in items if item["kind"] == dataset]):
            there = _listed({item["kind"] for item in items if item["kind"]})
            raise RESULTS_FOLDER.error(place, f"no result in it is of the kind {dataset!r}; its kinds: {there}")
        return chosen, problems
    folders = sorted(folder for folder in (place, *place.rglob("*")) if folder.name == dataset and folder.is_dir())
    if not folders:
        there = _listed({path.parent.name for path in _files_of_videos(place)})
        raise RESULTS_FOLDER.error(place, f"there is no folder {dataset} in it; folders of answers: {there}")
    if len(folders) > 1:
        names = _listed(set(map(str, folders)))
        raise RESULTS_FOLDER.error(place, f"{len(folders)} folders have the name {dataset}: {names}")
    return read_evaluation(folders[0])


def _listed(names: set[str]) -> str:
    """At most LISTED names, sorted."""
    left = len(names) - LISTED
    return ", ".join(sorted(names)[:LISTED]) + (f" and {left} more" if left > 0 else "") or "none"


def _files_of_videos(place: Path) -> Iterator[Path]:
    return (path for path in sorted(place.rglob("*.json")) if path.name not in OWN and path.is_file())


def _read_video_files(place: Path, files: list[Path]) -> tuple[list[Item], list[Problem]]:
    """Read a folder with one file per video. A second run appends to the files of the first: the last answer counts."""
    problems, item_of = ProblemCollector(str(place)), dict[tuple[str, ...], Item]()
    for path in files:
        name, first_index = path.relative_to(place).with_suffix("").as_posix(), dict[tuple[str, str, str], int]()
        for index, value in json_items(_content(path), str(path), problems):
            named = {"video_id": name, **value} if isinstance(value, dict) else value  # a file is about one video
            if (item := usable(named, str(path), index, problems)) is None:
                continue
            sample = item.get("sample_id", ""), item["video_id"], item["question"] or str(index)
            if (first := first_index.setdefault(sample, index)) != index:
                message = f"the question of answer {first} is answered again; the last answer counts"
                problems.add(RESULTS_TWICE, f"{path}[{index}]", message, severity="warning")
            sample_id = f"{name}[{item.get('sample_id') or first}]"
            item_of[name, *sample] = judged({**item, "sample_id": sample_id})
    return list(item_of.values()), problems.problems


def require_empty(out: Path) -> None:
    """Make a folder for scored results. Raises OUTPUT_EXISTS if it is not empty or cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in out.iterdir())
    except OSError as refused:
        raise OUTPUT_EXISTS.error(out, f"it cannot be made: {refused.strerror or refused}") from refused
    if names:
        raise OUTPUT_EXISTS.error(out, f"it holds {', '.join(names[:3])}")


# --- recipes ----------------------------------------------------------------------------------------------------------


def compare_recipes(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Differences that make two scores incomparable, as "key: first -> second"; empty if they are comparable.

    Everything in a recipe counts (frame plan, prompt, generation settings, data, answer rules) except the top-level
    keys in FREE.
    """
    ours, theirs = dotted(a), dotted(b)
    return [
        f"{key}: {_shown(ours, key)} -> {_shown(theirs, key)}"
        for key in sorted(ours.keys() | theirs.keys())
        if key.split(".", 1)[0] not in FREE and ours.get(key, ...) != theirs.get(key, ...)
    ]


def dotted(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables into values by dotted path; an empty table is a value, and tuples become lists."""
    leaves: dict[str, Any] = {}
    for key, inner in tables.items():
        if isinstance(inner, dict) and inner:
            leaves |= dotted(inner, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = list(inner) if isinstance(inner, tuple) else inner
    return leaves


def _shown(leaves: dict[str, Any], key: str) -> str:
    return repr(leaves[key]) if key in leaves else "(absent)"
