"""Beside the gap table: slices, confusions and clusters as JSON, and the audit queue with its page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.contract.files import write_json, write_text
from vidqa.evaluation.gaps.analyze import ERROR_TYPES, Kept
from vidqa.evaluation.gaps.audit_answers import Answered
from vidqa.evaluation.gaps.audit_page import audit_page
from vidqa.evaluation.gaps.confusion import confusions, yes_no
from vidqa.evaluation.gaps.embeddings import Vectors, clusters_of, neighbours_say, read_embeddings
from vidqa.evaluation.gaps.label_errors import Suspect, suspects
from vidqa.evaluation.gaps.scored_answers import Judged
from vidqa.evaluation.gaps.slices import slices_of
from vidqa.evaluation.gaps.video_stats import looks_of
from vidqa.evaluation.other_results import read_evaluation
from vidqa.pages.page import percent

SLICES, AUDIT = "vidqa.slices.v1", "vidqa.audit.v1"
MOST_AUDITED = 2000  # labels in the queue
SHOWN = 8  # slices on the terminal
NAMED = 3  # slices in a sentence


def write_deeper(
    kept: Kept,
    audited: Mapping[str, Answered],
    slices: Path | None,
    audit: Path | None,
    embeddings: Path | None,
    others: Sequence[Path],
) -> tuple[dict[str, Any], str]:
    """Write what is asked for; returns what --json and a person are told of it."""
    vectors = vectors_of(kept, embeddings)
    data: dict[str, Any] = {}
    lines = []
    if slices:
        table = write_slices(slices, kept, vectors)
        data |= {"slices": str(slices), "worst_slices": table["slices"][:SHOWN], "slices_say": slices_sentence(table)}
        lines.append(slices_text(table))
    if audit:
        items = audit_items(kept, others, vectors, audited)
        page = write_audit(audit, items)
        likely = sum(each["probability"] >= 0.5 and not each["verdict"] for each in items)
        data |= {"audit": str(audit), "audit_page": str(page), "doubtful": len(items), "probably_wrong": likely}
        lines.append(f"{len(items)} doubtful labels, {likely} of them probably wrong: {page}")
    return data, "\n".join(lines)


@dataclass(frozen=True)
class Vectored:
    """Unit vectors of the evaluated samples, by id; empty without embeddings."""

    media: Vectors
    texts: Vectors


def vectors_of(kept: Kept, embeddings: Path | None) -> Vectored:
    """Raises GAPS_EMBEDDINGS."""
    if embeddings is None:
        return Vectored({}, {})
    return Vectored(*read_embeddings(embeddings, {each.sample_id for each in kept.judged}))


def write_slices(path: Path, kept: Kept, vectors: Vectored) -> dict[str, Any]:
    """Write slices.json, and return what it says."""
    judged = kept.judged
    clusters = clusters_of(judged, vectors.media, vectors.texts)
    looks = looks_of(each.video for each in judged)
    found = slices_of(judged, kept.extras, looks, clusters)
    answers = [each for each in judged if each.is_answer]
    wrong = sum(each.error == "wrong" for each in answers)
    table = {
        "schema": SLICES,
        "n": len(answers),
        "wrong": wrong,
        "rate": wrong / len(answers) if answers else None,
        "unanswered": _unanswered(judged),
        "videos_looked_at": len(looks),
        "slices": [each.as_dict() for each in found],
        "yes_no": yes_no(judged),
        "confusions": confusions(judged),
    }
    write_json(path, table)
    return table


def _unanswered(judged: Sequence[Judged]) -> dict[str, dict[str, int]]:
    """Answers that do not show what the model knows, by the reason, then by kind."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for each in judged:
        if not each.is_answer:
            found[each.error][each.kind] += 1
    return {error: dict(found[error].most_common()) for error in ERROR_TYPES if error in found}


def slices_sentence(table: Mapping[str, Any]) -> str:
    """The slices that hold all wrong answers, and those that fail surely more than the whole."""
    parts = [part for part in table["slices"] if part["n"] < table["n"]]
    holding = [part for part in parts if 1 < part["wrong"] == table["wrong"]]
    others = [part for part in parts if part["ci95"][0] > (table["rate"] or 0.0) and part not in holding]
    said = [
        f"{begin} {', '.join(map(_counted, chosen[:NAMED]))}."
        for begin, chosen in (("All wrong answers are in", holding), ("Wrong more often than elsewhere:", others))
        if chosen
    ]
    return " ".join(said) or "No slice fails surely more than the whole."


def _counted(part: Mapping[str, Any]) -> str:
    return f"{part['dimension']} {part['name']} ({part['wrong']} of {part['n']})"


def slices_text(table: Mapping[str, Any]) -> str:
    """The slices that fail surely more than the whole."""
    rate = table["rate"] or 0.0
    standing_out = [each for each in table["slices"] if each["ci95"][0] > rate][:SHOWN]
    if not standing_out:
        return "no slice fails surely more than the whole"
    rows = [
        f"  {each['dimension']} {each['name']}: {each['wrong']} of {each['n']} wrong, {percent(each['rate'])} "
        f"({percent(each['ci95'][0])} to {percent(each['ci95'][1])}), {each['lift']:.1f} times the whole"
        for each in standing_out
    ]
    return "\n".join([f"slices that fail more than the whole ({percent(rate)}):", *rows])


def audit_items(
    kept: Kept, others: Sequence[Path], vectors: Vectored, audited: Mapping[str, Answered]
) -> list[dict[str, Any]]:
    """The queue: labels against which something speaks, the most doubtful first, with what a person has said of each.

    Raises RESULTS_MISSING for another evaluation that is not there."""
    judged = kept.judged
    models = {"this evaluation": {at: each.parsed for at, each in enumerate(judged) if each.is_answer and each.parsed}}
    models |= {place.name: _answers_of(place, kept) for place in others}
    found = suspects(judged, models, neighbours_say(judged, vectors.media))
    return [_item(suspect, judged[suspect.at], audited) for suspect in found[:MOST_AUDITED]]


def _answers_of(place: Path, kept: Kept) -> dict[int, str]:
    """The parsed answers of another evaluation of the same questions, by their place in this one; both are joined by
    their annotations."""
    annotations = kept.annotations
    assert annotations is not None  # analyze sets it
    known = {judged.row: at for at, judged in enumerate(kept.judged) if judged.row >= 0}
    seen, answers = bytearray(len(annotations.ids)), {}
    for item in read_evaluation(place)[0]:
        row = annotations.find(item, seen)[0]
        if row in known and item["parse_status"] == "parsed":
            seen[row] = 1
            answers[known[row]] = item["parsed_response"]
    return answers


def _item(suspect: Suspect, each: Judged, audited: Mapping[str, Answered]) -> dict[str, Any]:
    said = audited.get(each.sample_id, Answered(""))
    return {
        "sample_id": each.sample_id,
        "video_id": each.video,
        "question": each.question,
        "kind": each.kind,
        "label": each.truth,
        "suggested": suspect.suggested,
        "probability": round(suspect.probability, 4),
        "score": suspect.score,
        "reasons": list(suspect.reasons),
        "verdict": said.verdict,
        "answer": said.answer,
    }


def write_audit(path: Path, items: Sequence[dict[str, Any]]) -> Path:
    """Write audit.json and the page beside it that a person answers; returns the page."""
    page = path.with_suffix(".html")
    write_json(path, {"schema": AUDIT, "count": len(items), "items": list(items)})
    write_text(page, audit_page(items))
    return page
