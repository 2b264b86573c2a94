"""The questions of the benchmark: DATA/SUBSET/SUBSET_benchmark_qa_pairs.json beside DATA/SUBSET/clips.

DATA may also be the parent of a folder `benchmark`, as in the layout of Cosmos-Reason1's own scripts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.benchmark.problems import BENCHMARK_DATA
from vidqa.core.files import parse_json
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.foreign_rows import PAIRS, answer_of, choices_of, question_text
from vidqa.data.problems import shown_names

MOST_BYTES = 64 << 20
LETTERED = (
    "Please answer the question in the following format: "
    "<think> your reasoning </think> <answer> your single letter answer </answer>."
)
OPEN = LETTERED.replace("your single letter answer", "your answer")


@dataclass(frozen=True)
class Question:
    """One question. `video` is relative to the benchmark's folder, `clip` is the name in the benchmark."""

    id: str
    dataset: str
    video: str
    clip: str
    prompt: str
    answer: str

    def as_record(self) -> dict[str, Any]:
        """The record for an evaluation."""
        turns = [{"from": "human", "value": f"<video>\n{self.prompt}"}, {"from": "gpt", "value": self.answer}]
        return {"id": self.id, "video": self.video, "kind": self.dataset, "conversations": turns}


def home_of(data: Path) -> Path:
    """The folder of the subsets."""
    return data / "benchmark" if (data / "benchmark").is_dir() else data


def read_questions(
    data: Path, datasets: Sequence[str], answer_type: str, limit: int | None
) -> tuple[list[Question], list[Problem]]:
    """Read the questions of the subsets, the first `limit` of each, and warnings about missing clips.

    Raises BENCHMARK_DATA with the problems of all subsets, also if all clips of one are missing.
    """
    home, questions, problems = home_of(data), list[Question](), list[Problem]()
    for name in datasets:
        try:
            subset = list(_subset_questions(home, name, answer_type))[:limit]
        except ProblemError as wrong:
            problems += wrong.problems
            continue
        questions += subset
        problems += _missing_clips(home, name, subset)
    if any(problem.severity == "error" for problem in problems):
        raise ProblemError(problems)
    return questions, problems


def clips_of(home: Path, name: str) -> list[str]:
    """The names of the clips of a subset, without the folder. Raises BENCHMARK_DATA."""
    rows = _rows(home, name)[1]
    clips = dict.fromkeys(row.get("video") for row in rows if isinstance(row, dict))
    return [clip.rsplit("/", 1)[-1] for clip in clips if isinstance(clip, str) and clip]


def _rows(home: Path, name: str) -> tuple[Path, list[Any]]:
    file = home / name / f"{name}_benchmark_qa_pairs.json"
    try:
        rows = parse_json(file, MOST_BYTES)
    except FileNotFoundError as missing:
        raise BENCHMARK_DATA.error(file, f"there is no such file: {name} is not in {home}") from missing
    except (OSError, ValueError) as broken:
        raise BENCHMARK_DATA.error(file, f"it cannot be read: {str(broken)[:200]}") from broken
    if not isinstance(rows, list) or not rows:
        raise BENCHMARK_DATA.error(file, "it contains no list of videos with questions")
    return file, rows


def _subset_questions(home: Path, name: str, answer_type: str) -> Iterator[Question]:
    file, rows = _rows(home, name)
    counts = Counter[str]()  # number of questions by clip; a clip may have several rows
    for at, row in enumerate(rows):
        pairs = row.get(PAIRS) if isinstance(row, dict) else None
        for pair in pairs if isinstance(pairs, list) else [pairs]:
            yield _question(name, row, pair, answer_type, f"{file}[{at}]", counts)


def _question(name: str, row: Any, pair: Any, answer_type: str, where: str, counts: Counter[str]) -> Question:
    """One question of a row, counted in `counts`. Raises BENCHMARK_DATA if it lacks a video, a text or an answer."""
    if not isinstance(pair, dict) or not isinstance(clip := row.get("video"), str) or not clip:
        raise BENCHMARK_DATA.error(where, "a video with qa_pairs is expected, each a question with its answer")
    text, answer = question_text(pair), answer_of(pair)
    if not text or not isinstance(answer, str) or not answer.strip():
        raise BENCHMARK_DATA.error(where, "a question, and an answer or correct_answer, are expected in qa_pairs")
    video, number = f"{name}/{clip}", counts[clip]
    counts[clip] += 1
    prompt = prompt_of(text, pair, answer_type)
    return Question(f"{video}#{number}", name, video, clip, prompt, answer.strip())


def prompt_of(text: str, pair: Mapping[str, Any], answer_type: str) -> str:
    """The prompt: the question with its options; for reasoning also a line with the format of thinking and answer."""
    if answer_type == "letter":
        return text
    return f"{text}\n{LETTERED if choices_of(pair) else OPEN}"


def _missing_clips(home: Path, name: str, questions: Sequence[Question]) -> list[Problem]:
    clips = dict.fromkeys(question.video for question in questions)
    missing = [clip for clip in clips if not (home / clip).is_file()]
    if not missing:
        return []
    severity = "error" if len(missing) == len(clips) else "warning"
    message = f"{len(missing)} of the {len(clips)} clips of {name} are missing: {shown_names(missing)}"
    return [BENCHMARK_DATA.at(home / name / "clips", message, severity=severity)]
