"""What can be wrong with a study is told by a problem with a code, never by a traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_studies import RATE, carry_out, history, write_study

from vidqa.automl import commands
from vidqa.automl import plan as plan_module
from vidqa.automl import study as study_module
from vidqa.automl.finals import removable
from vidqa.automl.history import History
from vidqa.automl.journal import JOURNAL
from vidqa.automl.plan import PlanRequest, check_request, plan, write
from vidqa.automl.settings import Settings, Steps, read_settings, write_settings
from vidqa.automl.status import status
from vidqa.automl.study import open_study, study_of
from vidqa.automl.trials import check_steps
from vidqa.core.problem import ProblemError
from vidqa.jobs.platforms import local
from vidqa.preflight import gpus


def code_of(broken: Callable[[], object]) -> str:
    with pytest.raises(ProblemError) as refused:
        broken()
    problem = refused.value.problems[0]
    assert problem.message and problem.remedy and problem.where
    return problem.code


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("study.toml", "goals = [", "STUDY_SETTINGS"),
        ("study.toml", b"\xff\xfe", "STUDY_SETTINGS"),
        ("study.toml", "wings = 2\n[[goals]]\nmetric = 'a'\ndirection = 'maximize'\n", "STUDY_SETTINGS"),
        ("study.toml", None, "STUDY_MISSING"),
        ("train.toml", None, "STUDY_MISSING"),
        ("train.toml", "[train]\nwings = 2\n", "SPEC_UNKNOWN_KEY"),
        ("train.toml", "[train.train_policy]\ntype = 'grpo'\n", "SPEC_ACTION"),
    ],
)
def test_a_study_that_cannot_be_read(tmp_path: Path, name: str, text: str | bytes | None, code: str) -> None:
    study = write_study(tmp_path)
    path = study / name
    path.unlink() if text is None else path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert code_of(lambda: carry_out(study)) == code
    assert not (study / JOURNAL).exists(), "nothing was started"


def test_a_journal_that_is_no_file(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    (study / JOURNAL).mkdir()
    assert code_of(lambda: status(study)) == code_of(lambda: carry_out(study)) == "JOURNAL_BROKEN"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "study").write_text("in the way")
    assert code_of(lambda: write_study(tmp_path)) == "ENV_FILE_REFUSED"


def test_a_goal_that_nobody_measures(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    made = (study / "study.toml").read_text()
    (study / "study.toml").write_text(made.replace('"val/avg_loss"', '"accuracy"'))
    assert code_of(lambda: carry_out(study)) == "STUDY_SETTINGS"


@pytest.mark.usefixtures("quick_trials")
@pytest.mark.parametrize(("names", "trials"), [([], 0), (["Laptop GPU"], 0), (["unknown"], 1)])
def test_a_goal_that_needs_a_known_gpu_is_refused_before_a_job_if_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], trials: int
) -> None:
    """A GPU that nvidia-smi does not name is known only to the template's training, which ends the study then."""
    monkeypatch.setattr("vidqa.automl.goals.visible_gpus", lambda: [gpus.Gpu(name) for name in names])
    study = write_study(tmp_path, manner="well", max_concurrent=1)
    made = (study / "study.toml").read_text()
    (study / "study.toml").write_text(made.replace('"val/avg_loss"', '"perf/mfu"'))
    assert code_of(lambda: carry_out(study)) == "STUDY_SETTINGS" and len(history(study).trials) == trials


@pytest.mark.parametrize(
    ("metric", "evaluates", "closest"),
    [
        ("val/avg_los", False, "val/avg_loss"),
        ("vall/avg_loss", False, "val/avg_loss"),
        ("vall/avg_loss", True, "val/avg_loss"),
        ("acuracy", True, "accuracy"),
        ("by_kind.dor.accuracy", True, "by_kind.door.accuracy"),
        ("by_kind.door.accuracy", True, None),
        ("functions.words.mean", True, None),
        ("text.bertscore_f1", True, None),
        ("finish_reason.length", True, None),
    ],
)
def test_a_mistyped_goal_is_refused_before_a_job_starts(
    tmp_path: Path, metric: str, evaluates: bool, closest: str | None
) -> None:
    study = open_study(write_study(tmp_path))
    turns = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "somebody else"}]
    (tmp_path / "kpi.json").write_text(json.dumps([{"id": "e", "kind": "door", "conversations": turns}]))
    evaluation = tmp_path / "evaluate.json"
    metrics = {"names": ["bertscore"], "functions": f"{tmp_path}/own.py:score"}
    evaluation.write_text(json.dumps({"dataset": {"annotation_path": f"{tmp_path}/kpi.json"}, "metrics": metrics}))
    request = PlanRequest(tmp_path / "train.toml", evaluate=evaluation if evaluates else None, metric=(metric,))
    if closest is None:
        check_request(request, study.base)
        return
    with pytest.raises(ProblemError) as refused:
        check_request(request, study.base)
    (problem,) = refused.value.problems
    assert problem.code == "STUDY_SETTINGS" and metric in problem.where and closest in problem.remedy
    assert code_of(lambda: plan(tmp_path / "other", request)) == "STUDY_SETTINGS"
    goals = [study.goal.model_copy(update={"metric": metric})]  # by hand
    write_settings(study.folder, study.settings.model_copy(update={"goals": goals}))
    assert code_of(lambda: carry_out(study.folder)) == "STUDY_SETTINGS" and not history(study.folder).trials


def test_settings_of_gpus_are_named_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without nvidia-smi
    monkeypatch.setattr(local, "_installed_gpus", lambda _: [])
    sets = ("limits.gpu_hours=4", "resources.trials_per_gpu=2")
    (note,) = open_study(write_study(tmp_path, *sets)).notes
    assert note.endswith("nothing uses limits.gpu_hours and resources.trials_per_gpu")
    assert open_study(write_study(tmp_path / "other")).notes == []


def test_a_plan_with_errors_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = write_study(tmp_path)
    assert not plan(study, None).next, "its model is none"
    with pytest.raises(ProblemError, match=r"its plan has \d errors, first MODEL(.|\n)*plan again: .*automl.py plan"):
        commands.start(study)
    (study / "plan/problems.json").write_text('{"problems": []}')  # as of a plan without errors
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert code_of(lambda: commands.start(study)) == "INTERNAL", "its controller was started"


def test_an_unknown_setting_is_told_with_the_closest_one(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"no key 'resources.gpu'\n  fix: did you mean resources.gpus"):
        write_study(tmp_path, "resources.gpu=0")


@pytest.mark.parametrize("sets", ["goals.foo=1", "max_trials.x=1", "evaluation.x=1", "keep=none", "finals.seeds=none"])
def test_a_setting_below_one_that_is_no_table_or_without_a_value(tmp_path: Path, sets: str) -> None:
    assert code_of(lambda: write_study(tmp_path, sets)) == "STUDY_SETTINGS"


def test_a_folder_of_other_files_is_no_place_for_a_study(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study/train.toml").write_text("mine")
    assert code_of(lambda: write_study(tmp_path)) == "STUDY_SETTINGS"
    assert (tmp_path / "study/train.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("algorithm", "changed"),
    [
        ("random", {"ranges": {"train.output_dir": "a,b"}}),
        ("random", {"fixed": {"train.resume": True}}),
        ("asha", {"fixed": {"train.epoch": 2}}),
        ("asha", {"ranges": {"train.max_num_steps": "2..4"}}),
        ("asha", {"ranges": {"train.optm_decay_type": "cosine,none"}, "fixed": {}}),
        ("random", {"steps": {"shortest": 2}}),
    ],
)
def test_what_a_study_sets_itself_is_neither_searched_nor_fixed(
    tmp_path: Path, algorithm: str, changed: dict[str, Any]
) -> None:
    study = write_study(tmp_path, algorithm=algorithm)
    settings = read_settings(study)
    write_settings(
        study,
        settings.model_copy(update={**changed, **({"steps": Steps(**changed["steps"])} if "steps" in changed else {})}),
    )
    assert code_of(lambda: plan(study, None)) == code_of(lambda: carry_out(study)) in ("AUTOML_RANGE", "STUDY_SETTINGS")


def test_the_decay_which_rungs_do_without_is_not_searched(tmp_path: Path) -> None:
    write_study(tmp_path)
    request = PlanRequest(tmp_path / "train.toml", algorithm="asha")
    space = plan(tmp_path / "rungs", request).data["space"]
    assert space["fixed"] == {"train.optm_decay_type": "cosine"}
    again = plan(tmp_path / "rungs", replace(request, algorithm="random")).data["space"]
    assert "train.optm_decay_type" in [parameter["name"] for parameter in again["parameters"]]


@pytest.mark.parametrize(("key", "value"), [("train.optm_decay_type", "none"), ("train.max_num_steps", None)])
def test_a_key_is_fixed_to_none(tmp_path: Path, key: str, value: str | None) -> None:
    write_study(tmp_path)
    request = PlanRequest(tmp_path / "train.toml", algorithm="random", fix=(f"{key}=none",))
    assert plan(tmp_path / "fixed", request).data["space"]["fixed"][key] == value


def test_a_plan_replaces_the_split_of_an_earlier_one(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    assert (study / "data/held_out.json").is_file()
    spec = (tmp_path / "train.toml").read_text()
    validation = f'[custom.val_dataset]\nannotation_path = "{tmp_path}/annotations.json"\nmedia_path = "{tmp_path}"\n'
    (tmp_path / "train.toml").write_text(spec.replace("test_size = 0.5", "") + validation)
    write(study, PlanRequest(tmp_path / "train.toml"))
    assert not (study / "data").exists()


def test_a_plan_opens_its_study_once_also_where_rungs_add_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path)
    opened: list[Path] = []

    def opens(folder: Path, settings: Settings) -> study_module.Study:
        opened.append(folder)
        return study_of(folder, settings)

    for module in (study_module, plan_module):
        monkeypatch.setattr(module, "study_of", opens)
    request = PlanRequest(tmp_path / "train.toml", algorithm="asha", set=(f"resources.site={tmp_path}/site.toml",))
    space = plan(tmp_path / "rungs", request).data["space"]
    assert opened == [tmp_path / "rungs"] and "train.optm_decay_type" in space["fixed"]
    study = open_study(tmp_path / "rungs")
    assert study.space_dict == space and study.settings.resources.site == tmp_path / "site.toml"


@pytest.mark.usefixtures("quick_trials")
def test_a_study_that_has_begun_is_not_planned_again(tmp_path: Path) -> None:
    study = write_study(tmp_path, max_trials=1)
    carry_out(study)
    before = (study / "study.toml").read_bytes()
    again = PlanRequest(tmp_path / "train.toml", range=(f"{RATE}=1e-6..1e-3:log",))
    assert code_of(lambda: plan(study, again)) == "STUDY_CHANGED" and (study / "study.toml").read_bytes() == before


@pytest.mark.usefixtures("quick_trials")
def test_a_machine_that_ends_every_attempt_stops_the_study_until_it_is_started_again(tmp_path: Path) -> None:
    study = write_study(tmp_path, "limits.retries=0", manner="killed", max_trials=1)
    assert code_of(lambda: carry_out(study)) == "STUDY_INTERRUPTED"
    assert "STUDY_INTERRUPTED" in (history(study).stopped or "") and status(study).data["state"] == "stopped"
    (study / "study.toml").write_text((study / "study.toml").read_text().replace("retries = 0", "retries = 1"))
    annotations = tmp_path / "annotations.json"  # they may change until a trial is measured
    annotations.write_text(annotations.read_text().replace("this", "that", 1))
    found = carry_out(study)
    assert [trial.state for trial in found.trials] == ["complete"] and len(list(study.glob("trials/*/runs/*"))) == 1


@pytest.mark.parametrize(("resumed", "ended"), [(4, 8), (2, 6), (0, 8)])
def test_steps_that_do_not_add_up(tmp_path: Path, resumed: int, ended: int) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"resumes": [{"step": resumed}]}))
    (tmp_path / "status.json").write_text(json.dumps({"state": "COMPLETE", "step": ended}))
    with pytest.raises(ProblemError, match=r"INTERNAL(.|\n)*(the rung before|it) ended at step"):
        check_steps(tmp_path, before=2, target=8)


def test_a_re_run_that_never_started_leaves_nothing_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder has no name, and would mean the one in which the controller stands."""
    study = open_study(write_study(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.chdir(tmp_path)
    unstarted, run = History(), History()
    unstarted.scores = {"final-0/seed-1": {"failed": "refused", "train_run": "."}, "test/baseline": {}}
    run.scores = {"final-0/seed-1": {"train_run": str(tmp_path)}}
    assert removable(study, unstarted) == [] and removable(study, run) == [tmp_path / "checkpoints"]
