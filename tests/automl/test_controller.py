"""A study from its plan to its end: real jobs on the local platform, whose trainings take no time."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
from itertools import pairwise
from pathlib import Path

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from small_studies import RATE, attempts, carry_out, gpus_over_time, history, outcome, write_study
from tiny_world import SOURCE

from vidqa import spec
from vidqa.automl import commands, journal
from vidqa.automl.controller import Controller
from vidqa.automl.decisions import Trial
from vidqa.automl.history import History
from vidqa.automl.journal import only_controller, read
from vidqa.automl.report import report
from vidqa.automl.status import status
from vidqa.automl.study import open_study
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.jobs import records
from vidqa.jobs.launch import unchecked
from vidqa.jobs.platforms import local
from vidqa.planning.plan import load_sets
from vidqa.spec.layers import parse_set

pytestmark = pytest.mark.usefixtures("quick_trials")
ENOUGH_S = 600.0


def test_a_study_begins_with_the_template_and_ends_with_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(tmp_path, "finals.seeds=[7]", "finals.top=1")
    found = carry_out(study)
    assert found.finished and [trial.state for trial in found.trials] == ["complete"] * 4
    assert found.trials[0].proposer == "template" and found.trials[0].values == {RATE: 1e-5}
    assert found.scores["baseline"]["val/avg_loss"] == 9.0
    best = min(found.trials, key=lambda each: each.objective)
    assert found.winner == best.number != 0
    said = report(study).data
    rows = {row["who"]: row for row in said["table"]}
    assert list(rows) == ["model before training", "template", "winner"]
    assert rows["winner"]["re_runs"] and rows["template"]["re_runs"] and "partly best by chance" in said["bias"]
    written = tomllib.loads((study / "best_spec.toml").read_text())
    assert written["train"]["optm_lr"] == best.values[RATE]
    chosen = json.loads((study / "best.json").read_text())
    assert chosen["number"] == best.number
    assert Path(chosen["train_run"]).is_relative_to(study / f"finals/{best.number}/seed-7") and chosen["train_run"]
    page = (study / "report.html").read_text()
    assert "<polyline" in page and 'viewBox="0 0 1000 48" preserveAspectRatio="none"' in page, "as wide as the page"
    assert (study / "optuna.log").is_file()
    assert page.count("<circle") >= 4 and f"trial {best.number}: {RATE} = {best.values[RATE]}" in page, "slices"
    assert f"wrote {study / 'report.html'}" in report(study).text
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(study / "optuna.log")))
    opened = optuna.load_study(study_name="study", storage=storage)
    assert [trial.params for trial in opened.trials] == [trial.values for trial in found.trials]
    assert opened.best_trial.number == best.number, "as optuna-dashboard opens it"
    assert not list(study.glob("trials/*/runs/*/checkpoints")), "nobody goes on from them"
    compared = {"n": 100, "before": 0.25, "after": 0.5, "difference": 0.25, "ci95": (0.2, 0.3), "verdict": "better"}
    rows_by_seed = [{"seed": "7", **compared}, {"seed": "8", "verdict": "another recipe"}]
    monkeypatch.setattr("vidqa.automl.report._comparisons", lambda history: rows_by_seed)
    report(study)
    page = (study / "report.html").read_text()
    assert ">+25.0<" in page and ">+20.0 to +30.0<" in page and "another recipe" in page, "differences are points"


@pytest.mark.slow
def test_a_killed_controller_loses_no_trial_and_starts_none_twice(tmp_path: Path) -> None:
    whole = carry_out(write_study(tmp_path / "whole", max_trials=6))
    study = write_study(tmp_path / "killed", max_trials=6)
    chance, kills = random.Random(0), 0
    program = [sys.executable, str(Path(__file__).with_name("small_studies.py")), str(study)]
    path = os.pathsep.join([str(SOURCE), str(SKILL_ROOT), str(SKILL_ROOT / "tests"), str(SKILL_ROOT / "tests/automl")])
    deadline = time.monotonic() + ENOUGH_S
    while not history(study).finished and time.monotonic() < deadline:
        events = len(journal.read(study).log.events)
        more = events + chance.randint(2, 8)
        process = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(journal.read(study).log.events) < more:
            time.sleep(chance.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    found = history(study)
    assert kills >= 3 and found.finished and outcome(found) == outcome(whole)
    of_study = [record for record in records.scan()[0] if record.output_dir.startswith(str(study))]
    job_ids = {work.job_id for work in found.work.values()}
    assert job_ids <= {record.job_id for record in of_study}
    # A kill between the record of a job and its start leaves a record of a job that never ran.
    assert all(record.job_id in job_ids or record.reference is None for record in of_study)
    assert {attempts(Path(record.run_dir)) for record in of_study if record.job_id in job_ids} == {1}


def test_another_controller_is_refused_and_a_changed_space_too(tmp_path: Path) -> None:
    study = write_study(tmp_path, max_trials=1)
    with only_controller(study), pytest.raises(ProblemError, match=r"BUSY"):
        carry_out(study)
    carry_out(study)
    text = (study / "study.toml").read_text()
    (study / "study.toml").write_text(text.replace("1e-2", "5e-2"))
    with pytest.raises(ProblemError, match=r"STUDY_CHANGED(.|\n)*the space was"):
        carry_out(study)
    (study / "study.toml").write_text(text.replace("max_concurrent = 2", "max_concurrent = 1"))
    assert carry_out(study).finished, "how many run at a time may change"


@pytest.mark.parametrize(
    ("manner", "said"),
    [("nan", "ENGINE_NOT_FINITE"), ("memory", "ENGINE_OUT_OF_MEMORY"), ("undefined", "its val/avg_loss is nan")],
)
def test_a_trial_that_fails_keeps_its_spec_and_the_search_goes_on(tmp_path: Path, manner: str, said: str) -> None:
    study = write_study(tmp_path, manner=manner, algorithm="agent", max_trials=3)
    commands.enqueue(study, [f"{RATE}=5e-3"], "agent")
    commands.enqueue(study, [f"{RATE}=1e-3"], "agent")
    found = carry_out(study)
    assert [trial.state for trial in found.trials] == ["complete", "failed", "complete"]
    assert said in found.trials[1].why and (study / "trials/1/rung-0/spec.toml").is_file()
    assert [trial.proposer for trial in found.trials] == ["template", "agent", "agent"] and found.winner == 2


def test_a_trial_that_hangs_is_ended_and_has_failed(tmp_path: Path) -> None:
    study = write_study(tmp_path, f"limits.silent_hours={0.5 / 3600}", manner="hang", max_trials=2)
    found = carry_out(study)
    assert [trial.state for trial in found.trials] == ["failed", "failed"] and found.finished
    assert "the last failure: hangs" in status(study).text
    with pytest.raises(ProblemError, match=r"no trial was measured; the last failure: hangs(.|\n)*start.*--trials 3"):
        report(study)
    assert all(trial.why.startswith("hangs: it wrote nothing for") for trial in found.trials)
    assert all(record.state.is_terminal for record in records.scan()[0])


def test_failures_for_one_reason_stop_the_study_with_it(tmp_path: Path) -> None:
    study = write_study(tmp_path, "limits.failures_in_a_row=2", manner="nan", algorithm="agent", max_trials=9)
    for rate in ("4e-3", "5e-3", "6e-3"):
        commands.enqueue(study, [f"{RATE}={rate}"], "agent")
    with pytest.raises(ProblemError, match=r"STUDY_FAILING(.|\n)*all for one reason .spec: ENGINE_NOT_FINITE."):
        carry_out(study)
    assert "STUDY_FAILING" in (history(study).stopped or "") and status(study).data["state"] == "stopped"


def test_what_the_machine_ended_is_tried_again_and_costs_no_trial(tmp_path: Path) -> None:
    found = carry_out(write_study(tmp_path, manner="killed", max_trials=2))
    assert [trial.state for trial in found.trials] == ["complete", "complete"]
    assert {work.retries for work in found.work.values()} == {1}


def test_a_study_that_was_stopped_goes_on_with_the_jobs_that_it_had(tmp_path: Path) -> None:
    study = write_study(tmp_path, manner="hang", max_trials=2)
    thread = threading.Thread(target=carry_out, args=(study,))
    thread.start()
    deadline = time.monotonic() + ENOUGH_S
    while len(list(study.glob("trials/*/runs/*/attempts"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    journal.send_request(study, journal.STOP, {})
    thread.join(ENOUGH_S)
    assert status(study).data["state"] == "stopped" and len(history(study).running) == 2
    assert all(record.state.is_terminal for record in records.scan()[0])
    found = carry_out(study)
    assert found.finished and [trial.state for trial in found.trials] == ["complete", "complete"]
    assert len(list(study.glob("trials/*/runs/*"))) == 2, "each went on in its run folder"


def test_promotions_go_on_from_the_checkpoint_of_the_rung_below(tmp_path: Path) -> None:
    sets = ("steps.shortest=2", "steps.longest=8", "steps.reduction=2")
    study = write_study(tmp_path, *sets, algorithm="asha", max_trials=4)
    found = carry_out(study)
    assert found.rungs == [[2, 4, 8]]
    complete = [trial for trial in found.trials if trial.state == "complete"]
    assert complete and [result.steps for result in complete[0].measured] == [2, 4, 8]
    for entry in found.trials:
        rows = [
            json.loads(line)["step"]
            for path in sorted(study.glob(f"trials/{entry.number}/runs/*/metrics.jsonl"))
            for line in path.read_text().splitlines()
            if "train/loss" in line
        ]
        assert sorted(rows) == list(range(1, entry.measured[-1].steps + 1)), "no step was taken twice, none left out"
    written = tomllib.loads((study / f"trials/{complete[0].number}/rung-2/spec.toml").read_text())["train"]
    assert (written["max_num_steps"], written["optm_decay_type"]) == (8, "none")


def test_wall_time_is_what_controllers_worked_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(f"20{99 - number:02}-01-01T00:00:00+00:00" for number in range(90))
    monkeypatch.setattr("vidqa.core.journal.now", lambda: next(times))
    found = carry_out(write_study(tmp_path, "limits.wall_hours=1000", max_trials=2))
    assert found.finished and 0 < found.elapsed_s < ENOUGH_S
    study = write_study(tmp_path / "short", "limits.wall_hours=1e-7", max_trials=50)
    assert "hours are over" in (carry_out(study).searched or "")


def test_a_study_that_has_ended_goes_on_with_more_trials(tmp_path: Path) -> None:
    sets = ("steps.shortest=2", "steps.longest=8", "steps.reduction=2", "finals.seeds=[7]", "finals.top=1")
    study = write_study(tmp_path, *sets, algorithm="asha", max_trials=4)
    before = carry_out(study)
    assert before.finished and any(trial.state == "paused" for trial in before.trials)
    reruns = {name for name in before.scores if name.startswith("final-")}
    with pytest.raises(ProblemError, match=r"STUDY_SETTINGS(.|\n)*the study has 4 trials"):
        commands.extend(study, 4)
    commands.extend(study, 7)
    found = carry_out(study)
    assert found.finished and len(found.trials) == 7 and status(study).data["max_trials"] == 7
    for entry, was in zip(found.trials, before.trials, strict=False):
        assert entry.values == was.values and entry.measured[: len(was.measured)] == was.measured
    assert all(trial.state in ("complete", "paused", "pruned") for trial in found.trials), (
        "none begins without a checkpoint"
    )
    assert any(each.state == "pruned" and "removed when the search" in each.why for each in found.trials[:4])
    names = [name for name in found.work if name in reruns or name.startswith("final-")]
    assert len(names) == len(set(names)) and found.winner == report(study).data["winner"]


def test_results_of_other_answer_rules_or_annotations_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(tmp_path, 'goals=[{"metric": "val/accuracy", "direction": "maximize"}]', max_trials=1)
    carry_out(study)
    commands.extend(study, 2)
    with monkeypatch.context() as later:
        later.setattr("vidqa.automl.study.RULES", "vidqa.answers.v9")
        with pytest.raises(ProblemError, match=r"STUDY_CHANGED(.|\n)*trial 0 was scored by the answer rules vidqa"):
            carry_out(study)
        assert report(study).data["table"] and len(history(study).trials) == 1, "of its own trials, all by one rule"
    annotations = tmp_path / "annotations.json"
    before = annotations.read_text()
    annotations.write_text(before.replace("this", "that", 1))
    with pytest.raises(ProblemError, match=r"STUDY_CHANGED at .*annotations.json\n.*since trials were measured"):
        carry_out(study)
    annotations.write_text(before)
    assert carry_out(study).finished and len(history(study).trials) == 2
    earlier = History()
    earlier.trials = [Trial(0, {}, "template", "complete", metrics={"answer_rules": "vidqa.answers.v1"})]
    with pytest.raises(ProblemError, match=r"answer rules vidqa.answers.v1"):
        open_study(study).check_comparable(earlier)


def test_a_longer_hyperband_has_more_brackets(tmp_path: Path) -> None:
    sets = ("steps.shortest=2", "steps.longest=8", "steps.reduction=2")
    study = write_study(tmp_path, *sets, algorithm="hyperband-de", max_trials=5)
    assert len(carry_out(study).rungs) == 2
    commands.extend(study, 8)
    found = carry_out(study)
    assert found.finished and len(found.rungs) == 3 and {trial.bracket for trial in found.trials} == {0, 1, 2}
    assert status(study).data["count"] == 8 and history(study).rungs == found.rungs


def test_checkpoints_outside_the_study_stay_whatever_its_journal_names(tmp_path: Path) -> None:
    study, own = write_study(tmp_path / "study", max_trials=2), tmp_path / "own/checkpoints/step_1"
    own.mkdir(parents=True)
    carry_out(study)
    events = [event for event in read(study).log.events if event["event"] not in ("removed", "finished")]
    for number, event in enumerate(events, 1):
        event |= {"seq": number, **({"run_dir": str(tmp_path / "own")} if event["event"] == "ended" else {})}
    (study / "journal.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    with pytest.raises(ProblemError, match="REMOVAL_OUTSIDE"):
        carry_out(study)
    assert own.is_dir() and not [event for event in read(study).log.events if event["event"] == "removed"]


@pytest.mark.parametrize("algorithm", ["cma-es", "pbt"])
def test_a_population_stays_as_large_as_it_was(tmp_path: Path, algorithm: str) -> None:
    study = write_study(tmp_path, "steps.longest=2", algorithm=algorithm, max_trials=1)
    carry_out(study)
    with pytest.raises(ProblemError, match=r"STUDY_CHANGED(.|\n)*the size of its population"):
        commands.extend(study, 9)
    assert "max_trials = 1\n" in (study / "study.toml").read_text()


def test_trials_learn_from_a_share_of_the_videos_and_re_runs_from_all(tmp_path: Path) -> None:
    study = write_study(tmp_path, "data_share=0.25", "finals.seeds=[7]", "finals.top=1", max_trials=2)
    found = carry_out(study)
    assert found.finished and found.scores["baseline"]["val/avg_loss"] == 9.0
    whole = load_sets(spec.load(study / "train.toml", "train"))
    ids = {name: {record.id for record in records} for name, records in whole.items()}
    for path in study.glob("trials/*/rung-0/spec.toml"):
        part = load_sets(spec.load(path, "train"))
        trained = {record.id for record in part["train"]}
        assert len(trained) == 3 and trained < ids["train"] and len(ids["train"]) == 12
        assert {record.id for record in part["validation"]} == ids["validation"], "what is compared stays"
    again = load_sets(spec.load(next(study.glob("finals/*/seed-7/spec.toml")), "train"))
    assert {name: {record.id for record in records} for name, records in again.items()} == ids, "with another seed, too"
    report(study)
    best = load_sets(spec.load(study / "best_spec.toml", "train"))
    assert {record.id for record in best["train"]} == ids["train"]


def test_a_target_ends_the_search(tmp_path: Path) -> None:
    study = write_study(tmp_path, "limits.target=100.0", max_trials=50, max_concurrent=1)
    found = carry_out(study)
    assert len(found.trials) == 1 and "reached the target 100" in (found.searched or "")


def test_trials_that_are_no_better_end_the_search(tmp_path: Path) -> None:
    study = write_study(tmp_path, "limits.no_progress=2", algorithm="agent", max_trials=9, max_concurrent=1)
    for rate in ("1e-3", "1e-4", "1e-5", "1e-2"):  # the first is the best
        commands.enqueue(study, [f"{RATE}={rate}"], "agent")
    found = carry_out(study)
    assert len(found.trials) == 4 and found.searched == "2 trials in a row were no better" and found.winner == 1


def test_a_trial_made_elsewhere_is_told_and_counts(tmp_path: Path) -> None:
    study = write_study(tmp_path, algorithm="agent", max_trials=2)
    commands.tell(study, [f"{RATE}=2e-3"], [0.01], "colleague")
    with pytest.raises(ProblemError, match="AUTOML_RANGE"):
        commands.enqueue(study, [f"{RATE}=3.0"], "agent")
    with pytest.raises(ProblemError, match=r"USAGE"):
        commands.tell(study, [f"{RATE}=2e-3"], [0.01, 2.0], "colleague")
    commands.enqueue(study, [f"{RATE}=1e-4"], "agent")
    found = carry_out(study)
    told = next(trial for trial in found.trials if trial.proposer == "colleague")
    assert found.winner == told.number and told.objective == 0.01
    report(study)
    assert json.loads((study / "best.json").read_text())["train_run"] is None, "it was not trained here"


def test_suggestions_are_those_that_the_search_will_try(tmp_path: Path) -> None:
    study = write_study(tmp_path, max_trials=3, max_concurrent=1)
    said = commands.suggest(study, 3).data["suggestions"]
    assert not (study / "journal.jsonl").exists()
    assert [trial.values for trial in carry_out(study).trials] == [row["values"] for row in said]


def test_the_command_of_a_suggestion_has_its_values(tmp_path: Path) -> None:
    values = {
        "bias": True,
        "decay": "none",
        "shape": "cosine",
        "layers": ["q_proj", "v_proj"],
        "rate": 1e-5,
        "cap": None,
    }
    words = shlex.split(commands._enqueue_command(tmp_path, values))
    sets = [word for option, word in pairwise(words) if option == "--set"]
    assert parse_set(sets).table == values and "shape=cosine" in sets


def test_status_of_a_thousand_trials_takes_less_than_a_second_and_no_lock(tmp_path: Path) -> None:
    study = write_study(tmp_path, max_trials=1000)
    with only_controller(study):
        controller = Controller(open_study(study), unchecked)
        controller._create()
        common = {"proposer": "random", "rung": 0, "bracket": 0, "parent": None, "extra": {}, "repairs": []}
        (created,) = controller.journal.events
        with (study / "journal.jsonl").open("w") as file:  # as before journals had checksums
            file.write(json.dumps(created) + "\n")
            seq = 1
            for number in range(1000):
                fields = {"number": number, "rung": 0, "steps": 6, "objectives": [number / 7], "metrics": {}}
                rows = [{"event": "trial", "number": number, "values": {RATE: 1e-4}, **common}]
                rows.append({"event": "measured", **fields, "state": "complete"})
                for row in rows:
                    seq += 1
                    file.write(json.dumps({"seq": seq, "time": "", "elapsed_s": 1.0, **row}) + "\n")
        before = time.process_time()
        script = [sys.executable, str(SKILL_ROOT / "scripts/run_automl.py"), "status", "--study", str(study), "--json"]
        used = os.times()
        said = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
        now = os.times()
    assert (
        said["data"]["hours_left"] == 0
        and said["data"]["trials"] == {"complete": 1000}
        and said["data"]["best"]["number"] == 0
    )
    assert now.children_user - used.children_user + now.children_system - used.children_system < 15
    assert time.process_time() - before < 15


def test_trials_at_the_same_time_share_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_installed_gpus", lambda _: [""] * 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    study = write_study(tmp_path, max_trials=3, max_concurrent=3)
    found = carry_out(study)
    seen = gpus_over_time(study, found)
    assert {work.gpus for work in found.work.values()} == {("4",), ("6",)}
    assert max(count for each in seen for count in each.values()) == 1 and {"4": 1, "6": 1} in seen
    told = {(path / "gpus").read_text() for path in study.glob("trials/*/runs/*")}
    assert told == {"4", "6"}, "a job sees its own"
