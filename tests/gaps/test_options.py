"""Further options that a user gives to a stage: read as its script reads them, checked, and printed as its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidqa.core.problem import ProblemError
from vidqa.gaps.curation.assembly import Assembly
from vidqa.gaps.curation.augmentation import Augmentation
from vidqa.gaps.curation.mining import Mining
from vidqa.gaps.deft.runner import with_options, words_of

PLACES = {"gaps": Path("g"), "pool": Path("p"), "query": Path("q"), "out": Path("o")}


def test_options_are_those_of_the_script_with_their_types() -> None:
    words = ["--per-gap", "4", "--threshold=-1", "--tried", "a", "b", "--tried", "c"]
    request = with_options(Mining(**PLACES, tried=(Path("z"),)), words, "mine_samples")
    assert (request.per_gap, request.threshold) == (4, -1.0)
    assert request.tried == tuple(map(Path, "zabc"))
    assert words_of(request)[:4] == ["--per-gap", 4, "--threshold", -1.0]


def test_flags_are_switched_by_their_names() -> None:
    assembly = Assembly(base=Path("b"), add=(Path("a"),), out=Path("o"))
    request = with_options(assembly, ["--no-balance", "--cap", "3"], "assemble_dataset")
    assert (request.balance, request.cap) == (False, 3) and "--no-balance" in words_of(request)
    copies = with_options(Augmentation(annotations=Path("a"), out=Path("o")), ["--flip"], "augment_samples")
    assert copies.flip and words_of(copies)[-1] == "--flip"
    twice = with_options(copies, ["--each", "2"], "augment_samples")
    assert twice.variants == 2 and words_of(twice)[-3:] == ["--each", 2, "--flip"]
    assert with_options(copies, ["--only", "crop", "noise"], "augment_samples").only == ("crop", "noise")


@pytest.mark.parametrize(
    "words", [["--per-gaps", "4"], ["--per-gap", "four"], ["4"], ["--per-gap", "0"], ["--media-weight", "2"]]
)
def test_a_wrong_option_is_refused(words: list[str]) -> None:
    with pytest.raises(ProblemError, match="DEFT_SETTING"):
        with_options(Mining(**PLACES), words, "mine_samples")
    with pytest.raises(ProblemError, match="DEFT_SETTING"):
        with_options(Augmentation(annotations=Path("a"), out=Path("o")), ["--only", "paint"], "augment_samples")
