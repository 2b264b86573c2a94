"""Probable label errors, from evaluations that agree on another answer, duplicate questions with contradicting labels,
and similar videos; the audit page for a person, and the file of answers that it saves.

The evidence against a label is summed as natural log odds. Each evaluation, and the vote of the nearest videos, is a
witness, weighted by its accuracy on questions of the same kind: a model that is often wrong there has little weight, so
that its weakness is not mistaken for an annotation error. No single witness outweighs a label.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.core.files import write_json, write_text
from vidqa.core.pages.page import page
from vidqa.evaluation.accuracy import video_clusters
from vidqa.evaluation.results import read_evaluation
from vidqa.evaluation.text import normalise
from vidqa.evaluation.thumbnails import card_frames
from vidqa.gaps.analysis.scored_answers import Answered, ScoredAnswer, ScoredAnswers
from vidqa.gaps.curation.embeddings import UnitVectors
from vidqa.gaps.curation.labels import read_saved
from vidqa.gaps.problems import INPUT

PRIOR = 0.05  # prior probability of a label error
MOST_OF_ONE = 2.5  # largest log odds of one witness, less than those of the prior
ALIKE = 0.5  # correlation of witnesses: discounts each further one
MOST_AUDITED = 2000  # most labels in the queue
NEIGHBOURS = 9
FEWEST = 12  # fewest answers to one question for a vote of neighbours
AT_ONCE = 1024  # rows of a block of similarities
QUEUE_SCHEMA, ANSWERS_SCHEMA = "vidqa.audit.v1", "vidqa.audit_answers.v1"
VERDICTS = ("right", "wrong", "unclear")
CARDS, FRAMES = 200, 6  # labels on the page, the most doubtful first; frames of each
SHOWN = 1500  # most characters of one text
Witness = Mapping[int, str]  # answers by their index in the scored answers


@dataclass(frozen=True)
class Suspect:
    """A label that may be wrong, by its index in the scored answers, with the most probable other answer."""

    at: int
    suggested: str
    score: float
    reasons: tuple[str, ...]

    @property
    def probability(self) -> float:
        return 1 / (1 + math.exp(-self.score))


def write_audit(
    path: Path,
    scored: ScoredAnswers,
    others: Sequence[Path],
    vectors: UnitVectors,
    audited: Mapping[str, Answered],
) -> list[dict[str, Any]]:
    """Write the audit queue, and beside it the page for a person, as .html. Returns the queue: doubtful labels, the
    most doubtful first, with a person's verdict if there is one. Raises RESULTS_FOLDER for another evaluation that does
    not exist."""
    answers = scored.answers
    parsed = {at: answer.parsed for at, answer in enumerate(answers) if answer.is_answer and answer.parsed}
    models: dict[str, Witness] = {"this evaluation": parsed}
    names = Counter(place.name for place in others)
    models |= {(place.name if names[place.name] == 1 else str(place)): _answers_of(place, scored) for place in others}
    suspects = suspects_of(answers, models, neighbour_labels(answers, vectors.media))
    items = [_item(suspect, answers[suspect.at], audited) for suspect in suspects[:MOST_AUDITED]]
    write_json(path, {"schema": QUEUE_SCHEMA, "count": len(items), "items": items})
    write_text(path.with_suffix(".html"), audit_page(items))
    return items


def _answers_of(place: Path, scored: ScoredAnswers) -> dict[int, str]:
    """The parsed answers of another evaluation, by the index of the same annotation's answer in this one."""
    annotations = scored.annotations
    index_of = {answer.row: at for at, answer in enumerate(scored.answers) if answer.row >= 0}
    joined, answers = bytearray(len(annotations.rows)), {}
    for item in read_evaluation(place)[0]:
        row = annotations.find(item, joined)[0]
        if row in index_of and item["parse_status"] == "parsed":
            joined[row] = 1
            answers[index_of[row]] = item["parsed_response"]
    return answers


def _item(suspect: Suspect, answer: ScoredAnswer, audited: Mapping[str, Answered]) -> dict[str, Any]:
    reply = audited.get(answer.sample_id, Answered(""))
    return {
        "sample_id": answer.sample_id,
        "video_id": answer.video,
        "question": answer.question,
        "kind": answer.kind,
        "label": answer.truth,
        "suggested": suspect.suggested,
        "probability": round(suspect.probability, 4),
        "score": suspect.score,
        "reasons": list(suspect.reasons),
        "verdict": reply.verdict,
        "answer": reply.answer,
    }


def suspects_of(answers: Sequence[ScoredAnswer], models: Mapping[str, Witness], neighbours: Witness) -> list[Suspect]:
    """All labels with evidence against them, the most doubtful first. `models` are the parsed answers of each
    evaluation, by its name."""
    witnesses = {**models, **({"the most similar videos": neighbours} if neighbours else {})}
    credible = {name: _credibility(answers, witness) for name, witness in witnesses.items()}
    duplicates = _contradictions(answers)
    suspects = []
    for at, answer in enumerate(answers):
        others = duplicates.get(at, Counter())
        against = _against(at, answer, witnesses, credible) if answer.parsed_truth else {}
        for label in others:
            against.setdefault(label, [])
        if not against:
            continue
        scores = {label: _score(evidence, others.get(label, 0), others) for label, evidence in against.items()}
        best = max(scores, key=lambda label: (scores[label], label))
        reasons = [f"suggested by {name}" for name, odds in against[best] if odds > 0]
        if others:
            reasons.append(f"{sum(others.values())} other labels of the same question about the same video differ")
        suspects.append(Suspect(at, best, round(scores[best], 4), tuple(reasons)))
    return sorted(suspects, key=lambda suspect: (-suspect.score, suspect.at))


def _score(evidence: Sequence[tuple[str, float]], duplicates: int, others: Counter[str]) -> float:
    """Log odds that the label is wrong and this answer right."""
    odds = math.log(PRIOR / (1 - PRIOR))
    if evidence:
        odds += math.fsum(value for _, value in evidence) / (1 + ALIKE * (len(evidence) - 1))
    if others:  # at least one of several contradicting labels is wrong
        odds += -math.log(PRIOR / (1 - PRIOR)) + math.log((duplicates + 0.5) / 1.5)
    return odds


def _against(
    at: int, answer: ScoredAnswer, witnesses: Mapping[str, Witness], credible: Mapping[str, Mapping[str, float]]
) -> dict[str, list[tuple[str, float]]]:
    """Signed evidence of every witness on each answer that some witness gives instead of the label."""
    replies = {name: witness[at] for name, witness in witnesses.items() if witness.get(at)}
    label, against = answer.parsed_truth, {}
    for other in {reply for reply in replies.values() if reply != label}:
        signs = {name: (reply == other) - (reply == label) for name, reply in replies.items()}
        against[other] = [(name, sign * credible[name].get(answer.kind, 0.0)) for name, sign in signs.items() if sign]
    return against


def _credibility(answers: Sequence[ScoredAnswer], witness: Witness) -> dict[str, float]:
    """Log odds by kind of question that a witness gives the right answer and not a particular wrong one, at least 0. It
    is the weight of the witness."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    labels: dict[str, set[str]] = defaultdict(set)
    for at, reply in witness.items():
        answer = answers[at]
        total[answer.kind] += 1
        right[answer.kind] += reply == answer.parsed_truth
        labels[answer.kind].add(answer.parsed_truth)
    odds = {}
    for kind, count in total.items():
        share = (right[kind] + 1) / (count + 2)
        other = (1 - share) / max(1, len(labels[kind]) - 1)
        odds[kind] = min(MOST_OF_ONE, max(0.0, math.log(share / other)))
    return odds


def _contradictions(answers: Sequence[ScoredAnswer]) -> dict[int, Counter[str]]:
    """Counts of the other labels, for each answer whose question is repeated for the same video with different
    labels."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at, answer in enumerate(answers):
        if answer.video and answer.parsed_truth:
            groups[answer.video, normalise(answer.question)].append(at)
    others = {}
    for indices in groups.values():
        labels = Counter(answers[at].parsed_truth for at in indices)
        for at in indices if len(labels) > 1 else ():
            others[at] = Counter({label: n for label, n in labels.items() if label != answers[at].parsed_truth})
    return others


def neighbour_labels(answers: Sequence[ScoredAnswer], media: Mapping[str, np.ndarray]) -> dict[int, str]:
    """The majority label of the nearest videos with the same question, by the index of an answer."""
    groups: dict[str, list[int]] = defaultdict(list)
    for at, answer in enumerate(answers):
        if answer.sample_id in media and answer.parsed_truth:
            groups[normalise(answer.question)].append(at)
    labels: dict[int, str] = {}
    for indices in groups.values():
        if len(indices) >= FEWEST:
            labels |= _votes([answers[at] for at in indices], indices, media)
    return labels


def _votes(members: Sequence[ScoredAnswer], indices: Sequence[int], media: Mapping[str, np.ndarray]) -> dict[int, str]:
    vectors_ND = np.stack([media[answer.sample_id] for answer in members])
    videos = np.unique(video_clusters(answer.video for answer in members), return_inverse=True)[1]
    most, labels = min(NEIGHBOURS, len(members) - 1), {}
    for start in range(0, len(members), AT_ONCE):
        alike_BN = vectors_ND[start : start + AT_ONCE] @ vectors_ND.T
        alike_BN[videos[start : start + AT_ONCE, None] == videos[None, :]] = -2.0  # a video has no vote on itself
        nearest_BK = np.argpartition(-alike_BN, most - 1, axis=1)[:, :most]
        for row, nearest in enumerate(nearest_BK):
            votes = Counter(members[at].parsed_truth for at in nearest.tolist())
            label, count = max(votes.items(), key=lambda item: (item[1], item[0]))
            if 2 * count > most:
                labels[indices[start + row]] = label
    return labels


def audit_page(items: Sequence[dict[str, Any]]) -> str:
    """HTML of the audit page, one file that needs no network."""
    frames = cache(lambda video: card_frames(video, FRAMES))
    cards = []
    for item in items[:CARDS]:
        texts = {name: value[:SHOWN] for name, value in item.items() if isinstance(value, str)}
        cards.append({**item, **texts, **frames(str(item["video_id"]))})
    return page(
        "gaps/analysis/audit.html.j2",
        title="Label review",
        cards=cards,
        count=len(items),
        verdicts=VERDICTS,
        schema=ANSWERS_SCHEMA,
    )


def read_answers(path: Path) -> dict[str, Answered]:
    """Read a person's answers by sample id. Raises CURATION_INPUT."""
    table = read_saved(path)
    answers = table.get("answers") if isinstance(table, dict) and table.get("schema") == ANSWERS_SCHEMA else None
    if not isinstance(answers, dict):
        raise INPUT.error(path, f"it is not an object of schema {ANSWERS_SCHEMA} with answers")
    return {name: _answered(path, name, value) for name, value in answers.items()}


def _answered(path: Path, name: str, value: Any) -> Answered:
    verdict, answer = (value.get("verdict"), value.get("answer", "")) if isinstance(value, dict) else (None, "")
    if verdict not in VERDICTS or not isinstance(answer, str):
        message = f"{str(value)[:80]} has no verdict that is one of {', '.join(VERDICTS)}"
        raise INPUT.error(f"{path} {name}", message)
    return Answered(verdict, answer.strip())


def add_answers(path: Path, store: Path) -> None:
    """Add the answers in a file to those in `store`, where they replace earlier ones of the same samples.

    Raises CURATION_INPUT, also for a damaged `store`, and then leaves `store` unchanged.
    """
    answers = {**(read_answers(store) if store.is_file() else {}), **read_answers(path)}
    table = {name: answer._asdict() for name, answer in answers.items()}
    write_json(store, {"schema": ANSWERS_SCHEMA, "answers": table})
