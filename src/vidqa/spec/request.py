"""What a request says about a hyper-parameter search, read from the user's own words.

Words near a name of the search decide: from `AutoML`, `HPO`, `sweep` ... the clause is read to both sides for as long
as the words are ones that people put between a negation and what it negates. Negations are counted, so that "do not
disable AutoML" is no wish to be without it. What this does not follow is `UNCLEAR`, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class Wish(StrEnum):
    """What the words ask for."""

    OFF = "off"  # no search
    ON = "on"  # a search
    UNCLEAR = "unclear"  # they are about a search, and not an order
    NONE = "none"  # they are not about a search


@dataclass(frozen=True)
class Words:
    """A wish and the part of the request that it was read from, as the user wrote it."""

    wish: Wish
    said: str = ""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HYPER = r"(?:hyper[- ]?param(?:eter)?s?|hp|hparams?)"
KNOB = rf"(?:{HYPER}|learning[- ]rates?|lr|batch[- ]sizes?|weight[- ]decay|lora[- ]ranks?)"
OF_IT = r"(?:(?:the|a|an|any|my|our|your|its|all|best|right|good|optimal|different|several|many|some|few|other)[ ]+)*"
SEARCHING = r"(?:search|sweep|tun[ei]|optimi[sz]|explor|scan|stud(?:y|ies)|selection)\w*"
# How people name the search.
SEARCH = re.compile(
    rf"\bauto[- ]?(?:ml|tun(?:e|ing)|hpo)\b|\bhpo\b|\b{KNOB}[- ]*{SEARCHING}"
    rf"|\b(?:grid|random|bayesian|parameter|configuration|config)[- ]*(?:search|sweep|optimi[sz]ation|scan)\w*"
    rf"|\b(?:optuna|hyperband|asha|bohb|ray tune)\b|\bsweep(?:s|ing)?\b|\btrials\b"
    r"|\b(?:search|tune|tuning|optimi[sz]e|find|choose|pick|explore|try)(?:ing|es)? +(?:out +|for +|over +|of +)*"
    rf"{OF_IT}{KNOB}\b"
    r"|\b(?:try|compare|explore)(?:ing)? +\d+ +(?:configurations?|settings|variants|combinations)\b"
    rf"|(?<=no )(?:tuning|search(?:es|ing)?)\b(?! +(?:for|in|the|of|index))"
    rf"|(?<=without )(?:(?:any|a|the) )?(?:tuning|search(?:es|ing)?)\b(?! +(?:for|in|the|of|index))"
    rf"|(?<=skip )(?:(?:any|all|the) )?(?:tuning|search(?:es|ing)?)\b(?! +(?:for|in|the|of|index))"
)
# How people name training without one.
PLAIN = re.compile(
    r"\b(?:plain|vanilla|ordinary|direct|normal|regular|simple|straightforward|bare)[- ]+"
    r"(?:sft|training|(?:training[- ]+)?run|fine[- ]?tun(?:e|ing)|supervised[- ]+(?:training|fine[- ]?tuning))\b"
    r"|\b(?:just|only|simply) +(?:train|fine[- ]?tune)(?: +(?:it|once))?(?= *(?:$|,|please|directly|with the defaults))"
    r"|\b(?:just|simply) +(?:train|fine[- ]?tune)(?: +(?:it|this|them))? +(?:on|with|using|from)\b"
    r"|\btrain(?:ing)? +(?:directly|straight away)\b|\bstraight +to +training\b"
    r"|\b(?:a +)?(?:single|one) +training +run\b|\b(?:single|one) +run(?: +only| *$| *,)"
    r"|\b(?:the|my|these|those|default|fixed|given|exact) +(?:exact +|default +|fixed +|given +)*"
    rf"{HYPER}(?= +(?:as they are|as given|only|unchanged)|\s*$)"
)
NEGATION = _words(
    "no not never without skip skips skipping disable disables disabled disabling off avoid avoids avoiding stop "
    "omit omitting exclude excluding excluded drop dropping ignore forget neither nor cancel deactivate deactivated "
    "bypass bypassing out against unneeded unnecessary needless unwanted false remove minus rather_than instead_of "
    "spare refuse decline free skipped omitted avoided dropped refrain"
)
# A name of the search that is itself an order.
DOING = re.compile(r"(?:search|sweep|tune|optimi[sz]e|find|choose|pick|explore|try)\b")
# What stands between a negation and the search, or after it, and changes nothing.
BETWEEN = _words(
    "a an the any all kind sort form type of to do does did i we you me us it them this that these my our your its "
    "want wants wanted need needs needed wish like would will shall can could must should be being is are have has "
    "use uses using used run runs running start starting launch launching go going through for and or with by turn "
    "turns turned turning switch switched switching set shut leave leaving keep kept keeping make please just at "
    "expensive costly long automatic automated fancy full another more further bother required necessary wanted "
    "enable enabled enabling on true perform performing include including into get getting let there yet now today "
    "here simply even train training interested in either think thing stuff part phase step stage mode program job "
    "jobs loop desired spend spending waste wasting time gpu compute money hours budget from"
)
WANTING = _words(
    "use using run running enable enabled on true with do start want need perform include launch let turn_on go please "
    "make try"
)
# Words that make a sentence something other than an order.
NO_ORDER = re.compile(
    r"^ *(?:how|what|why|when|which|who|where|explain|describe|tell|is|are|was|were|do(?! +(?:an?|some)\b)|does|did"
    r"|should|has|have)\b"
    r"(?! +not\b)"
    r"|\b(?:whether|unsure|not sure|maybe|perhaps|might|wonder\w*|if|unless|depends|last (?:time|week|month|run|year)"
    r"|previous(?:ly)?|earlier|yesterday|used to|was|were|had|later|afterwards|says?|said|documentation|docs?"
    r"|difference|compare[ds]?|versus|vs|called|named|about|paper|video of|ask(?:ed)? me)\b"
)
POLITE = re.compile(r"^ *(?:please +)?(?:can|could|would|will) +(?:you|we)\b|\bif +(?:possible|you can|you please)\b")
SPELLINGS = [
    (r"[\u2018\u2019\u02bc`]", "'"),
    (r"\b(can|do|does|did|is|are|was|were|would|should|could|must|need|have|has)n'?t\b", r"\1 not"),
    (r"\bwon't\b", "will not"),
    (r"\bcannot\b", "can not"),
    (r"\bw/o\b|\bsans\b", "without"),
    (r"\b(?:try|find|check|carr(?:y|ies)|figure|work|test|trying|carrying|finding)(?:ed|ing)? +out\b", "try"),
    (r"\bdo away with\b|\bdispense with\b|\bdo without\b|\bget rid of\b|\bdon'?t bother with\b", "without"),
    (r"\bbother with\b", "bother"),
    (r"\bforget about\b", "forget"),
    (r"\bneither\b(.*)\bnor\b", r"no\1or"),
    (r"\boff +with\b", "off, with"),
    (r"\b(?:rather than|instead of)\b", "instead_of"),
    (r"\bnot +(?:just|only)\b", "also"),
    (r"\bno +(?:longer|more)\b", "not"),
    (r"^ *no *,", ""),
    (r"\bnot +(?:necessary|needed|wanted|required) +to\b|\bno +need +(?:to|for|of)\b", "not"),
    (r"\bturn(?:ed|ing)? +on\b", "turn_on"),
    (r"\b(?:hpo|automl|auto-ml|search)[- ]free\b", "without automl"),
    (r"(?:--)?\bautoml[-_ ]policy\b", "automl"),
    (r"(?:--)?\bno-(?=automl\b|hpo\b|sweeps?\b)", "no "),
]


def read(request: str) -> Words:
    """The wish of a whole request. Clauses that disagree make it unclear."""
    found = [words for sentence in re.split(r"(?<=[.!?;\n])\s+|[;\n]", request) for words in _sentence(sentence)]
    wishes = {words.wish for words in found}
    if not found:
        return Words(Wish.NONE)
    if len(wishes) == 1:
        return found[0]
    return Words(Wish.UNCLEAR, "; ".join(dict.fromkeys(words.said for words in found)))


def _sentence(sentence: str) -> list[Words]:
    plain = sentence.lower()
    for spelling, instead in SPELLINGS:
        plain = re.sub(spelling, instead, plain)
    order = bool(POLITE.search(plain)) or not (plain.rstrip().endswith("?") or NO_ORDER.search(plain))
    plain = POLITE.sub(" ", plain)
    said = sentence.strip(" .,;!")
    found = []
    for clause in _clauses(plain):
        for wish in _clause(clause):
            found.append(Words(wish if order else Wish.UNCLEAR, said))
    return found


def _clauses(sentence: str) -> list[str]:
    """The parts between commas and "but"; a list ("no HPO, AutoML or sweeps") stays one."""
    parts: list[str] = []
    goes_on = False  # the last part is about a search, so that a bare name after it is one more of its list
    for part in re.split(r",|\bbut\b|\bthen\b|[()]| - | – | — ", sentence):
        words = [word for word in part.split() if word not in ("and", "or", "nor")]
        if goes_on and 0 < len(words) < 4 and SEARCH.match(" ".join(words)):
            parts[-1] += " and " + " ".join(words)
        else:
            parts.append(part)
            goes_on = bool(_clause(part))
    return parts


def _clause(clause: str) -> list[Wish]:
    """One wish for all names of the search in a clause, and one for each name of a plain training."""
    searches = [match.span() for match in SEARCH.finditer(clause)]
    wishes = [_about_search(clause, searches)] if searches else []
    for match in PLAIN.finditer(clause):
        if not any(start < match.end() and match.start() < end for start, end in searches):
            before = _list(clause[: match.start()])[::-1]
            denied = _negations(_near(before)) % 2 or "also" in before[:2]
            wishes.append(Wish.UNCLEAR if denied else Wish.OFF)
    return wishes


def _about_search(clause: str, spans: list[tuple[int, int]]) -> Wish:
    before, after = _list(clause[: spans[0][0]])[::-1], _list(clause[spans[-1][1] :])
    gaps = [_negations(_list(clause[end:start])) for (_, end), (start, _) in pairwise(spans)]
    near = [*_near(before), *_near(after)]
    count = _negations(near)
    if any(gap not in (0, count) for gap in gaps) or _negations([*before, *after]) > count:
        return Wish.UNCLEAR  # a negation of something else, or of one search among several
    if count:
        return Wish.OFF if count % 2 else Wish.ON
    return Wish.ON if WANTING.intersection(near) or DOING.match(clause[spans[0][0] :]) else Wish.UNCLEAR


def _list(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text)


def _negations(words: list[str]) -> int:
    return sum(word in NEGATION for word in words)


def _near(words: list[str]) -> list[str]:
    """The words up to the first that has nothing to do with the search."""
    for at, word in enumerate(words):
        if not (word in NEGATION or word in BETWEEN or word in WANTING or word.isdecimal()):
            return words[:at]
    return words
