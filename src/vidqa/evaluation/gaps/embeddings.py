"""Embeddings beside judged answers: groups of answers that are alike, and how the nearest ones are labelled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vidqa.evaluation.gaps.problems import GAPS_EMBEDDINGS
from vidqa.evaluation.gaps.scored_answers import Judged
from vidqa.evaluation.intervals import video_clusters
from vidqa.evaluation.text import normalise

COLUMNS = ("sample_id", "media_embedding", "text_embedding")
PER_CLUSTER, MOST_CLUSTERS = 25, 40
ROUNDS = 30  # of k-means at most
NEIGHBOURS = 9
AT_ONCE = 1024  # rows of a block of similarities
FEWEST = 12  # answers to one question, of which neighbours say something
Vectors = Mapping[str, np.ndarray]  # by sample id: a unit vector, float32


def read_embeddings(path: Path, wanted: set[str]) -> tuple[Vectors, Vectors]:
    """(of media, of texts) of the wanted samples. Raises GAPS_EMBEDDINGS."""
    try:
        table = pq.read_table(path, columns=list(COLUMNS))
    except (OSError, pa.ArrowException, KeyError, ValueError) as wrong:
        raise GAPS_EMBEDDINGS.error(path, f"it cannot be read: {wrong}") from wrong
    ids = table["sample_id"].to_pylist()
    return _unit(ids, table[COLUMNS[1]], wanted), _unit(ids, table[COLUMNS[2]], wanted)


def _unit(ids: Sequence[str], column: pa.ChunkedArray, wanted: set[str]) -> dict[str, np.ndarray]:
    found = {}
    for name, value in zip(ids, column, strict=True):
        if name in wanted and value.is_valid:
            vector = np.asarray(value.values, np.float32)
            length = float(np.linalg.norm(vector))
            if length > 0 and np.isfinite(length):
                found[name] = vector / length
    return found


def clusters_of(judged: Sequence[Judged], media: Vectors, texts: Vectors) -> dict[int, str]:
    """The cluster of each answer that has embeddings, by its place; named for its commonest kind and question."""
    at = [place for place, each in enumerate(judged) if each.sample_id in media]
    count = min(MOST_CLUSTERS, len(at) // PER_CLUSTER)
    if count < 2:
        return {}
    vectors_ND = np.stack([_both(judged[place].sample_id, media, texts) for place in at])
    labels_N = _spherical_k_means(vectors_ND, count)
    inside: dict[int, list[int]] = defaultdict(list)
    for place, label in zip(at, labels_N.tolist(), strict=True):
        inside[label].append(place)
    names = {label: f"{number}: {_name([judged[p] for p in places])}" for number, (label, places) in _ordered(inside)}
    return {place: names[label] for label, places in inside.items() for place in places}


def _ordered(inside: Mapping[int, list[int]]) -> list[tuple[int, tuple[int, list[int]]]]:
    return list(enumerate(sorted(inside.items(), key=lambda item: (-len(item[1]), item[1][0])), 1))


def _both(name: str, media: Vectors, texts: Vectors) -> np.ndarray:
    """Media and question in one vector, each counting half."""
    parts = [media[name], texts[name]] if name in texts else [media[name], np.zeros(_width(texts), np.float32)]
    return np.concatenate(parts)


def _width(texts: Vectors) -> int:
    return len(next(iter(texts.values()))) if texts else 0


def _spherical_k_means(vectors_ND: np.ndarray, count: int) -> np.ndarray:
    """The cluster of each vector. It begins with vectors that are far from each other, so that it is repeatable."""
    chosen = [0]
    nearest_N = vectors_ND @ vectors_ND[0]
    while len(chosen) < count:
        chosen.append(int(nearest_N.argmin()))
        nearest_N = np.maximum(nearest_N, vectors_ND @ vectors_ND[chosen[-1]])
    centres_KD, labels_N = vectors_ND[chosen], np.full(len(vectors_ND), -1)
    for _ in range(ROUNDS):
        found_N = (vectors_ND @ centres_KD.T).argmax(1)
        if (found_N == labels_N).all():
            break
        labels_N = found_N
        for number in range(count):
            mean_D = vectors_ND[labels_N == number].sum(0)
            length = float(np.linalg.norm(mean_D))
            centres_KD[number] = mean_D / length if length else centres_KD[number]
    return labels_N


def _name(inside: Sequence[Judged]) -> str:
    (kind, question), count = Counter((each.kind, each.question) for each in inside).most_common(1)[0]
    return f"{kind}, “{question[:60]}” ({count} of {len(inside)})"


def neighbours_say(judged: Sequence[Judged], media: Vectors) -> dict[int, str]:
    """By the place of an answer: the label that most of the nearest videos with the same question have."""
    groups: dict[str, list[int]] = defaultdict(list)
    for place, each in enumerate(judged):
        if each.sample_id in media and each.parsed_truth:
            groups[normalise(each.question)].append(place)
    found: dict[int, str] = {}
    for places in groups.values():
        if len(places) >= FEWEST:
            found |= _votes([judged[place] for place in places], places, media)
    return found


def _votes(inside: Sequence[Judged], places: Sequence[int], media: Vectors) -> dict[int, str]:
    vectors_ND = np.stack([media[each.sample_id] for each in inside])
    videos = np.unique(video_clusters(each.video for each in inside), return_inverse=True)[1]
    found = {}
    for start in range(0, len(inside), AT_ONCE):
        block_BD = vectors_ND[start : start + AT_ONCE]
        alike_BN = block_BD @ vectors_ND.T
        alike_BN[videos[start : start + AT_ONCE, None] == videos[None, :]] = -2.0  # not a vote for itself
        most = min(NEIGHBOURS, len(inside) - 1)
        nearest_BK = np.argpartition(-alike_BN, most - 1, axis=1)[:, :most]
        for row, near in enumerate(nearest_BK):
            said = Counter(inside[each].parsed_truth for each in near.tolist())
            label, count = max(said.items(), key=lambda item: (item[1], item[0]))
            if 2 * count > most:
                found[places[start + row]] = label
    return found
