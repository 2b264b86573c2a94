"""What an accuracy is held against: the commonest answer, and a model that gives one answer only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from vidqa.core.problem import Problem
from vidqa.evaluation.problems import METRIC_ONE_ANSWER
from vidqa.evaluation.results import Item

FEWEST = 5  # answers of which it is worth saying that all are the same
LISTED = 10  # kinds that are named
_SHOWN = 80  # characters of an answer that are shown


def majority(items: Sequence[Item]) -> dict[str, Any]:
    """What giving the commonest right answer of each answer kind to every question of that kind would score, and which
    answers these are ("no" to every yes/no question, "B" to every letter question)."""
    hits, answers = 0, {}
    for kind, group in groups(items, "answer_kind"):
        # Of answers that are as common, the first by name, so that a score is repeatable.
        answer, count = min(Counter(item["parsed_gt"] for item in group).items(), key=lambda pair: (-pair[1], pair[0]))
        hits += count
        answers[kind] = _short(answer)
    return {"majority_accuracy": round(hits / len(items), 6) if items else None, "majority_answers": answers}


def one_answer(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The kinds of questions that the model gives one and the same answer to, though the right ones differ: answer
    kinds, and of the other questions the user's kinds."""
    rows = [row for kind, group in groups(items, "answer_kind") if (row := _only(kind, group))]
    named = {row["kind"] for row in rows}
    others = [item for item in items if item["answer_kind"] not in named]
    return rows + [row for kind, group in groups(others, "kind") if (row := _only(kind, group))]


def _only(kind: str, items: Sequence[Item]) -> dict[str, Any] | None:
    answers = [item["parsed_response"] for item in items if item["parse_status"] == "parsed"]
    expected = Counter(item["parsed_gt"] for item in items)
    if len(answers) < FEWEST or len(set(answers)) > 1 or len(expected) == 1:
        return None
    commonest = {_short(answer): count for answer, count in expected.most_common(5)}
    return {"kind": kind, "answer": _short(answers[0]), "answers": len(answers), "expected": commonest}


def one_answer_problems(rows: Sequence[dict[str, Any]]) -> list[Problem]:
    """A warning for each kind with one answer only."""
    problems = []
    for row in rows[:LISTED]:
        expected = ", ".join(f"{count} x {answer!r}" for answer, count in row["expected"].items())
        message = f"all {row['answers']} answers are {row['answer']!r}; expected are {expected}"
        problems.append(METRIC_ONE_ANSWER.at(row["kind"], message, severity="warning"))
    if len(rows) > LISTED:
        message = f"{len(rows) - LISTED} more kinds have one answer only"
        problems.append(METRIC_ONE_ANSWER.at("by_kind", message, severity="warning"))
    return problems


def headline(scores: dict[str, Any]) -> str:
    """The accuracy in one sentence, with all that it must not be read without."""
    if scores["accuracy"] is None:
        return "no answer could be judged: there is no ground truth"
    low, high = scores["accuracy_ci95"]
    sentence = f"accuracy {_percent(scores['accuracy'])} % (95 % interval {_percent(low)} to {_percent(high)})"
    sentence += f"; the commonest answer would get {_percent(scores['majority_accuracy'])} %"
    only = [f"{row['answer']!r} to every {row['kind']} question" for row in scores["one_answer"][:3]]
    return f"{sentence}; the model says {', '.join(only)}" if only else sentence


def groups(items: Sequence[Item], name: str) -> list[tuple[str, list[Item]]]:
    """The items by one of their fields, in the order of its values."""
    items_of: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        items_of[item[name]].append(item)
    return sorted(items_of.items())


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _short(answer: str) -> str:
    return answer if len(answer) <= _SHOWN else f"{answer[: _SHOWN - 1]}…"
