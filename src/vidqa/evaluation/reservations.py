"""What the verdict of a comparison must not be read without: a score may change though the model answers no better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vidqa.evaluation.majority_baseline import majority, one_answer
from vidqa.evaluation.results import Item

UNANSWERED = ("truncated", "unparsed", "empty")


@dataclass(frozen=True)
class Side:
    """The answers of one evaluation: how many say nothing that can be judged, and the majority-class baseline."""

    n: int
    majority_accuracy: float
    truncated: int
    unparsed: int
    empty: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def side_of(items: Sequence[Item]) -> Side:
    """The side of a comparison that `items`, at least one, are."""
    status = Counter(item["parse_status"] for item in items)
    counts = {name: status[name] for name in UNANSWERED}
    return Side(n=len(items), majority_accuracy=majority(items)["majority_accuracy"], **counts)


def ending(changed: Sequence[Item], verdict: str, answered_verdict: str) -> list[str]:
    """A reservation where a verdict rests on answers that can be judged on one side only.

    `changed` are the fixed questions as answered before, or the broken ones as answered after; `answered_verdict` is
    the verdict over the questions that both models answered.
    """
    status = Counter(item["parse_status"] for item in changed if item["parse_status"] != "parsed")
    if verdict == "not told apart" or not status or answered_verdict == verdict:
        return []
    counts = ", ".join(f"{status[name]} {name}" for name in UNANSWERED if status[name])
    if verdict == "better":
        short, change, when = "because more answers can be read", "fixed", "before"
    else:
        short, change, when = "because fewer answers can be read", "broken", "after"
    cause = "; generation.max_tokens decides how many end" if status["truncated"] else ""
    return [
        f"only {short}: of {len(changed)} {change} questions {status.total()} had no answer {when} ({counts}), and the "
        f"questions that both answered are {answered_verdict}{cause}"
    ]


def trivial(after: Sequence[Item], accuracy: float, verdict: str) -> list[str]:
    """Reservations where the better score is one that a model without understanding would reach."""
    if verdict != "better":
        return []
    found = []
    baseline = majority(after)
    if accuracy <= baseline["majority_accuracy"]:
        answers = ", ".join(
            f"{answer!r} to every {kind} question" for kind, answer in baseline["majority_answers"].items()
        )
        share = 100 * baseline["majority_accuracy"]
        found.append(f"no higher than the majority-class baseline: always {answers} scores {share:.1f} %")
    found += [
        f"the second model always gives one answer: {row['answer']!r} to every {row['kind']} question"
        for row in one_answer(after)[:3]
    ]
    return found
