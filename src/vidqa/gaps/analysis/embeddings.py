"""Embeddings beside scored answers: clusters of similar answers, and the labels of the nearest ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vidqa.evaluation.accuracy import video_clusters
from vidqa.evaluation.text import normalise
from vidqa.gaps.analysis.scored_answers import ScoredAnswer
from vidqa.gaps.curation.embeddings import Table

PER_CLUSTER, MOST_CLUSTERS = 25, 40
ROUNDS = 30  # of k-means
NEIGHBOURS = 9
AT_ONCE = 1024  # rows of a block of similarities
FEWEST = 12  # answers to one question, of which neighbours say something
Vectors = Mapping[str, np.ndarray]  # by sample id: a unit vector, float32


@dataclass(frozen=True)
class Vectored:
    """Unit vectors of the evaluated samples, by id; empty without embeddings."""

    media: Vectors
    texts: Vectors


def vectors_of(answers: Sequence[ScoredAnswer], path: Path | None) -> Vectored:
    """The vectors of these answers in a table of embeddings. Raises CURATION_INPUT."""
    needed = {answer.sample_id for answer in answers}
    media: dict[str, np.ndarray] = {}
    texts: dict[str, np.ndarray] = {}
    for part in Table(path).parts(("sample_id",)) if path else ():
        names = part.columns["sample_id"]
        for vectors, vectors_ND in ((media, part.media), (texts, part.text)):
            lengths_N = np.linalg.norm(vectors_ND, axis=1)
            rows = zip(names, vectors_ND, lengths_N, strict=True)
            vectors |= {name: row / length for name, row, length in rows if name in needed and 0 < length < np.inf}
    return Vectored(media, texts)


def clusters_of(answers: Sequence[ScoredAnswer], vectors: Vectored) -> dict[int, str]:
    """The cluster of each answer that has embeddings, by its index; named for its commonest kind and question."""
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


def _joined(name: str, vectors: Vectored) -> np.ndarray:
    """Media and question in one vector, each counting half."""
    width = len(next(iter(vectors.texts.values()), ()))
    return np.concatenate([vectors.media[name], vectors.texts.get(name, np.zeros(width, np.float32))])


def _far_apart(vectors_ND: np.ndarray, count: int) -> np.ndarray:
    """Vectors that are far from each other, with which clustering begins and is repeatable."""
    chosen = [0]
    nearest_N = vectors_ND @ vectors_ND[0]
    while len(chosen) < count:
        chosen.append(int(nearest_N.argmin()))
        nearest_N = np.maximum(nearest_N, vectors_ND @ vectors_ND[chosen[-1]])
    return np.asarray(vectors_ND[chosen])


def _name(members: Sequence[ScoredAnswer]) -> str:
    (kind, question), count = Counter((answer.kind, answer.question) for answer in members).most_common(1)[0]
    return f"{kind}, “{question[:60]}” ({count} of {len(members)})"


def neighbour_labels(answers: Sequence[ScoredAnswer], media: Vectors) -> dict[int, str]:
    """By the index of an answer: the label that most of the nearest videos with the same question have."""
    groups: dict[str, list[int]] = defaultdict(list)
    for at, answer in enumerate(answers):
        if answer.sample_id in media and answer.parsed_truth:
            groups[normalise(answer.question)].append(at)
    labels: dict[int, str] = {}
    for indices in groups.values():
        if len(indices) >= FEWEST:
            labels |= _votes([answers[at] for at in indices], indices, media)
    return labels


def _votes(members: Sequence[ScoredAnswer], indices: Sequence[int], media: Vectors) -> dict[int, str]:
    vectors_ND = np.stack([media[answer.sample_id] for answer in members])
    videos = np.unique(video_clusters(answer.video for answer in members), return_inverse=True)[1]
    most, labels = min(NEIGHBOURS, len(members) - 1), {}
    for start in range(0, len(members), AT_ONCE):
        alike_BN = vectors_ND[start : start + AT_ONCE] @ vectors_ND.T
        alike_BN[videos[start : start + AT_ONCE, None] == videos[None, :]] = -2.0  # no vote for itself
        nearest_BK = np.argpartition(-alike_BN, most - 1, axis=1)[:, :most]
        for row, nearest in enumerate(nearest_BK):
            votes = Counter(members[at].parsed_truth for at in nearest.tolist())
            label, count = max(votes.items(), key=lambda item: (item[1], item[0]))
            if 2 * count > most:
                labels[indices[start + row]] = label
    return labels
