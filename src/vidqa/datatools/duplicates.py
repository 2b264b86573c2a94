"""Records and files that are there more than once: same question, contradicting answers, same bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vidqa.core.problem import Problem
from vidqa.data.record import Record
from vidqa.data.record_groups import same_bytes
from vidqa.datatools.problems import DUPLICATES
from vidqa.evaluation.answers import parse_expected

NAMED = 5  # members of a group that a message names


@dataclass(frozen=True)
class Duplicates:
    """Groups of record ids, and groups of media keys, that belong together."""

    repeated: list[list[str]]
    contradicting: list[list[str]]
    same_content: list[list[str]]

    def problems(self) -> list[Problem]:
        """A warning for each group."""
        problems = [_warning(group, "records contradict each other") for group in self.contradicting]
        problems += [_warning(group, "records are equal") for group in self.repeated]
        return problems + same_content_problems(self.same_content)


def same_content_problems(groups: Iterable[Sequence[str]]) -> list[Problem]:
    """A warning for each group of media keys."""
    return [_warning(group, "files have the same content") for group in groups]


def _warning(group: Sequence[str], what: str) -> Problem:
    return DUPLICATES.at(_named(group), f"{len(group)} {what}", severity="warning")


def _named(group: Sequence[str]) -> str:
    return ", ".join(group[:NAMED]) + (f" and {len(group) - NAMED} more" if len(group) > NAMED else "")


def find_duplicates(records: Sequence[Record]) -> Duplicates:
    """Questions are compared without regard to case and spaces, answers as an evaluation compares them."""
    by_question: defaultdict[tuple[object, ...], list[Record]] = defaultdict(list)
    for record in records:
        questions = [_plain(turn.text) for turn in record.turns if turn.role == "user"]
        by_question[(tuple(medium.view for medium in record.media), *questions)].append(record)
    groups = [group for group in by_question.values() if len(group) > 1]
    contradicts = [len({compared_answer(record) for record in group}) > 1 for group in groups]
    return Duplicates(
        [_ids(group) for group, differ in zip(groups, contradicts, strict=True) if not differ],
        [_ids(group) for group, differ in zip(groups, contradicts, strict=True) if differ],
        same_bytes({medium.key: medium for record in records for medium in record.media}.values()),
    )


def _ids(group: Iterable[Record]) -> list[str]:
    return [record.id for record in group]


def answer_class(record: Record) -> str:
    """What the answer is by the rules that evaluations use, such as "yes", "B" or "3"; "(text)" where it is text."""
    parsed = parse_expected(record.answer, record.question)
    return "(text)" if parsed.kind == "text" or not parsed.answer else parsed.answer


def compared_answer(record: Record) -> str:
    """What two answers are compared by: yes, no, a letter, a number, or the text without regard to case and spaces."""
    answer = answer_class(record)
    return _plain(record.answer) if answer == "(text)" else answer


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
