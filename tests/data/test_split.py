"""Splits keep videos together, fingerprints follow content."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from vidqa.core.problem import ProblemError
from vidqa.data import MediaRef, Record, Turn, fingerprint, split_by_video


def record(name: str, *videos: str, answer: str = "Yes") -> Record:
    media = tuple(MediaRef("video", video, f"/data/{video}", size=10) for video in videos)
    question = Turn("user", (*range(len(media)), "Why?"))
    return Record(name, (question, Turn("assistant", (answer,))), media)


def clips(count: int, questions: int = 3) -> list[Record]:
    return [record(f"{clip}-{at}", f"{clip}.mp4") for clip in range(count) for at in range(questions)]


def videos(records: list[Record]) -> set[str]:
    return {medium.key for item in records for medium in item.media}


@pytest.mark.parametrize("test_size", [0.2, 60, 0.01, 299])
def test_no_video_is_on_both_sides(test_size: float) -> None:
    records = clips(100)
    train, validation = split_by_video(records, test_size, seed=1)
    wanted = test_size if test_size >= 1 else round(test_size * 300)
    assert len(validation) == wanted - wanted % 3
    assert not videos(train) & videos(validation)
    assert [item for item in records if item in validation] == validation
    assert sorted(item.id for item in train + validation) == sorted(item.id for item in records)


def test_records_joined_by_a_chain_of_videos_stay_together() -> None:
    chain = [record("x", "1", "2"), record("y", "2", "3"), record("z", "4", "3")]
    others = [record(str(at), f"o{at}") for at in range(5)]
    for seed in range(20):
        train, validation = split_by_video(chain + others, 4, seed)
        assert not videos(train) & videos(validation)
        assert len({item in validation for item in chain}) == 1


def test_the_choice_depends_on_the_seed_and_not_on_the_order() -> None:
    records = clips(50)
    shuffled = random.Random(0).sample(records, len(records))
    first, second = (split_by_video(some, 0.2, seed=3)[1] for some in (records, shuffled))
    assert {item.id for item in first} == {item.id for item in second}
    assert {item.id for item in split_by_video(records, 0.2, seed=4)[1]} != {item.id for item in first}
    assert first != records[: len(first)]


def test_at_least_one_group_and_never_everything() -> None:
    _, validation = split_by_video(clips(2), 1, seed=0)
    assert len(validation) == 3
    assert split_by_video(clips(2), 0, seed=0)[1] == []
    for records, size in ((clips(1), 0.5), (clips(2), 6), (clips(2), -1), ([], 0.5)):
        with pytest.raises(ProblemError, match="DATA_SPLIT"):
            split_by_video(records, size, seed=0)


def test_fingerprint_follows_what_is_taught() -> None:
    base = record("x", "1")
    (medium,) = base.media
    moved = replace(base, media=(replace(medium, path="/elsewhere/1"),), source="other.json[3]", kind="yes_no")
    assert fingerprint([base]) == fingerprint([moved])
    different = [
        [replace(base, id="y")],
        [record("x", "2")],
        [record("x", "1", answer="No")],
        [replace(base, media=(replace(medium, size=11),))],
        [base, record("y", "1")],
        [],
    ]
    assert len({fingerprint(records) for records in [[base], *different]}) == 7
