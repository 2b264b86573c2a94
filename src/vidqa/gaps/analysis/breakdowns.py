"""Breakdown of errors by slice: kind, tag, length, brightness, motion, time of the event, and cluster; false positives
and negatives; confusions between answers.

Each slice has the number of its answers, the number and share of wrong ones, the 95 % interval of the share by video,
and the lift: its share divided by the share of all. Truncated and unreadable answers are counted separately: they do
not show what the model knows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vidqa.core.cli import counting
from vidqa.core.files import write_json
from vidqa.core.pages.page import percent
from vidqa.core.problem import ProblemError
from vidqa.data.archive import archive_and_member
from vidqa.evaluation.accuracy import accuracy_interval, video_clusters
from vidqa.evaluation.choices import options_of
from vidqa.evaluation.text import normalise
from vidqa.evaluation.thumbnails import gray_frames
from vidqa.gaps.analysis.annotations import Extra
from vidqa.gaps.analysis.scored_answers import ERROR_TYPES, ScoredAnswer, ScoredAnswers
from vidqa.gaps.curation.embeddings import UnitVectors

SCHEMA = "vidqa.slices.v1"
FEWEST = 5  # fewest answers of a listed slice
FEWEST_VIDEOS = 12  # fewest videos with a statistic, for slices by it
MOST = 500  # most slices in the table, those with the highest lift first
THIRDS = ("first third", "middle third", "last third")
MOST_PAIRS = 100
MOST_SHOWN = 80  # most characters of an answer
ON_TERMINAL, NAMED = 8, 3  # most slices on the terminal, and in a sentence
MOST_VIDEOS = 2000  # most videos to measure; of more, an even sample
FRAMES, WIDTH = 6, 48  # evenly spaced frames of a video, and their width in pixels
DECODED_AT_ONCE = 4
PER_CLUSTER, MOST_CLUSTERS = 25, 40
ROUNDS = 30  # iterations of k-means


def write_slices(path: Path, scored: ScoredAnswers, vectors: UnitVectors) -> dict[str, Any]:
    """Write slices.json, and return its content."""
    clusters = _clusters_of(scored.answers, vectors)
    stats = _stats_of(answer.video for answer in scored.answers)
    readable = [answer for answer in scored.answers if answer.is_answer]
    wrong = sum(answer.error == "wrong" for answer in readable)
    table = {
        "schema": SCHEMA,
        "n": len(readable),
        "wrong": wrong,
        "rate": wrong / len(readable) if readable else None,
        "unanswered": _unanswered(scored.answers),
        "videos_looked_at": len(stats),
        "slices": _slices_of(scored.answers, scored.annotations.extras, stats, clusters),
        "yes_no": _yes_no(readable),
        "confusions": _confusions(readable),
    }
    write_json(path, table)
    return table


def _unanswered(answers: Sequence[ScoredAnswer]) -> dict[str, dict[str, int]]:
    """Counts of answers that do not show what the model knows, by error type, then by kind."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for answer in answers:
        if not answer.is_answer:
            counts[answer.error][answer.kind] += 1
    return {error: dict(counts[error].most_common()) for error in ERROR_TYPES if error in counts}


def _slices_of(
    answers: Sequence[ScoredAnswer],
    extras: Mapping[int, Extra],
    stats: Mapping[str, VideoStats],
    clusters: Mapping[int, str],
) -> list[dict[str, Any]]:
    """All slices, those that fail significantly more often than the whole first. `extras` are by annotation row,
    `stats` by video, `clusters` by the index of an answer."""
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, answer in enumerate(answers):
        for key in _keys(answer, extras.get(answer.row, Extra()), stats.get(answer.video)):
            members[key].append(index)
        if index in clusters:
            members["cluster", clusters[index]].append(index)
    members.update(_thirds(answers, stats))
    readable = [answer for answer in answers if answer.is_answer]
    whole = sum(answer.error == "wrong" for answer in readable) / len(readable) if readable else 0.0
    slices = [_slice(key, [answers[index] for index in indices], whole) for key, indices in members.items()]
    listed = [part for part in slices if part["n"] >= FEWEST]
    return sorted(listed, key=lambda part: (-part["ci95"][0] if whole else 0, -part["wrong"], part["name"]))[:MOST]


def _keys(answer: ScoredAnswer, extra: Extra, stats: VideoStats | None) -> list[tuple[str, str]]:
    """The slices of a record, as (dimension, name)."""
    keys = [("kind", answer.kind), ("answer kind", answer.answer_kind), *extra.tags]
    if extra.span and stats and stats.seconds > 0:
        middle = sum(extra.span) / 2 / stats.seconds
        keys.append(("place of the event", THIRDS[min(2, int(3 * middle))]))
    return [key for key in dict.fromkeys(keys) if key[1]]


def _thirds(answers: Sequence[ScoredAnswer], stats: Mapping[str, VideoStats]) -> dict[tuple[str, str], list[int]]:
    """Indices of answers by terciles of the videos' length, brightness and motion."""
    members = {}
    for dimension, unit, scale, field in (
        ("length", " s", 1.0, "seconds"),
        ("brightness", " %", 100.0, "brightness"),
        ("motion", " %", 100.0, "motion"),
    ):
        values = {video: scale * getattr(row, field) for video, row in stats.items()}
        if len(values) < FEWEST_VIDEOS:
            continue
        low, high = (float(edge) for edge in np.quantile(sorted(values.values()), [1 / 3, 2 / 3]))
        if not low < high:
            continue
        names = (f"up to {low:.3g}{unit}", f"{low:.3g} to {high:.3g}{unit}", f"over {high:.3g}{unit}")
        for name, (least, most) in zip(names, ((-1.0, low), (low, high), (high, np.inf)), strict=True):
            indices = [at for at, answer in enumerate(answers) if least < values.get(answer.video, np.nan) <= most]
            if indices:
                members[dimension, name] = indices
    return members


def _slice(key: tuple[str, str], answers: Sequence[ScoredAnswer], whole: float) -> dict[str, Any]:
    """A slice: `n` readable answers, `wrong` of them; their share `rate`; `lift`, its ratio to that of all answers."""
    readable = [answer for answer in answers if answer.is_answer]
    counts = _wrong(readable)
    rate = counts["rate"] or 0.0
    return {
        "dimension": key[0],
        "name": key[1],
        "n": len(readable),
        "videos": len(set(video_clusters(answer.video for answer in readable))),
        "wrong": counts["wrong"],
        "rate": round(rate, 6),
        "ci95": counts["ci95"] or [0.0, 1.0],
        "lift": round(rate / whole, 4) if whole else None,
        "unanswered": len(answers) - len(readable),
    }


class VideoStats(NamedTuple):
    """Statistics of a video: `seconds`; mean `brightness` and mean change between frames (`motion`), both 0..1."""

    seconds: float
    brightness: float
    motion: float


def _stats_of(videos: Iterable[str]) -> dict[str, VideoStats]:
    """The statistics of each video that is on this machine and can be decoded, by its name in results."""
    local = [video for video in dict.fromkeys(videos) if _is_local(video)]
    chosen = local[:: -(-len(local) // MOST_VIDEOS)] if local else []
    stats = {}
    with counting("looking at videos", len(chosen)) as advance, ThreadPoolExecutor(DECODED_AT_ONCE) as pool:
        for video, row in zip(chosen, pool.map(_stats, chosen), strict=True):
            advance()
            if row is not None:
                stats[video] = row
    return stats


def _is_local(video: str) -> bool:
    path, _ = archive_and_member(video) or (video, None)
    return "://" not in video and Path(path).is_file()


def _stats(video: str) -> VideoStats | None:
    try:
        seconds, frames_THW = gray_frames(video, FRAMES, WIDTH)
    except ProblemError:  # broken or hanging: the evaluation has reported it
        return None
    motion = float(np.abs(np.diff(frames_THW, axis=0)).mean()) if len(frames_THW) > 1 else 0.0
    return VideoStats(seconds, round(float(frames_THW.mean()) / 255, 5), round(motion / 255, 5))


def _clusters_of(answers: Sequence[ScoredAnswer], vectors: UnitVectors) -> dict[int, str]:
    """The cluster of each answer with embeddings, by its index; clusters are named by their main kind and question."""
    indices = [at for at, answer in enumerate(answers) if answer.sample_id in vectors.media]
    count = min(MOST_CLUSTERS, len(indices) // PER_CLUSTER)
    if count < 2:
        return {}
    from scipy.cluster.vq import kmeans2

    joined_ND = np.stack([_joined(answers[at].sample_id, vectors) for at in indices])
    labels_N = kmeans2(joined_ND, _far_apart(joined_ND, count), iter=ROUNDS, minit="matrix")[1]
    members: dict[int, list[int]] = defaultdict(list)
    for at, label in zip(indices, labels_N.tolist(), strict=True):
        members[label].append(at)
    ordered = sorted(members.values(), key=lambda group: (-len(group), group[0]))
    names = [f"{number}: {_name([answers[at] for at in group])}" for number, group in enumerate(ordered, 1)]
    return {at: name for name, group in zip(names, ordered, strict=True) for at in group}


def _joined(name: str, vectors: UnitVectors) -> np.ndarray:
    """Concatenate the vectors of media and question, with equal weight."""
    width = len(next(iter(vectors.texts.values()), ()))
    return np.concatenate([vectors.media[name], vectors.texts.get(name, np.zeros(width, np.float32))])


def _far_apart(vectors_ND: np.ndarray, count: int) -> np.ndarray:
    """Initial cluster centers by farthest-point sampling, so that clustering is deterministic."""
    chosen = [0]
    nearest_N = vectors_ND @ vectors_ND[0]
    while len(chosen) < count:
        chosen.append(int(nearest_N.argmin()))
        nearest_N = np.maximum(nearest_N, vectors_ND @ vectors_ND[chosen[-1]])
    return np.asarray(vectors_ND[chosen])


def _name(members: Sequence[ScoredAnswer]) -> str:
    (kind, question), count = Counter((answer.kind, answer.question) for answer in members).most_common(1)[0]
    return f"{count / len(members):.0%} {kind}, “{question[:60]}”"


def _yes_no(answers: Sequence[ScoredAnswer]) -> dict[str, Any] | None:
    """False positives among readable answers to questions with the answer no, false negatives among those with the
    answer yes; also by kind. None without yes/no questions."""
    by_kind: dict[str, list[ScoredAnswer]] = defaultdict(list)
    for answer in answers:
        if answer.answer_kind == "yes_no":
            by_kind[answer.kind].append(answer)
    if not by_kind:
        return None
    whole = _both([answer for group in by_kind.values() for answer in group])
    return {**whole, "by_kind": {kind: _both(group) for kind, group in sorted(by_kind.items())}}


def _both(answers: Sequence[ScoredAnswer]) -> dict[str, Any]:
    return {
        "false_positives": _wrong([answer for answer in answers if answer.parsed_truth == "no"]),
        "false_negatives": _wrong([answer for answer in answers if answer.parsed_truth == "yes"]),
    }


def _wrong(answers: Sequence[ScoredAnswer]) -> dict[str, Any]:
    wrong = [answer.error == "wrong" for answer in answers]
    limits = accuracy_interval(wrong, [answer.video for answer in answers])
    rate = sum(wrong) / len(wrong) if wrong else None
    return {"n": len(wrong), "wrong": sum(wrong), "rate": rate, "ci95": [limits.low, limits.high] if limits else None}


def _confusions(answers: Sequence[ScoredAnswer]) -> list[dict[str, Any]]:
    """Confusions: (expected, predicted) pairs of wrong readable answers by kind, the most common first, with the
    number of answers of that truth, and the reverse confusion's count. Texts replace letters of options."""
    pairs: Counter[tuple[str, str, str]] = Counter()
    totals: Counter[tuple[str, str]] = Counter()
    for answer in answers:
        truth = _shown(answer, answer.parsed_truth)
        totals[answer.kind, truth] += 1
        if answer.error == "wrong":
            pairs[answer.kind, truth, _shown(answer, answer.parsed)] += 1
    return [
        {
            "kind": kind,
            "expected": truth,
            "predicted": response,
            "count": count,
            "of": totals[kind, truth],
            "rate": round(count / totals[kind, truth], 6),
            "reverse": pairs[kind, response, truth],
        }
        for (kind, truth, response), count in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:MOST_PAIRS]
    ]


def _shown(answer: ScoredAnswer, text: str) -> str:
    if answer.answer_kind == "letter":
        text = normalise(options_of(answer.question).get(text, text)) or text
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def slices_sentence(table: Mapping[str, Any]) -> str:
    """Sentences about the slices that contain all wrong answers, and those that fail significantly more often."""
    parts = [part for part in table["slices"] if part["n"] < table["n"]]
    holding = [part for part in parts if 1 < part["wrong"] == table["wrong"]]
    others = [part for part in parts if part["ci95"][0] > (table["rate"] or 0.0) and part not in holding]
    sentences = []
    for start, slices in (("All wrong answers are in", holding), ("Significantly higher error rate:", others)):
        names = [f"{part['dimension']} {part['name']} ({part['wrong']} of {part['n']})" for part in slices[:NAMED]]
        sentences += [f"{start} {', '.join(names)}."] if names else []
    return " ".join(sentences) or "No slice has a significantly higher error rate than the whole."


def slices_text(table: Mapping[str, Any]) -> str:
    """The slices that fail significantly more often than the whole, one per line."""
    rate = table["rate"] or 0.0
    standing_out = [part for part in table["slices"] if part["ci95"][0] > rate][:ON_TERMINAL]
    if not standing_out:
        return "no slice has a significantly higher error rate than the whole"
    rows = [
        f"  {part['dimension']} {part['name']}: {part['wrong']} of {part['n']} wrong, {percent(part['rate'])} "
        f"({percent(part['ci95'][0])} to {percent(part['ci95'][1])}), {part['lift']:.1f} times the whole"
        for part in standing_out
    ]
    return "\n".join([f"slices that fail more than the whole ({percent(rate)}):", *rows])
