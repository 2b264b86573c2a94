"""Progress of a long look at many files: a bar on a terminal, a line now and then elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vidqa.core.cli import note

LINE_EVERY_S = 15.0


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Gives a function to call once for each of `total` things done."""
    if sys.stderr.isatty() and total:
        with _bar(what, total) as advance:
            yield advance
    else:
        yield _lines(what, total)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _lines(what: str, total: int) -> Callable[[], None]:
    start = last = time.monotonic()
    done = 0

    def advance() -> None:
        nonlocal done, last
        done += 1
        now = time.monotonic()
        if now - last >= LINE_EVERY_S:
            last = now
            note(f"{what}: {done} of {total}, about {(now - start) / done * (total - done):.0f} s left")

    return advance
