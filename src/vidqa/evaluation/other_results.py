"""The results of an evaluation, whoever made it: ours and TAO's results.json, or cosmos-reason1's folders of answers.

cosmos-reason1 writes a file for each video, <results>/<model>/<answer type>/<dataset>/<video>.json, a list of objects
with video_id, prompt, correct_answer and full_response.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidqa.core.pages.page import percent
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.problem_collector import ProblemCollector
from vidqa.data.problems import OUTPUT_EXISTS
from vidqa.evaluation.problems import RESULTS_FOLDER, RESULTS_FORMAT, RESULTS_TWICE
from vidqa.evaluation.results import Item, check_results, json_items, judged, usable

FILE = "results.json"
SHOWN = 40  # kinds on the terminal
LISTED = 10  # names in a message
_SHARD = re.compile(r"(?:shard|rank|part)[_-]?\d+", re.IGNORECASE)
OWN = {"benchmark.json", "metrics.json", "metrics.jsonl", "recipe.json", "run.json", "status.json", "problems.json"}


def read_evaluation(place: Path) -> tuple[list[Item], list[Problem]]:
    """The judged results of a folder or file, and warnings. The results.json of a folder lies in it, or below it, as
    those of `one_evaluation`. Raises RESULTS_FOLDER, and every error of the files."""
    if paths := results_files(place):
        read = [check_results(path) for path in paths]
        items, problems = [item for part, _ in read for item in part], [problem for _, part in read for problem in part]
    elif place.is_dir() and (files := list(_files_of_videos(place))):
        items, problems = _of_videos(place, files)
    else:
        raise RESULTS_FOLDER.error(place, "there is no such file, and no folder of answers by video")
    if any(problem.severity == "error" for problem in problems):
        raise ProblemError(problems)
    if items and not any(item["response"] or item["gt"] for item in items):
        message = f"none of its {len(items):,} elements has a response or a gt: these are no results"
        raise RESULTS_FORMAT.error(place, message, "give the folder that an evaluation wrote")
    return items, problems


def results_files(place: Path) -> list[Path]:
    """The file itself, or the results.json of a folder; none where the folder has none. Raises RESULTS_FOLDER, and
    RESULTS_FORMAT for another file of an evaluation, such as its report."""
    if place.is_file():
        is_results = place.name == FILE or (place.suffix in (".json", ".jsonl") and place.name not in OWN)
        if not is_results and (place.parent / FILE).is_file():
            message = f"{place.name} is not the results of the evaluation in {place.parent}"
            raise RESULTS_FORMAT.error(place, message, f"give the run folder: {place.parent}")
        return [place]
    return list(map(Path, one_evaluation(str(place), sorted(map(str, place.rglob(FILE))))))


def one_evaluation(place: str, paths: list[str]) -> list[str]:
    """Those of some results files that are the evaluation in `place`: the one directly in it, the only one, or all
    where each lies in a folder of its own named shard_0, rank-1, part2, ... under one parent. Raises RESULTS_FOLDER,
    which names them."""
    direct = [path for path in paths if path in (place, f"{place.rstrip('/')}/{FILE}")]
    if direct or len(paths) < 2:
        return direct or paths
    folders = [path.rsplit("/", 2)[-3:-1] for path in paths]
    is_sharded = len({parent for parent, _ in folders}) == 1 and all(_SHARD.fullmatch(folder) for _, folder in folders)
    if not is_sharded:
        raise RESULTS_FOLDER.error(place, f"{len(paths)} results files: {_listed(set(paths))}")
    return paths


def read_dataset(place: Path, dataset: str) -> tuple[list[Item], list[Problem]]:
    """The judged results of one data set: a folder of its name at any depth, or the items of that kind in a results
    file. Raises RESULTS_FOLDER, also where folders of several models hold one, and what the files raise."""
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
        shown = ", ".join(map(str, folders[:3]))
        raise RESULTS_FOLDER.error(place, f"{len(folders)} folders have the name {dataset}: {shown}")
    return read_evaluation(folders[0])


def _listed(names: set[str]) -> str:
    """At most LISTED names, in order."""
    left = len(names) - LISTED
    return ", ".join(sorted(names)[:LISTED]) + (f" and {left} more" if left > 0 else "") or "none"


def _files_of_videos(place: Path) -> Iterator[Path]:
    return (path for path in sorted(place.rglob("*.json")) if path.name not in OWN)


def _of_videos(place: Path, files: list[Path]) -> tuple[list[Item], list[Problem]]:
    """Of an answer that was given again the last one counts: a second run appends to the files of the first."""
    problems, item_of = ProblemCollector(str(place)), dict[tuple[str, ...], Item]()
    for path in files:
        name, first_index = path.relative_to(place).with_suffix("").as_posix(), dict[tuple[str, str, str], int]()
        for index, value in json_items(path.read_bytes(), str(path), problems):
            named = {"video_id": name, **value} if isinstance(value, dict) else value  # a file is of one video
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
    """Make a folder for scored results. Raises DATA_OUTPUT_EXISTS where something is in it, or it cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in out.iterdir())
    except OSError as refused:
        raise OUTPUT_EXISTS.error(out, f"it cannot be made: {refused.strerror or refused}") from refused
    if names:
        raise OUTPUT_EXISTS.error(out, f"it holds {', '.join(names[:3])}")


def score_text(metrics: dict[str, Any]) -> str:
    """The headline, and a line for each kind of question."""
    kinds = metrics["by_kind"]
    lines = [f"  {name[:24] or '(none)':24} {row['n']:6}  {percent(row['accuracy']):>8}" for name, row in kinds.items()]
    return "\n".join([metrics["headline"], *(lines[:SHOWN] if len(lines) > 1 else [])])
