"""Records and files that are there more than once: same question, contradicting answers, same bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vidqa.core.problem import Problem
from vidqa.data.problems import shown_names
from vidqa.data.record import Record
from vidqa.data.record_groups import same_bytes
from vidqa.datatools.problems import DUPLICATES
from vidqa.evaluation.answers import parse_expected


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
    return DUPLICATES.at(shown_names(group), f"{len(group)} {what}", severity="warning")


def find_duplicates(records: Sequence[Record]) -> Duplicates:
    """Questions are compared without regard to case and spaces, answers as an evaluation compares them."""
    by_question: defaultdict[tuple[object, ...], list[Record]] = defaultdict(list)
    for record in records:
        questions = [_plain(turn.text) for turn in record.turns if turn.role == "user"]
        by_question[(tuple(medium.view for medium in record.media), *questions)].append(record)
    repeated: list[list[str]] = []
    contradicting: list[list[str]] = []
    for group in by_question.values():
        groups = repeated if len(set(map(compared_answer, group))) == 1 else contradicting
        if len(group) > 1:
            groups.append([record.id for record in group])
    return Duplicates(repeated, contradicting, same_bytes(medium for record in records for medium in record.media))


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
