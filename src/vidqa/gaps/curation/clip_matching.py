"""Detection of clips that show the same moments: re-encoded, trimmed, cropped, or overlapping cuts of one recording.

The probes of one clip (its frames with the most activity) are searched among all frames of the other. A probe matches
if the whole frame does, and also the cells that differ from the static background: two clips of one fixed camera share
the background alone. Two matches are needed. If frames have little detail, such as one thing on a plain background, two
clips can look alike by chance: then all probes must match at one time offset, or they are a possible duplicate.

Many pairs of clips are first compared by a few matrix products (`candidate_pairs`). This prefilter misses no pair with
shared moments: the distance of cell means is at most that of the cells. It drops a crop if the correlation of
`crop_alignment.codes` is below LIKELY for all crops, as the detailed comparison does; for fixed cameras with different
backgrounds, if it is below LIKELY_MOVED.

Shape letters: K probes, N frames, C cells, V crops, M moments (probes to crop), F frames; P vectors of all clips of a
block, Q vectors of one other clip, D width.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from vidqa.gaps.curation.clip_fingerprint import DETAIL, ClipFingerprint, cells_of
from vidqa.gaps.curation.crop_alignment import (
    PART,
    Crop,
    cropped,
    part_codes,
    placed,
    ratio_of,
    roughly_placed,
    still_codes,
    view_distances,
    ways,
    whole_codes,
)

Vectors = Callable[[ClipFingerprint], np.ndarray]

SAME_MOMENTS, CROPPED, UNSURE = "same moments", "cropped", "possible duplicate (low-detail frames)"
SAME, SAME_ACTIVE = 6.0, 10.0  # largest root mean square difference in levels: of the whole frame; of active cells
SAME_STILL = 3.0  # of a frame without activity
SHARE = 0.4  # largest difference as a share of a frame's deviation: in dark frames all differences are small
SAME_VIEW = 0.06  # largest difference as a share of the background's deviation; a crop changes it by more
NEEDED = 2  # matching probes
FEW_CELLS = 9  # fewest active values, three per cell
IN_STEP_S, ALL = 0.15, 0.9  # largest time error in seconds for plain clips; share of frames that must match
LIKELY = 0.6  # least correlation of coarsely aligned frames: for two moments with the same crop
LIKELY_ALONE = 0.85  # the same for a single moment
LIKELY_MOVED = 0.8  # for two moments, if the backgrounds differ: something was static there for a time
WAYS = 4  # crops that are compared in detail
VIEW, PLACED_VIEW = 1.0, 0.6  # most `view_distances` of fixed cameras, before and after alignment; by chance: 0.8
FITTED = 0.9  # least correlation after alignment
FITS = 3  # refinements of one crop, each with the pairs of frames that the previous one matched
CROPPED_SHARE = 0.2  # like SHARE for a crop; smaller because alignment makes other frames fit, too


@dataclass(frozen=True)
class Match:
    """A probe of one clip and the matching frame of another: times in seconds of both, and whether it is active."""

    time_s: float
    there_s: float
    active: bool
    detail: float


@dataclass(frozen=True)
class MatchModes:
    """Kinds of matches to test: shared moments; the other clip as a crop of this one (part), or the reverse (whole)."""

    moments: bool = True
    part: bool = True
    whole: bool = True


def candidate_pairs(
    block: Sequence[ClipFingerprint], held: Sequence[ClipFingerprint]
) -> Iterator[tuple[int, int, MatchModes]]:
    """Index pairs of clips to compare, with the modes to test. Efficient for blocks of some dozens."""
    of_shape = defaultdict(list)
    for at, clip in enumerate(block):
        of_shape[round(clip.aspect, 3)].append(at)
    for places in of_shape.values():
        for number, modes in enumerate(_modes([block[at] for at in places], held)):
            for at in np.flatnonzero(modes.any(axis=0)).tolist():
                yield places[at], number, MatchModes(*modes[:, at].tolist())


def _modes(block: Sequence[ClipFingerprint], held: Sequence[ClipFingerprint]) -> Iterator[np.ndarray]:
    """The modes to test, bool [3, clips of the block] as in `MatchModes`, per held clip. A block has one aspect."""
    moments, frames, parts, stills = (
        _Joined(block, vectors) for vectors in (_moments, _frames, _part, partial(still_codes, ratio=PART))
    )
    wholes: dict[float, tuple[_Joined, ...]] = {}
    fixed = np.array([clip.stands_still for clip in block])
    for other in held:
        ratio = ratio_of(block[0], other)
        if ratio not in wholes:
            wholes[ratio] = tuple(_Joined(block, partial(vectors, ratio=ratio)) for vectors in (_whole, still_codes))
        close = np.maximum(moments.best(_mirrored(_frames(other))), frames.best(_mirrored(_moments(other))))
        into = ratio_of(other, block[0])
        alike = np.stack([wholes[ratio][0].best(_part(other)), parts.best(_whole(other, into))])
        least = np.full(alike.shape, LIKELY)
        if other.stands_still:
            view = np.stack([wholes[ratio][1].best(still_codes(other, PART)), stills.best(still_codes(other, into))])
            least[fixed & (view < LIKELY)] = LIKELY_MOVED
        yield np.stack([close >= -(SAME**2) / 2, *(alike >= least)])


class _Joined:
    """Vectors [P, D] of all clips of a block, concatenated."""

    def __init__(self, block: Sequence[ClipFingerprint], vectors: Vectors) -> None:
        parts = [vectors(clip) for clip in block]
        self.vectors = np.ascontiguousarray(np.concatenate(parts).T)
        lengths = np.array([len(vectors_of_clip) for vectors_of_clip in parts])
        self.there = lengths > 0
        self.starts = (np.cumsum(lengths) - lengths)[self.there]

    def best(self, these: np.ndarray) -> np.ndarray:
        """The largest inner product of a clip's vectors with these [Q, D], float [clips]; -inf without any."""
        products = np.full(len(self.there), -np.inf)
        if len(these) and self.there.any():
            products[self.there] = np.maximum.reduceat((these @ self.vectors).max(axis=0), self.starts)
        return products


def _frames(clip: ClipFingerprint) -> np.ndarray:
    """Vectors [N, D] whose product with a mirrored one is minus half the mean square of their difference."""
    cells = clip.coarse / np.float32(np.sqrt(clip.coarse.shape[1]))
    ones = np.ones((len(cells), 1), np.float32)
    return np.concatenate([cells, -0.5 * (cells**2).sum(1, keepdims=True), ones], axis=1)


def _mirrored(vectors: np.ndarray) -> np.ndarray:
    return np.concatenate([vectors[:, :-2], vectors[:, :-3:-1]], axis=1)


def _moments(clip: ClipFingerprint) -> np.ndarray:
    return _frames(clip)[clip.probes]


def _part(clip: ClipFingerprint) -> np.ndarray:
    return part_codes(clip)[0]


def _whole(clip: ClipFingerprint, ratio: float) -> np.ndarray:
    moments = whole_codes(clip, ratio)[0]
    return moments.reshape(-1, moments.shape[-1])


def match_clips(one: ClipFingerprint, other: ClipFingerprint, how: MatchModes = MatchModes()) -> str:
    """SAME_MOMENTS, CROPPED, UNSURE, or "" for no shared moments; tests only the given modes."""
    verdicts = [_shares(one, other), _shares(other, one)] if how.moments else []
    if SAME_MOMENTS in verdicts:
        return SAME_MOMENTS
    # If most of the static background is in the same position, nothing was cropped.
    moved = (how.part or how.whole) and not _same_view(one, other)
    if moved and ((how.part and match_crop(one, other)) or (how.whole and match_crop(other, one))):
        return CROPPED
    return UNSURE if UNSURE in verdicts else ""


def _same_view(one: ClipFingerprint, other: ClipFingerprint) -> bool:
    """Whether most of the static background is in the same position; objects in front of it do not matter."""
    return float(np.median(np.abs(one.still - other.still))) <= SAME_VIEW * float(one.still.std())


def _shares(probed: ClipFingerprint, whole: ClipFingerprint) -> str:
    """Whether probes of one clip are frames of the other."""
    if not len(probed.probes):
        return ""
    moments = probed.cells[probed.probes]
    apart = _squares(moments, whole.cells)
    matches = []
    for number, near in enumerate(apart <= SAME**2):
        for at in np.flatnonzero(near)[np.argsort(apart[number][near])][:5].tolist():
            probe = int(probed.probes[number])
            active = probed.active[probe] | whole.active[at]
            most = min(SAME, SHARE * float(moments[number].std()))
            if _is_same(moments[number], whole.cells[at], active, most):
                times = float(probed.times_s[probe]), float(whole.times_s[at])
                matches.append(Match(*times, active.sum() >= FEW_CELLS, float(probed.detail[probe])))
                break
    return _verdict(matches, probed, whole)


def _squares(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """Mean squares of differences, float32 [K, N], by one product."""
    squares = (these**2).mean(1)[:, None] + (those**2).mean(1) - 2 * these @ those.T / these.shape[1]
    return np.asarray(np.maximum(squares, 0))


def _is_same(moment: np.ndarray, frame: np.ndarray, active: np.ndarray, most: float) -> bool:
    """Whether a probe and a frame match; `most` is the largest difference of the whole frame in levels."""
    gap = moment - frame
    whole = float(np.sqrt((gap**2).mean()))
    if whole > most:
        return False
    if active.sum() < FEW_CELLS:
        return whole <= SAME_STILL
    return float(np.sqrt((gap[active] ** 2).mean())) <= SAME_ACTIVE


def _verdict(matches: Sequence[Match], probed: ClipFingerprint, whole: ClipFingerprint) -> str:
    """The verdict by the probes of a clip that match frames of another: SAME_MOMENTS, UNSURE or ""."""
    probes = len(probed.probes)
    if len(probed.frames) == 1:
        return (SAME_MOMENTS if matches[0].detail >= DETAIL else UNSURE) if matches else ""
    moving = [match for match in matches if match.active]
    # Probes without activity only identify the view. If all match, one with activity is enough.
    needed = 1 if len(matches) == probes else min(NEEDED, probes)
    if len(_rising([match for match in moving if match.detail >= DETAIL])) >= needed:
        return SAME_MOMENTS
    if len(matches) == probes > NEEDED and probed.active.any() and _in_step(probed, whole):
        return SAME_MOMENTS
    return UNSURE if len(matches) == probes or len(_rising(moving)) >= needed else ""


def _rising(matches: Sequence[Match]) -> list[Match]:
    """The matches that come in the same order in both clips."""
    ordered = sorted(matches, key=lambda match: match.time_s)
    return [match for at, match in enumerate(ordered) if all(match.there_s > before.there_s for before in ordered[:at])]


def _in_step(probed: ClipFingerprint, whole: ClipFingerprint) -> bool:
    """Whether one clip is the other with a time offset: nearly all frames in both match."""
    times = probed.times_s
    for shift in whole.times_s - times[probed.probes[0]]:
        at = np.abs(whole.times_s - (times + shift)[:, None]).argmin(axis=1)
        both = np.abs(whole.times_s[at] - times - shift) <= IN_STEP_S
        if both[probed.probes].all():
            apart = ((probed.cells - whole.cells[at]) ** 2).mean(axis=1)
            if apart[probed.probes].max() <= SAME**2 and (apart[both] <= SAME**2).mean() >= ALL:
                return True
    return False


def match_crop(whole: ClipFingerprint, part: ClipFingerprint) -> bool:
    """Whether the second is a crop of the first: moments of the first under one crop are frames of the second."""
    for crop, pair in _roughly(whole, part):
        pairs = [pair]
        for _ in range(FITS):
            crop = placed(whole.fine[[one for one, _ in pairs]], part.cells[[there for _, there in pairs]], crop)
            moments = cells_of(cropped(whole.fine, crop))
            apart = _squares(moments, part.cells)
            nearest = apart.argmin(axis=1)
            if _agrees(whole, part, moments, nearest):
                return True
            pairs = [(int(one), int(nearest[one])) for one in np.argsort(apart.min(axis=1))[:NEEDED]]
    return False


def _roughly(whole: ClipFingerprint, part: ClipFingerprint) -> list[tuple[Crop, tuple[int, int]]]:
    """Candidate crops, the likeliest first, each with the indices of a probe and of a frame of the part."""
    if not len(whole.probes):
        return []
    ratio = ratio_of(whole, part)
    (cropped_codes, moments), (frames, places) = whole_codes(whole, ratio), part_codes(part)
    if not len(cropped_codes) or not len(frames):
        return []
    likeness = cropped_codes @ frames.T  # [V, M, F]
    best = _likely(whole, part, likeness.max(axis=2))
    likely = [index for index in np.argsort(-best)[:WAYS].tolist() if best[index] >= LIKELY]
    fits = _view_fits(whole, part, [ways(ratio)[index] for index in likely], VIEW)
    candidates = []
    for index in itertools.compress(likely, fits):
        number, at = np.unravel_index(int(likeness[index].argmax()), likeness[index].shape)
        pair = int(moments[number]), int(places[at])
        crop, alike = roughly_placed(whole.fine[pair[0]], part.cells[pair[1]], ways(ratio)[index])
        if alike >= FITTED and all(_view_fits(whole, part, [crop], PLACED_VIEW)):
            candidates.append((alike, crop, pair))
    return [(crop, pair) for _, crop, pair in sorted(candidates, reverse=True)]


def _view_fits(whole: ClipFingerprint, part: ClipFingerprint, crops: Sequence[Crop], most: float) -> list[bool]:
    """Whether each crop is possible by the static backgrounds; always true if one of the cameras moves."""
    if not crops or not (whole.stands_still and part.stands_still):
        return [True] * len(crops)
    return [apart <= most for apart in view_distances(whole, part, crops).tolist()]


def _likely(whole: ClipFingerprint, part: ClipFingerprint, alike: np.ndarray) -> np.ndarray:
    """The highest correlation over the moments [V, M] of each crop, float [V]; 0 for crops that are ruled out: a second
    moment must have the same crop, and so must the static background of fixed cameras."""
    ordered = np.sort(alike, axis=1)
    best, second = ordered[:, -1], ordered[:, -min(NEEDED, alike.shape[1])]
    likely = (second >= LIKELY) | (best >= LIKELY_ALONE)
    if likely.any() and whole.stands_still and part.stands_still:
        still = still_codes(whole, ratio_of(whole, part)) @ still_codes(part, PART)[0]
        likely &= (second >= LIKELY_MOVED) | (still.max() >= LIKELY)
    return np.where(likely, best, 0)


def _agrees(whole: ClipFingerprint, part: ClipFingerprint, moments: np.ndarray, nearest: np.ndarray) -> bool:
    """Whether cropped moments [K, C] of the whole match these frames [K] of the part."""
    matches = []
    for number, at in enumerate(nearest.tolist()):
        frame, active = part.cells[at], part.active[at]
        if _is_same(moments[number], frame, active, CROPPED_SHARE * float(frame.std())):
            times = float(whole.times_s[whole.probes[number]]), float(part.times_s[at])
            matches.append(Match(*times, active.sum() >= FEW_CELLS, float(part.detail[at])))
    still = len(matches) == len(whole.probes) and min(match.detail for match in matches) >= DETAIL
    return still or _verdict(matches, whole, part) == SAME_MOMENTS
