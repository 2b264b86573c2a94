"""Collects the problems of many records: the first ones of each code with their places, the others as a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vidqa.core.problem import Code, Problem

SHOWN = 20  # places shown per code
NAMED = 5  # names in one message


def shown_names(names: Sequence[str]) -> str:
    """The first names, for a message: "a, b, c, d, e and 7 more"."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(str(name)[:80] for name in names[:NAMED]) + more


class ProblemCollector:
    """Problems in the order they were found, at most `SHOWN` of each code and then one that counts the rest. Without
    `need_answers` rows may be questions alone."""

    def __init__(self, file: str, need_answers: bool = True) -> None:
        self.file = file
        self.need_answers = need_answers
        self.errors = 0
        self._counts: Counter[tuple[Code, str]] = Counter()
        self._shown: list[Problem] = []

    def add(self, code: Code, where: str, message: str, remedy: str | None = None, severity: str = "error") -> None:
        self.errors += severity == "error"
        self._counts[code, severity] += 1
        if self._counts[code, severity] <= SHOWN:
            self._shown.append(code.at(where, message, remedy, severity=severity))

    @property
    def problems(self) -> list[Problem]:
        more = [
            code.at(self.file, f"{count - SHOWN} more places have the same problem, {count} in all", severity=severity)
            for (code, severity), count in self._counts.items()
            if count > SHOWN
        ]
        return self._shown + more
