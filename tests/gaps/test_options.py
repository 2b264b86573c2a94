"""Further options that a user gives to a stage: read as its script reads them, checked, and printed as its command."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from vidqa.automl.settings import Place
from vidqa.core.problem import ProblemError
from vidqa.gaps.curation.variants import SAFE
from vidqa.gaps.deft.model_stages import _resources
from vidqa.gaps.deft.runner import announced_options, launch_words, options_of
from vidqa.gaps.deft.state import Where
from vidqa.jobs.resources import Resources

PLACES = {"gaps": Path("g"), "pool": Path("p"), "query": Path("q"), "out": Path("o")}
OWN = {
    "mine_samples": "--gaps g --pool p --query q --out o --tried z",
    "assemble_dataset": "--base b --add a --out o --kpi k m",
    "augment_samples": "--annotations a --out o",
    "analyze_gaps": "--results-dir r --gaps-parquet g --kpi-ann-path k",
    "run_automl": "plan --study s --spec t",
}


def read(script: str, *further: str) -> dict:
    return options_of(script, OWN[script].split(), further)


def test_options_are_those_of_the_script_with_their_types(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--per-gap", "4", "--threshold=-1", "--tried", "a", "b", "--tried", "c"]
    fields = announced_options("mine_samples", {**PLACES, "round": 0, "tried": [Path("z")], "pool-media": None}, words)
    assert (fields["per_gap"], fields["threshold"], fields["round"]) == (4, -1.0, 0)
    assert fields["tried"] == list(map(Path, "zabc")) and fields["pool_media"] == ""
    shown = capsys.readouterr().err
    assert "--gaps g --pool p --query q --out o --round 0 --tried z --per-gap 4 --threshold=-1 --tried a b" in shown


def test_flags_are_switched_by_their_names() -> None:
    fields = read("assemble_dataset", "--no-balance", "--max-per-kind", "3")
    assert (fields["balance"], fields["max_per_kind"], fields["kpi"]) == (False, 3, ("k", "m"))
    fields = read("augment_samples", "--flip", "--each", "2")
    assert fields["flip"] and fields["variants"] == 2
    assert read("augment_samples", "--only", *SAFE)["only"] == list(SAFE)
    assert read("run_automl", "--trials", "6", "--set", "finals.seeds=[]")["set"] == ["finals.seeds=[]"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        *(("mine_samples", words) for words in ("--per-gaps 4", "--per-gap four", "4", "--per-gap 0", "--seed -1")),
        *(("mine_samples", words) for words in ("--media-weight 2", "--threshold nan", "--out x", "--no-per-gap 4")),
        *(("augment_samples", words) for words in ("--only paint", "--seed=-1", "--annotations x", "--licence x")),
        *(
            ("assemble_dataset", words)
            for words in ("--max-per-kind=-1", "--replay=-1", "--group-by (", "--kpi x", "--pairs x")
        ),
        *(("analyze_gaps", words) for words in ("--fail-on-gaps", "--json", "--mode other")),
        *(("run_automl", words) for words in ("--spec x", "--study x", "--wait", "--count 2")),
    ],
)
def test_a_wrong_option_is_refused(script: str, words: str) -> None:
    with pytest.raises(ProblemError, match="USAGE"):
        read(script, *words.split())


def test_a_study_and_a_loop_have_the_resources_of_a_launch() -> None:
    """One table; what earlier versions have written of it is read, and written again as it was."""
    table = {"nodes": 2, "gpus": None, "image": "engine:1", "site": "site.toml", "agreed": True}
    for model, own in ((Place, {"trials_per_gpu": 2}), (Where, {"platform": "slurm"})):
        place = model.model_validate({**table, **own})
        assert isinstance(place, Resources) and place.site == Path("site.toml")
        assert set(model.model_fields) == {*Resources.model_fields, *own}
        assert place.model_dump(mode="json") == {**table, **own}
        assert model.model_validate({"site": ""}).site is None
    assert launch_words(Where(gpus=0, agreed=True)) == ["--platform", "local", "--gpus", "0", "--yes"]
    (loop := Mock()).settings.where = Where(site=Path("site.toml"), gpus=0)
    assert _resources(loop) == ("platform=local", "resources.gpus=0", "resources.site=site.toml")
