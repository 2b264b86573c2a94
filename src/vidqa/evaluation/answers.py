"""Parsing of a model's response: remove thinking, unwrap tags, then read the answer by the kind of question.

A response that is truncated or ambiguous is never guessed: it becomes "truncated" or "unparsed", which are separate
classes in every score.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from vidqa.data.conversation import without_thinking
from vidqa.evaluation.choices import RETRACTION, Reading, is_option, options_of, read_letter, without_prefix
from vidqa.evaluation.quantities import UNITS, is_number, parse_number, says_none
from vidqa.evaluation.text import as_text, clean, normalise, plain, tokens

RULES = "vidqa.answers.v4"  # part of a recipe: scores by different rules are not comparable
DIRECTION_TASK = "its_directionality"
UNANSWERED = ("truncated", "unparsed", "empty")
STATUSES = ("parsed", *UNANSWERED)
YES_NO: dict[str, tuple[str, ...]] = {"Yes": ("Yes", "yes", "True", "true"), "No": ("No", "no", "False", "false")}
_REMEMBERED = 200  # characters: caches keep only short texts, so that their memory is bounded
_BOX = re.compile(r"\\?\b(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(?=[A-Za-z0-9](?![A-Za-z0-9]))")
_NOT = re.compile(r"\b(?:not|never|rather than|instead of)[\s$\\(\[]*$", re.IGNORECASE)
_BETWEEN_TWO = re.compile(r"[\s$,;&/|.\\()\[\]]*(?:and|or|and/or)?[\s$,;&/|\\()\[\]]*", re.IGNORECASE)


class Parsed(NamedTuple):
    """An answer: canonical ("yes", "B", "12", "left", normalised text), and empty unless `status` is "parsed"."""

    answer: str
    kind: str  # yes_no, letter, number, direction or text
    status: str  # one of STATUSES


class Final(NamedTuple):
    """The answer part of a response; `closed` if a closing tag shows that it is complete."""

    text: str
    closed: bool
    in_thinking: bool  # the response ends inside its thinking


def parse_answer(
    text: object,
    question: str = "",
    finish_reason: str = "stop",
    expected: str | None = None,
    task_type: str = "",
) -> Parsed:
    """Parse one response. Accepts any JSON value as `text` and never raises.

    The kind comes from `expected` (the ground truth) if present, else from the question, else from the text itself. A
    response with finish_reason "length" counts as parsed only if its answer is complete: inside a closed <answer> tag,
    or a yes/no or letter at its very start. Any other response that was cut off is "truncated".
    """
    if expected is not None:
        return parse_pair(text, expected, question, finish_reason, task_type)[0]
    question = clean(question)
    return _read(text, _kind_of_question(question, task_type), question, finish_reason, "")


def parse_pair(
    response: object, gt: object, question: str = "", finish_reason: str = "stop", task_type: str = ""
) -> tuple[Parsed, Parsed]:
    """The response and the ground truth, both parsed as the ground truth's kind; the second is "empty" if missing."""
    question = clean(question)
    truth, expected = _expect(as_text(gt), question, task_type)
    if not truth:
        return parse_answer(response, question, finish_reason, None, task_type), expected
    return _read(response, expected.kind, question, finish_reason, truth), expected


def _expect(gt: str, question: str, task_type: str) -> tuple[str, Parsed]:
    """Call `_expected`, cached for short ground truths; of a question, only its options affect the result."""
    context = question if task_type or options_of(question) else ""
    return (_expected if len(gt) <= _REMEMBERED else _expected.__wrapped__)(gt, context, task_type)


@lru_cache(maxsize=8192)
def _expected(gt: str, question: str, task_type: str) -> tuple[str, Parsed]:
    """The text of the ground truth, and its parsed form."""
    if len(gt) == 1 and not task_type and gt in options_of(question):
        return gt, Parsed(gt, "letter", "parsed")
    truth = final_answer(gt).text
    if not truth:
        return "", Parsed("", "text", "empty")
    kind = kind_of(truth, question, task_type)
    reading = _find(kind, truth, question, truth)
    # A ground truth of punctuation only is compared verbatim.
    return truth, Parsed(reading.answer if reading else truth.casefold(), kind, "parsed")


def parse_expected(gt: object, question: str = "", task_type: str = "") -> Parsed:
    """Parse the ground truth by the same rules; status "empty" if there is none."""
    return _expect(as_text(gt), clean(question), task_type)[1]


def _read(response: object, kind: str, question: str, finish_reason: object, truth: str) -> Parsed:
    """Parse the response as `kind`, or by its appearance if the kind is unknown ("")."""
    final = final_answer(response)
    if final.in_thinking:
        return Parsed("", kind or "text", "truncated")
    kind = kind or _kind_of_text(final.text)
    cut = finish_reason == "length" and not final.closed
    if not final.text:
        return Parsed("", kind, "truncated" if cut else "empty")
    text = _corrected(kind, final.text, question)
    reading = _find(kind, text, question, truth)
    if reading is None and final.text.casefold() == truth.casefold():
        reading = Reading(truth.casefold())  # verbatim, if its kind cannot parse it: "..."
    if reading is None or (cut and not (reading.settled and text == final.text)):
        return Parsed("", kind, "truncated" if cut else "unparsed")
    return Parsed(reading.answer, kind, "parsed")


def final_answer(text: object) -> Final:
    """The response without its thinking, unwrapped from <answer>..</answer>, \\boxed{..} and text style markup."""
    response = as_text(text)
    if "<" in response:
        response, in_thinking = without_thinking(response)
        if in_thinking:
            return Final("", False, True)
        inner = list(re.finditer(r"<answer>(.*?)(</answer>|\Z)", response, re.IGNORECASE | re.DOTALL))
        if inner:
            return _unboxed(clean(inner[-1][1]), bool(inner[-1][2]))
    return _unboxed(clean(response), False)


def _unboxed(text: str, is_closed: bool) -> Final:
    """Plain text; of a response with \\boxed{..}, the content of the last box."""
    if box := _last_box(text):
        return Final(plain(box[0]), is_closed or box[1], False)
    return Final(plain(text), is_closed, False)


def _last_box(text: str) -> tuple[str, bool] | None:
    """The content of the last box (of the last two, if adjacent), and whether it is closed. None without a box."""
    if "box" not in text:
        return None
    marks = [mark for mark in _BOX.finditer(text) if not _NOT.search(text[max(0, mark.start() - 30) : mark.start()])]
    if not marks:
        return None
    boxes = [_group(text, mark.end()) for mark in marks[-2:]]
    content, end = boxes[-1]
    if len(boxes) == 2 and _BETWEEN_TWO.fullmatch(text[boxes[0][1] : marks[-1].start()]):
        content = content if content.strip() == boxes[0][0].strip() else f"{boxes[0][0]} and {content}"
    return f"{content}{_unit_after(content, text[end : end + 60])}", end <= len(text)


def _group(text: str, start: int) -> tuple[str, int]:
    """The content and end of the group in braces at `start`, or of the single character there; the end of a group
    without its closing brace is after the end of the text."""
    if text[start] != "{":
        return text[start], start + 1
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return text[start + 1 : at], at + 1
    return text[start + 1 :], len(text) + 1


def _unit_after(content: str, after: str) -> str:
    """The unit after a box with a number: "\\boxed{12} minutes" is not 12."""
    if not re.search(r"\d\s*\}*\s*$", content):
        return ""
    unit = re.match(r"[\s$)\]]*(%|°|[^\W\d_]+(?:/[a-z]+)?)", plain(after))
    return f" {unit[1]}" if unit and unit[1].lower() in UNITS else ""


def answer_text(text: object) -> str:
    """A free-text answer verbatim, of a response or a ground truth, before normalisation: the input of text metrics."""
    return without_prefix(final_answer(text).text)


def allowed_answers(question: str, gt: str, task_type: str = "") -> dict[str, tuple[str, ...]]:
    """Each allowed answer with the forms in which a response may begin with it; none is a prefix of another. Empty if
    the kind of answer (the ground truth's, else the question's) is neither yes/no nor letter."""
    expected = parse_expected(gt, question, task_type)
    kind = parse_answer("", question, task_type=task_type).kind if expected.status == "empty" else expected.kind
    if kind == "yes_no":
        return YES_NO
    return {letter: (letter, f"({letter}") for letter in options_of(clean(question))} if kind == "letter" else {}


# --- kinds ------------------------------------------------------------------------------------------------------

_YES, _NO = frozenset(("yes", "true", "yeah", "yep")), frozenset(("no", "false", "nope"))
_YES_NO_EXPECTED = re.compile(r"\W{0,3}(?:yes|no|true|false)\b\s*(?:[.,;:!–-].*|\W{0,3})", re.IGNORECASE | re.DOTALL)
_LETTER_EXPECTED = re.compile(r"\W?([A-Z])\W{0,2}")
_ASKS_YES_NO = re.compile(r"\byes\s*(?:or|/|,)\s*no\b|\btrue\s*(?:or|/)\s*false\b", re.IGNORECASE)


def kind_of(expected: str, question: str, task_type: str = "") -> str:
    """The kind of answer of a ground truth."""
    text = expected.strip()
    if task_type == DIRECTION_TASK and _direction(text, question):
        return "direction"
    options = options_of(question)
    if options and read_letter(text, options):
        return "letter"
    if _YES_NO_EXPECTED.fullmatch(text):
        return "yes_no"
    if _LETTER_EXPECTED.fullmatch(text):
        return "letter"
    return "number" if is_number(text) else "text"


def _kind_of_question(question: str, task_type: str) -> str:
    if task_type == DIRECTION_TASK:
        return "direction"
    if options_of(question):
        return "letter"
    return "yes_no" if _ASKS_YES_NO.search(question) else ""


def _kind_of_text(text: str) -> str:
    if normalise(text[:40]) in _YES | _NO:
        return "yes_no"
    return "number" if is_number(text[:40]) and len(text) <= 40 else "text"


# --- one finder per kind ----------------------------------------------------------------------------------------

_YES_NO_WORD = re.compile(r"\b(yes|yeah|yep|true|no|nope|false)\b", re.IGNORECASE)
_YES_NO_LEADS = re.compile(
    r"\W{0,5}(yes|yeah|yep|true|no|nope|false)\b(?!\s*\?|\s*(?:or|and|/)\s*(?:yes|no|true|false)\b)", re.I
)
_YES_NO_CUE = re.compile(r"\b(?:answer|conclusion)\b(?:\s+(?:is|would be|must be))?\W{0,4}(yes|no|true|false)\b", re.I)
# Alone on the last line, or at the start of a sentence after "wait", "actually".
_YES_NO_LAST = re.compile(
    rf"(?:\n\W{{0,30}}(?=\w+\W*\Z)|\b{RETRACTION}\b.{{0,300}}?[.!?\n]\s*(?=\w+[.,!]))(yes|true|no|false)\b", re.I | re.S
)
_DENIAL = re.compile(r"(?:\b(?:not|never)|n['’]t)\s+(?:\w+\s+){0,2}$", re.IGNORECASE)
_CLAUSE_END = re.compile(r"\s*(?:[.,;:!\"'()]|$)")


def _polarity(word: str) -> str:
    return "yes" if word.lower() in _YES else "no"


def _yes_no(text: str) -> Reading | None:
    if cues := _YES_NO_CUE.findall(text):
        answer = _polarity(cues[-1])
        leads = _YES_NO_LEADS.match(text)
        return Reading(answer, leads is not None and _polarity(leads[1]) == answer)
    last = _YES_NO_LAST.search(text)
    if (leads := _YES_NO_LEADS.match(text)) and _answers(text, leads):
        is_taken_back = last and _polarity(last[1]) != _polarity(leads[1])
        return None if is_taken_back else Reading(_polarity(leads[1]), True)
    if last:
        return Reading(_polarity(last[1]))
    if _ASKS_YES_NO.search(text):
        return None
    # "no" before a noun negates something else; it is an answer only at the end of a clause.
    polarities = {
        _polarity(word[1])
        for word in _YES_NO_WORD.finditer(text)
        if (word[1].lower() == "yes" or _CLAUSE_END.match(text, word.end())) and not _is_denied(text, word)
    }
    return Reading(polarities.pop()) if len(polarities) == 1 else None


def _is_denied(text: str, word: re.Match[str]) -> bool:
    return _DENIAL.search(text[max(0, word.start() - 40) : word.start()]) is not None


def _answers(text: str, leads: re.Match[str]) -> bool:
    """Whether a leading yes/no is the answer: "No, ...", "No the car ...", but not "No cars are visible"."""
    if _polarity(leads[1]) == "yes" or _CLAUSE_END.match(text, leads.end()):
        return True
    return bool(
        re.match(r"\s*(?:[-–—\n]|(?:the|it|there|he|she|they|this|because|since|i)\b)", text[leads.end() :], re.I)
    )


_DIRECTIONS = {
    **dict.fromkeys(("left", "leftward", "leftwards"), "left"),
    **dict.fromkeys(("right", "rightward", "rightwards"), "right"),
    **dict.fromkeys(("straight", "forward", "forwards", "ahead"), "straight"),
}
_DIRECTION_WORD = re.compile(r"\b(" + "|".join(sorted(_DIRECTIONS, key=len, reverse=True)) + r")\b", re.IGNORECASE)


def _direction(text: str, question: str) -> Reading | None:
    """Direction: left, right or straight; the only one in the text, the one after "answer", or the chosen option's."""
    named = [_DIRECTIONS[word[1].lower()] for word in _DIRECTION_WORD.finditer(text) if not _is_denied(text, word)]
    if len(set(named)) == 1:
        return Reading(named[0])
    parts = re.split(r"\banswer\b(?:\s+is)?\s*[:=]?", text, flags=re.IGNORECASE)
    after = {_DIRECTIONS[word.lower()] for word in _DIRECTION_WORD.findall(parts[-1])}
    if len(parts) > 1 and len(after) == 1:
        return Reading(after.pop())
    options = options_of(question)
    chosen = read_letter(text, options) if options else None
    option = _DIRECTION_WORD.search(options.get(chosen.answer, "")) if chosen else None
    return Reading(_DIRECTIONS[option[1].lower()], chosen.settled) if option and chosen else None


# A separate clause after a word of retraction: "actually, it's B", "no, wait: B", but not "3 cars wait, 2 turn".
_CORRECTION = re.compile(
    rf"(?<!\w[ \t])(?:(?:\b(?:but|hm+|oh|no)\s)?\b{RETRACTION}\b|\bno(?=\s?[,;–—]|\s-\s|[.!]\s+(?:it|[A-Z])\b))"
    r"[\s,.;:!…–—-]{0,9}(?:(?:it|that)(?:['’]s|\s+(?:is|must\s+be))\s+|there\s+(?:is|are)\s+|i\s+(?:count|see|choose)\s+)?"
    r"(?=((?:[^,.;:!?\n]|[.,:](?=\d)){1,80})(?:[.;!\n]|$|:(?!\s*(?:yes|no)\b)|,\s(?!(?:and|or)\b)[^\W\d]{2}))",
    re.IGNORECASE,
)
_MAY_CORRECT = re.compile(rf"no\s?[-,;–—.!]|{RETRACTION}")  # of lower case; it takes a tenth of the time


def _corrected(kind: str, text: str, question: str) -> str:
    """The text after its last self-correction, from the new answer on; the whole text without one."""
    if kind == "text" or not _MAY_CORRECT.search(text.lower()):
        return text
    corrections = reversed(list(_CORRECTION.finditer(text)))
    return next((text[match.end() :] for match in corrections if _is_answer(kind, match[1], question)), text)


def _is_answer(kind: str, text: str, question: str) -> bool:
    """Whether a text is only an answer of this kind; a number may be followed by the noun that the question counts."""
    if kind == "letter":
        return is_option(text, options_of(question))
    text = without_prefix(text)
    if kind != "number":
        return normalise(text) in (_YES | _NO if kind == "yes_no" else _DIRECTIONS)
    words, named = text.split(), set(tokens(question))
    while len(words) > 1 and words[-1].lower() in named:
        words.pop()
    return is_number(" ".join(words)) or says_none(text, question)


def _find(kind: str, text: str, question: str, truth: str) -> Reading | None:
    """Parse `text` with the function of its kind."""
    if kind == "yes_no":
        return _yes_no(text)
    if kind == "letter":
        return read_letter(text, options_of(question))
    if kind == "direction":
        return _direction(text, question)
    if kind == "number":
        number = parse_number(text, truth, question)
        return None if number is None else Reading(number)
    answer = normalise(without_prefix(text))
    return Reading(answer) if answer else None
