"""Labels of multiple-choice questions: which one is right, and the same question with its options in another order."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from vidqa.dataset.record import Record, Turn
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.options import options_of


def label_of(record: Record) -> str:
    """The class of the right answer: a letter, yes or no, a number, else the normalised text."""
    return parse_expected(record.answer, record.question).answer


def shuffled_options(record: Record, seed: str) -> Record:
    """The record with the texts of its options permuted, a function of `seed`, and its reference with them. A question
    without options, or whose reference is no letter of them, stays as it is."""
    options = _options(record)
    parsed = parse_expected(record.answer, record.question)
    if parsed.kind != "letter" or parsed.answer not in options or len(set(options.values())) < len(options):
        return record
    letters = list(options)
    order = letters.copy()
    random.Random(seed).shuffle(order)  # letter letters[i] gets the text that stood at order[i]
    texts = {letter: options[source] for letter, source in zip(letters, order, strict=True)}
    right = letters[order.index(parsed.answer)]
    asking = max(number for number, turn in enumerate(record.turns) if turn.role == "user")
    answering = max(number for number, turn in enumerate(record.turns) if turn.role == "assistant")
    turns = list(record.turns)
    turns[asking] = _with_options(turns[asking], options, texts)
    turns[answering] = _with_answer(turns[answering], parsed.answer, right, options[parsed.answer])
    shuffled = replace(record, turns=tuple(turns))
    consistent = _options(shuffled) == texts and label_of(shuffled) == right
    return shuffled if consistent else record


def _options(record: Record) -> dict[str, str]:
    return {letter: text.strip() for letter, text in options_of(record.question).items()}


def _with_options(turn: Turn, options: dict[str, str], texts: dict[str, str]) -> Turn:
    """The turn with the text of each option replaced where it stands behind its letter."""

    def replaced(part: str) -> str:
        for letter, text in options.items():  # marked first: the text of one option may hold that of another
            mark = rf"(?<![A-Za-z])({letter}|{letter.lower()})([).:]\s*){re.escape(text)}"
            part = re.sub(mark, f"\\g<1>\\g<2>\x01{letter}\x01", part, count=1)
        for letter, text in texts.items():
            part = part.replace(f"\x01{letter}\x01", text)
        return part

    return replace(turn, parts=tuple(replaced(part) if isinstance(part, str) else part for part in turn.parts))


def _with_answer(turn: Turn, before: str, after: str, text: str) -> Turn:
    """The turn with another letter: alone, or with the option's text behind it. Reasoning in front of it, which may
    name letters, is left out: it is never shown to the model."""
    behind = f". {text}" if text and text in turn.text and turn.text.strip() != text else ""
    return replace(turn, parts=(f"{after}{behind}",))
