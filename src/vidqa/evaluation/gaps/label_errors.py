"""Which labels are probably wrong: evaluations that agree on another answer, twins that contradict, alike videos.

The evidence against a label is counted in natural logs of odds. Each evaluation, and the vote of the nearest videos, is
a witness that is as credible as it is right on questions of the same kind: who is often wrong there says little, so
that a weakness of the model is not taken for a mistake of the annotator. No witness alone outweighs a label.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vidqa.evaluation.gaps.scored_answers import Judged
from vidqa.evaluation.text import normalise

PRIOR = 0.05  # of a label, to be wrong
MOST_OF_ONE = 2.5  # what one witness may say, below the odds of the prior
ALIKE = 0.5  # how much of what a further witness says the others have said already
Key = tuple[str, str]
Witness = Mapping[int, str]  # the answer by its place among the judged


@dataclass(frozen=True)
class Suspect:
    """A label that may be wrong, at its place among the judged answers, with the answer that speaks against it."""

    at: int
    suggested: str
    score: float
    reasons: tuple[str, ...]

    @property
    def probability(self) -> float:
        return 1 / (1 + math.exp(-self.score))


def suspects(judged: Sequence[Judged], models: Mapping[str, Witness], neighbours: Witness) -> list[Suspect]:
    """Every label against which something speaks, the most doubtful first. `models` are the parsed answers of each
    evaluation, by its name."""
    witnesses = {**models, **({"the most similar videos": neighbours} if neighbours else {})}
    credible = {name: _credibility(judged, said) for name, said in witnesses.items()}
    twins = _twins(judged)
    found = []
    for at, each in enumerate(judged):
        if not each.parsed_truth:
            continue
        against = _against(at, each, witnesses, credible)
        others = twins.get(at, Counter())
        for answer in others:
            against.setdefault(answer, [])
        if not against:
            continue
        scored = {answer: _score(said, others.get(answer, 0), others) for answer, said in against.items()}
        best = max(scored, key=lambda answer: (scored[answer], answer))
        reasons = [f"{name} says so" for name, odds in against[best] if odds > 0]
        if others:
            reasons.append(f"{sum(others.values())} other labels of the same question about the same video differ")
        found.append(Suspect(at, best, round(scored[best], 4), tuple(reasons)))
    return sorted(found, key=lambda suspect: (-suspect.score, suspect.at))


def _score(said: Sequence[tuple[str, float]], twins: int, others: Counter[str]) -> float:
    """Log odds that the label is wrong and this answer right."""
    odds = math.log(PRIOR / (1 - PRIOR))
    if said:
        odds += math.fsum(value for _, value in said) / (1 + ALIKE * (len(said) - 1))
    if others:  # of labels that contradict each other at least one is wrong
        odds += -math.log(PRIOR / (1 - PRIOR)) + math.log((twins + 0.5) / 1.5)
    return odds


def _against(
    at: int, each: Judged, witnesses: Mapping[str, Witness], credible: Mapping[str, Mapping[str, float]]
) -> dict[str, list[tuple[str, float]]]:
    """For each answer that some witness gives instead of the label: what every witness says about the two."""
    said = {name: answers[at] for name, answers in witnesses.items() if answers.get(at)}
    others = {answer for answer in said.values() if answer != each.parsed_truth}
    found = {}
    for answer in others:
        odds = {name: credible[name].get(each.kind, 0.0) for name in said}
        signs = {name: (given == answer) - (given == each.parsed_truth) for name, given in said.items()}
        found[answer] = [(name, sign * odds[name]) for name, sign in signs.items() if sign]
    return found


def _credibility(judged: Sequence[Judged], said: Witness) -> dict[str, float]:
    """By kind of question: how many times likelier a witness is to give the right answer than one certain wrong one, in
    logs, at least 0."""
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    answers: dict[str, set[str]] = defaultdict(set)
    for at, answer in said.items():
        each = judged[at]
        asked[each.kind] += 1
        right[each.kind] += answer == each.parsed_truth
        answers[each.kind].add(each.parsed_truth)
    found = {}
    for kind, count in asked.items():
        share = (right[kind] + 1) / (count + 2)
        other = (1 - share) / max(1, len(answers[kind]) - 1)
        found[kind] = min(MOST_OF_ONE, max(0.0, math.log(share / other)))
    return found


def _twins(judged: Sequence[Judged]) -> dict[int, Counter[str]]:
    """Of each answer whose question is asked about the same video more than once with different labels: how often each
    of the other labels was given."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at, each in enumerate(judged):
        if each.video and each.parsed_truth:
            groups[each.video, normalise(each.question)].append(at)
    found = {}
    for places in groups.values():
        labels = Counter(judged[at].parsed_truth for at in places)
        if len(labels) > 1:
            for at in places:
                found[at] = Counter({label: n for label, n in labels.items() if label != judged[at].parsed_truth})
    return found
