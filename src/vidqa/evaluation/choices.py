"""Multiple choice: the options that a question lists, and the one that a response chooses, by its letter or its text.

A letter counts if it is in the position of an answer: alone on the first or last line, at the start, after "the answer
is", as in "B is correct", or as the only option in brackets. A letter that is denied ("not A"), asked about,
conditional, or one of several ("A or B") does not count.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from vidqa.evaluation.text import normalise

# "(A) left", "A. left", "A) left", "A: left", at the start or after a space. The character before the letter is checked
# last, which is several times faster than testing every position where an option could begin.
_OPTION = re.compile(r"([A-Za-z])[).:](?<![^\s,;?(].[).:])\s*(?=\S)")
_EDGES = " \t\r\n,;."
_SECOND = re.compile(r"[Bb][).:]")  # the fastest test that there are no options
# The end of the last option: a new line, or a sentence with instructions for the answer.
_INSTRUCTION = re.compile(r"\n|(?<=[.?!])\s+(?=(?:Please|Answer|Choose|Select|Pick|Respond|Reply|Give|Only|Output)\b)")


def options_of(question: str) -> dict[str, str]:
    """Letter -> text of options A, B, ... of `question`; empty unless at least A and B occur in order."""
    return _read_options(question) if _SECOND.search(question) else {}


@lru_cache(maxsize=8192)
def _read_options(question: str) -> dict[str, str]:
    marks: list[re.Match[str]] = []
    upper = True
    for mark in _OPTION.finditer(question):
        letter = mark[1]
        if not marks:
            upper = letter.isupper()
        opened, closed = question[mark.start() - 1 : mark.start()] == "(", question[mark.end(1)] == ")"
        if opened and not closed:
            continue
        if letter == chr(ord("A" if upper else "a") + len(marks)):
            marks.append(mark)
    if len(marks) < 2 or len(marks) > 26:
        return {}
    ends = [mark.start() for mark in marks[1:]]
    texts = [question[mark.end() : end] for mark, end in zip(marks, ends, strict=False)]
    texts.append(_INSTRUCTION.split(question[marks[-1].end() :], maxsplit=1)[0])
    return {mark[1].upper(): text.strip(_EDGES).rstrip("( ") for mark, text in zip(marks, texts, strict=True)}


# --- the chosen option ------------------------------------------------------------------------------------------------

# Patterns of the words before an answer: "the answer is", "答案：", "la respuesta es".
ANSWER_NOUN = (
    r"(?:\bans\b\.?|\b(?:answers?|conclusion|verdict|solution|respuesta|réponse|reponse|antwort|lösung|resposta|risposta"
    r"|ответ|cevap|yanıt|đáp án|odpowied[źz]|antwoord|svaret|svar|jawaban)\b"
    r"|答案|答え|解答|回答|正解|정답|답|الإجابة|الجواب|उत्तर)"
)
ANSWER_WORD = (
    rf"(?:{ANSWER_NOUN}|\b(?:choose|chose|pick|select(?:ed|ion)?|go(?:ing)? with|went with|correct|final"
    r"|choisis|elijo|wähle|escolho|scelgo|выбираю)\b|应选|應選|故选|故選|选择|選擇|选|選(?!項))"
)
# Words and punctuation that may occur between such a word and the answer.
LINK = (
    r"(?:[\s:=,\-]|\b(?:is|are|was|be|would|will|must|should|has|to|therefore|thus|then|clearly|definitely|indeed"
    r"|certainly|obviously|of\s+course|probably|most|likely|simply|just|only|actually|really|the|an?(?=\s+option)|option|choice"
    r"|letter|answer|number|one|it|i|say|think|believe|correct|right|best|final|correcta?|correcte|richtige?|es|est|ist"
    r"|lautet|la|le|die|der|das|opción|lettre|buchstabe|letra|lettera|является|это|буква|là|adalah|er|är|é|è)\b|l'"
    r"|应该是|应为|应该|應該|是|为|為|选择|選擇|选项|選項|选|選|は|が|은|는|이|가|هي|هو|है)"
)
CLAUSE = r"(?:\s+(?:to|for|of|that|which|in|here)\b[^.\n!;:]{0,80}?(?=\s(?:is|would|must|should)\b|:))?"

_FOLDED = str.maketrans(
    {
        **dict.fromkeys("「『【〔〖《〈[{", "("),
        **dict.fromkeys("」』】〕〗》〉]}", ")"),
        **dict.fromkeys("“”„‟«»‹›", '"'),
        **dict.fromkeys("’‘`´", "'"),
        **dict.fromkeys("。।۔", "."),
        **dict.fromkeys("、،", ","),
        **dict.fromkeys("–—―−", " - "),
        **dict.fromkeys("→⇒➜➡⟶", ":"),
        **dict.fromkeys("¿¡✓✔✅☑", " "),
        "؛": ";",
        "؟": "?",
    }
)
LONGEST_SENTENCE = 200  # characters before a mention that may contain its denial
_ARROW = re.compile(r"[-=]+>")

_LATIN = "A-Za-z0-9À-ÖØ-öø-ɏ"
_OPEN, _CLOSE = r"[(\"'\s]{0,6}", r"[)\"']{0,6}"
_EDGE = rf"(?![{_LATIN}_]|'[A-Za-z]|-[A-Za-z])"  # "B'" ends a quotation; "A's", "B-pillar" are no letters
_TOKEN = rf"(?<![{_LATIN}_'])(?P<open>{_OPEN})(?P<letter>[A-Za-z]){_EDGE}(?P<close>{_CLOSE})"

_OPTION_WORD = r"(?:\b(?:option|choice|letter|opción|opção|opzione|вариант|buchstabe)\b|选项|選項|選択肢|선택지|보기)"
_VERB_OR_MARK = r"(?:[:=]|\b(?:is|would be|must be|should be|es|est|ist|é|è)\b|是|为|為|は|은|는)"
_ANSWER_CUE = re.compile(
    rf"(?:{ANSWER_WORD}\"?{CLAUSE}{LINK}{{0,12}}+"
    rf"|{_OPTION_WORD}(?:\s+correct[ae]?|\s+corret[ao])?\s*{_VERB_OR_MARK}{LINK}{{0,12}}+"
    rf"|\bnot\s+(?:option\s+)?\(?[A-Z]\)?,?\s+but\s+(?:rather\s+)?(?:option\s+)?"
    rf"|\b(?:so|thus|therefore|hence)\b,?\s*(?:it\s+is|it's|that's|it\s+must\s+be)?\s*){_TOKEN}",
    re.IGNORECASE,
)
_OPTION_CUE = re.compile(rf"{_OPTION_WORD}\s*{_TOKEN}", re.IGNORECASE)
_CALLED_RIGHT = re.compile(
    rf"{_TOKEN}\s*(?:(?:is|seems|looks|must be|would be|es|est|ist|é|è|が|は|是|이|가|은|는)\s*)?"
    r"(?:(?:the|my|la|le|die|clearly|definitely|most likely|probably|indeed)\s+){0,2}"
    r"(?:(?:correct|right|best|true|final)\b|(?:(?<=the\s)|(?<=my\s))(?:answer|choice)\b|correct[aeo]\b|richtig\b|corretta\b|верн|正解|正しい|正确|正確|对的|정답|맞"
    r"|を選|를 선택|을 선택)",
    re.IGNORECASE,
)
# "Is it A? No. Is it B? Yes.", but not "Is A shown? Yes."
_AFFIRMED = re.compile(
    rf"(?:^|[.!?\n])\s{{0,3}}(?:is\s+(?:it|the\s+(?:\w+\s+)?answer)\s+)?(?:option\s+)?{_TOKEN}\s*\?\s*yes\s*(?=[.,;!\n]|$)",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"(?P<open>\()(?P<letter>[A-Z])(?P<close>\))")
_CAPITAL = re.compile(rf"(?<![{_LATIN}_'])([A-Z]){_EDGE}")
_VERB = re.compile(r"\s(?:is|seems|looks|must|would|es|est|ist)\b", re.IGNORECASE)
_DECOR = r"[\s>#*•·\-]*"
_PREFIX = (
    r"(?:(?:so|thus|therefore|hence|then|final|probably|(?:most\s+)?likely|∴)\b[,:]?\s*"
    rf"|(?:it's|it\s+is|i\s+(?:think|believe)|i'(?:d|ll)\s+say)\s+|{_OPTION_WORD}\s*)*"
)
_ALONE = re.compile(
    rf"{_DECOR}{_PREFIX}{_TOKEN}\s*(?:です|だ|である|입니다|이다|예요|이에요|项|項|选项)?[\s.,;:!)\"'\-]*",
    re.IGNORECASE,
)
_LEADS = re.compile(
    rf"{_DECOR}{_PREFIX}{_TOKEN}(?P<sep>\s*[).:,;!]|\s+-\s|\s*$|\s+(?=(?:because|since|as)\b))?", re.IGNORECASE
)
_MARK = re.compile(rf"(?:^|(?<=[.;,]))[\s>#*•·\-]{{0,99}}(?:[Oo]ption\s+)?\(?([A-Z]){_EDGE}(?:[).:]|\s-)", re.MULTILINE)

_OR_MARK = re.compile(rf"[^.!?\n]{{0,200}}?\b(?:or|and)\s+\(?([A-Z]){_EDGE}[).:]+\s+\w")
_AND = r"\s*,?\s*(?:and/or|and|or|nor|y|o|et|ou|und|oder|и|или|或者|或|和|と|か|または|또는|와|과|to|&|/|\+|~)\s*"
_BOTH = re.compile(rf"{_AND}(?:option\s+|choice\s+)?[(\"']*(?P<second>[A-Za-z]){_EDGE}[)\"']*", re.IGNORECASE)
_LISTED = re.compile(
    rf"(?:[ \t]*[,;][ \t]*|[ \t]+|-|(?=\())[(\"']*(?P<second>[A-Z]){_EDGE}[)\"']*"
    r"(?=[ \t]*(?:[.,;:!&/\n]|$|(?:and|or)\b))"
)
_CLAUSE_START = re.compile(r"[.,;:!?\n]|\b(?:so|but|therefore|thus|hence|because|since)\b", re.IGNORECASE)
_DENIES = re.compile(
    r"(?:\b(?:not|never|cannot|neither|nor|except|unlike|doubt|disagree|eliminate[ds]?|exclude[ds]?|reject(?:ed|s)?|reject"
    r"|ruled?\s+out|rather\s+than|instead\s+of|incorrect|wrong|nicht|n'est\s+pas|no\s+es|non\s+è|não\s+é|не)\b|n't\b"
    r"|不是|不选|不選|并非|排除)(?:\s+[^\s.,;:!?]+){0,8}\s*[(\"']*$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"[)\"'\s]*(?:(?:option|answer|choice)\s+)?(?:(?:is|was|are|were|seems?|looks?|can|could|does|do|did|would|should|must"
    r"|be|has|have|been|clearly|also|both|ca|wo|es|est|ist)(?:\b\s*|(?=n't)))*(?:not\b(?!\s*[(\"']*[A-Z]\b)|n't\b|never\b|cannot\b|wrong\b|incorrect\b"
    r"|incorrecta\b|falsch\b|faux\b|false\b|invalid\b|impossible\b|out\b|excluded\b|eliminated\b|ruled\b|implausible\b"
    r"|unlikely\b|rejected\b|nicht\b|fausse\b|errad[ao]\b|incorret[ao]\b|sbagliat[ao]\b|не|ложн|ошибоч|不对|不對|不正确|错|錯|不是|ではな|じゃな|ではあり|は違|間違|[이가은는]\s*아[니닙]|틀|:?\s*[❌✗✘])",
    re.IGNORECASE,
)
_UNSURE = re.compile(r"\b(?:might|may|could|maybe|perhaps|possibly)\b", re.IGNORECASE)
_CONDITION = re.compile(r"\b(?:if|unless|whether)\b(?!.*\bbut\b)", re.IGNORECASE | re.DOTALL)
RETRACTION = r"(?:wait|hold on|actually|correction|scratch that|on second thoughts?|or rather|i mean|sorry|oops)"
_TAKEN_BACK = re.compile(rf"\b{RETRACTION}\b|\blet me re\w+", re.IGNORECASE)
_REASON = ("", "because", "since", "as", "for", "and", "or", "is", "but", "which", "so", "due", "not")


class Reading(NamedTuple):
    """A parsed answer; `settled` if it is complete at the start, so that later truncation cannot have changed it."""

    answer: str
    settled: bool = False


class Unclear(Exception):
    """The response gives several letters as its answer, or retracts one."""


def read_letter(text: str, options: dict[str, str]) -> Reading | None:
    """The chosen letter, settled if it also starts the response; None if no single option is clearly chosen.

    `options` are the question's, by letter; empty if they are unknown.
    """
    text = _ARROW.sub(":", text.translate(_FOLDED)).strip()
    try:
        return _chosen(text, options)
    except Unclear:
        return None


def _chosen(text: str, options: dict[str, str]) -> Reading | None:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return None
    first, last = _alone(lines[0], options), _alone(lines[-1], options) or _last_sentence(text, options)
    leads = first or _leading(text, lines, options)
    cued = _cued(text, options)
    strong = {letter for letter in (cued, first, last) if letter}
    if len(strong) > 1:
        raise Unclear
    if strong:
        letter = strong.pop()
        if not cued and leads not in (None, letter):
            raise Unclear
        return Reading(letter, leads == letter)
    if leads:
        return Reading(leads, True)
    weak = _last_option(lines, options) or _named_option(text, options) or _only_option(text, options)
    return Reading(weak) if weak else None


def is_option(text: str, options: dict[str, str]) -> bool:
    """Whether a text is one option and nothing else: "B", "option (B)", "the blue truck"."""
    text = without_prefix(text)
    letter = _alone(text.translate(_FOLDED), options)
    return (letter in options if options else letter is not None) or normalise(text) in map(normalise, options.values())


def _alone(line: str, options: dict[str, str]) -> str | None:
    """The letter that is all of a line; a small one must be an option, if the options are known."""
    letter = match["letter"] if (match := _ALONE.fullmatch(line)) else ""
    return None if letter.islower() and options and letter.upper() not in options else letter.upper() or None


def _last_sentence(text: str, options: dict[str, str]) -> str | None:
    """The capital letter that is the whole last sentence, unless it ends a list."""
    match = re.search(rf"[^\s.][^\s][.!?]\s+[(\"']*([A-Z]){_EDGE}[)\"'.!]*$", text)
    return match[1] if match and not _is_list(text, options) else None


def _leading(text: str, lines: list[str], options: dict[str, str]) -> str | None:
    """The letter at the start with text after it: "B. the blue truck", "(B) because ..."."""
    match = _LEADS.match(lines[0])
    if match is None or _is_list(text, options) or not _is_answer(match, lines[0]):
        return None
    letter, rest = match["letter"].upper(), lines[0][match.end() :]
    bracketed = "(" in match["open"] and ")" in match["close"]
    if options and letter not in options:
        return None
    if not (match["sep"] or bracketed) and not _begins(rest, options.get(letter, "")):
        return None
    if match["letter"].islower() and not bracketed and (letter not in options or match["sep"] == ","):
        return None
    if letter == "I" and match["sep"] == ",":
        return None
    if (other := _OR_MARK.match(rest)) and other[1] != letter:
        raise Unclear
    _refuse_other_text(letter, rest, options)
    return letter


def _is_list(text: str, options: dict[str, str]) -> bool:
    """Whether the text discusses several options in turn, so that the first of them is no answer."""
    marked = set(_MARK.findall(text))
    return len(marked & options.keys() if options else marked) > 1


def _last_option(lines: list[str], options: dict[str, str]) -> str | None:
    """The letter of a last line "B. the blue truck", unless it ends a list."""
    match = _LEADS.match(lines[-1])
    if match is None or any(_MARK.match(line) for line in lines[:-1]) or not _is_answer(match, lines[-1]):
        return None
    letter, rest = match["letter"].upper(), lines[-1][match.end() :]
    option = normalise(options.get(letter, ""))
    return letter if option and normalise(rest) == option else None


def _cued(text: str, options: dict[str, str]) -> str | None:
    """The last letter after "the answer is"; else the only one that is called right, or asked about and affirmed."""
    answers, last_end = list[str](), 0
    for cue in _ANSWER_CUE.finditer(text):
        is_answer = "answer" in cue[0].lower()
        if is_answer and not _is_refused(cue, text) and _has_second(cue, text):
            answers.append("")  # the last statement may be that two are right
        elif letter := _cued_letter(cue, text, options):
            answers.append(letter)
        else:
            continue
        last_end = cue.end()
    right = {letter for cue in _CALLED_RIGHT.finditer(text) if (letter := _cued_letter(cue, text, options))}
    if answers and _TAKEN_BACK.search(text, last_end):
        raise Unclear
    if not answers and not right and "?" in text and (affirmed := list(_AFFIRMED.finditer(text))):
        if _TAKEN_BACK.search(text, affirmed[-1].end()):
            raise Unclear
        right = {match["letter"].upper() for match in affirmed}
    if (answers and not answers[-1]) or len(right) > 1 or (answers and right - {answers[-1]}):
        raise Unclear
    return answers[-1] if answers else next(iter(right), None)


def _cued_letter(cue: re.Match[str], text: str, options: dict[str, str]) -> str | None:
    """The letter of a cue, if it refers to the answer: neither denied, nor one of several, nor an article."""
    if _is_refused(cue, text) or _has_second(cue, text):
        return None
    letter, wrapped = cue["letter"].upper(), bool(cue["open"].strip())
    after = text[cue.end("close") :]
    word = re.match(r"\s+([a-z']+)", after)
    ends = re.match(r"\s*(?:[.,;:!)\"']|$|\n|-\s)", after) is not None
    if cue["letter"].islower() and not wrapped and not (ends and (letter in options or not options)):
        return None
    if (
        letter in "AI"
        and not wrapped
        and word
        and word[1] not in _REASON
        and not _begins(after, options.get(letter, ""))
    ):
        return letter if cue.re is _CALLED_RIGHT and _VERB.search(cue[0]) else None
    _refuse_other_text(letter, after, options)
    return letter


def _is_answer(match: re.Match[str], text: str) -> bool:
    return not _is_refused(match, text) and not _has_second(match, text)


def _is_refused(match: re.Match[str], text: str) -> bool:
    """Whether the mention is denied, asked about or conditional."""
    start, end = match.start(), match.end("close")
    nearest = max(0, start - LONGEST_SENTENCE)
    sentence = max(nearest, *(text.rfind(mark, nearest, start) + 1 for mark in ".!?\n"))
    stop = re.search(r"[.!?\n]", text[end : end + 200])
    if stop and stop[0] == "?":
        return True
    before = text[sentence:start]
    clause = _CLAUSE_START.split(text[sentence : match.start("letter")])[-1]
    is_denied = _DENIES.search(clause) is not None and " but " not in match[0].lower()
    is_unsure = _UNSURE.search(clause) is not None or _CONDITION.search(before) is not None
    return is_denied or is_unsure or _DENIED.match(text, end) is not None


def _has_second(match: re.Match[str], text: str) -> bool:
    """Whether a second letter is coordinated with the mention: "A or B", "A, C", "A/B"."""
    end = match.end("close")
    second = _BOTH.match(text, end)
    if second and second["second"].islower() and match["letter"].isupper() and ")" not in second[0]:
        second = None  # "B and a car"
    second = second or _LISTED.match(text, end)
    if second is None or second["second"].upper() == match["letter"].upper():
        return False
    return not (
        (second["second"] in "AI" and re.match(r"\s+[a-z]", text[second.end() :])) or _DENIED.match(text, second.end())
    )


def _begins(rest: str, option: str) -> bool:
    return bool(option) and f"{normalise(rest)} ".startswith(f"{normalise(option)} ")


def _refuse_other_text(letter: str, rest: str, options: dict[str, str]) -> None:
    """Raise Unclear for "B. the red car" if the red car is option A."""
    text = normalise(rest.split("\n", 1)[0])
    texts = {normalise(option): other for other, option in options.items()}
    if text and texts.get(text, letter) != letter:
        raise Unclear


_ANSWER_PREFIX = re.compile(
    r"^\s*(?:so,?\s+|therefore,?\s+)?(?:the\s+)?(?:final\s+|correct\s+|best\s+)?answer\s*(?:is\b\s*:?|[:=])\s*",
    re.IGNORECASE,
)


def without_prefix(text: str) -> str:
    """Remove a leading "the answer is"."""
    return _ANSWER_PREFIX.sub("", text) if "nswer" in text else text


def _named_option(text: str, options: dict[str, str]) -> str | None:
    """The letter of the option whose text is the response, starts it, or is the only one that occurs in it."""
    answer = f" {normalise(without_prefix(text))} "
    texts = {letter: f" {normalise(option)} " for letter, option in options.items() if normalise(option)}
    if same := [letter for letter, option in texts.items() if option == answer]:
        return same[0] if len(same) == 1 else None
    named = []
    for letter, option in sorted(texts.items(), key=lambda item: -len(item[1])):
        if option in answer:
            named.append(letter)
            answer = answer.replace(option, " | ")  # "the dark red car" does not also name "the red car"
    if len(named) == 1:
        return None if _is_denied_text(text, options[named[0]]) else named[0]
    first = re.split(r"[.,;:!\n]", text, maxsplit=1)[0]
    return next((letter for letter in named if texts[letter] == f" {normalise(first)} "), None)


def _is_denied_text(text: str, option: str) -> bool:
    """Whether a clause denies an option by its text: "it is not the red car"."""
    phrase = f" {normalise(option)} "
    for clause in re.split(r"[.,;:!?\n]", text):
        before, match, after = f" {normalise(clause)} ".partition(phrase)
        if match and (_DENIES.search(before.rstrip()) or _DENIED.match(after)):
            return True
    return False


def _only_option(text: str, options: dict[str, str]) -> str | None:
    """The one letter after "option"; else the one in brackets, if no other option is mentioned by its letter."""
    cues = list(_OPTION_CUE.finditer(text))
    if any(_has_second(cue, text) for cue in cues):
        return None
    if named := {letter for cue in cues if (letter := _cued_letter(cue, text, options))}:
        return named.pop() if len(named) == 1 else None
    bracketed = {match["letter"] for match in _BRACKETED.finditer(text) if _is_answer(match, text)}
    others = set(_CAPITAL.findall(text)) & (options.keys() or set(_CAPITAL.findall(text)) - {"A", "I"})
    return bracketed.pop() if len(bracketed) == 1 and not others - bracketed else None
