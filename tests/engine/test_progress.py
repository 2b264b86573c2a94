"""Where numbers go: metrics.jsonl and status.json, wandb without a key and without a prompt, tensorboard."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace

import pytest
from accelerate import PartialState

from vidqa.core.problem import INTERNAL
from vidqa.core.run_folder import RunFolder, read_metrics
from vidqa.engine.distributed import single_process_world
from vidqa.engine.progress import Progress, open_progress
from vidqa.engine.training.resume import Start, resume
from vidqa.spec import Layer, TrainSpec, resolve


def _spec(**logging: object) -> TrainSpec:
    table = {
        "custom.train_dataset.annotation_path": "annotations.json",
        "custom.train_dataset.media_path": "media",
        **{f"logging.{key}": value for key, value in logging.items()},
    }
    spec = resolve("train", [Layer("test", table)]).spec
    assert isinstance(spec, TrainSpec)
    return spec


def _opened(run: RunFolder, **logging: object) -> Progress:
    progress = open_progress(_spec(**logging), run, SimpleNamespace(is_main=True), 0, 4)  # type: ignore[arg-type]
    assert isinstance(progress, Progress)
    return progress


def _log(run: RunFolder, **logging: object) -> None:
    with _opened(run, **logging) as progress:
        for step in (1, 2):
            progress.log(step, {"train/loss": 1.0 / step}, line=f"loss {1 / step}")


def test_metrics_and_status_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder(tmp_path)
    with _opened(run):
        assert run.read_status()["message"] == ""  # the state says it
    _log(run)
    assert [event["train/loss"] for event in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 0.5]
    status = run.read_status()
    assert (status["state"], status["step"], status["total_steps"]) == ("RUNNING", 2, 4) and status["eta_s"] is not None
    shown = capsys.readouterr()
    assert "step 2/4  loss 0.5  eta 0:00:0" in shown.err and not shown.out


def test_nobody_waits_for_slow_files_and_their_times_are_those_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, go = RunFolder(tmp_path), threading.Event()
    written = run.log_metrics
    monkeypatch.setattr(run, "log_metrics", lambda *event: (go.wait(20), written(*event)))
    with _opened(run) as progress:
        for step in (1, 2, 3):
            progress.log(step, {"train/loss": 1.0 / step})
        asked_at = time.time()
        time.sleep(0.1)
        go.set()
    events = read_metrics(tmp_path / "metrics.jsonl")
    assert [event["step"] for event in events] == [1, 2, 3]
    assert all(event["time"] <= asked_at + 0.001 for event in events)


@pytest.mark.parametrize("more", [True, False])
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bool) -> None:
    """At the next step, or at the end; and it does not hide what ended the run before."""
    run = RunFolder(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "log_metrics", full)
    with pytest.raises(OSError, match="No space left"), _opened(run) as progress:
        progress.log(1, {"train/loss": 1.0})
        if more:
            wait([*progress.written], timeout=300)
            progress.log(2, {"train/loss": 1.0})
            pytest.fail("the second call tells of the first")
    with pytest.raises(ValueError, match="first"), _opened(run) as progress:
        progress.log(1, {"train/loss": 1.0})
        raise ValueError("first")


def test_a_resumed_run_takes_back_later_metrics(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    _log(run)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "train/lo')  # cut off by a kill
    run.forget_metrics_after(1)
    assert [event["step"] for event in read_metrics(tmp_path / "metrics.jsonl")] == [1]


def test_an_attempt_whose_checkpoints_are_gone_is_recorded(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    _log(run)
    resume(Start(), run, {}, None, None, single_process_world())
    assert run.read_resumes() == [{"from": None, "step": 0, "lost": 2}]
    resume(Start(), run, {}, None, None, single_process_world())  # nothing was trained since
    assert len(run.read_resumes()) == 1


def test_wandb_without_a_key_is_offline_and_never_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    PartialState(cpu=True)
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no key in a netrc either
    _log(RunFolder(tmp_path), logger=["wandb"], project_name="p", experiment_name="e")
    (offline,) = tmp_path.glob("wandb/offline-run-*")
    assert list(offline.glob("*.wandb"))


@pytest.mark.slow
def test_wandb_that_cannot_be_reached_is_offline_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    PartialState(cpu=True)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    with socket.socket() as nobody_answers:
        nobody_answers.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{nobody_answers.getsockname()[1]}")
        monkeypatch.setattr("vidqa.engine.progress.REACHED_S", 1.0)
        started = time.monotonic()
        _log(RunFolder(tmp_path), logger=["wandb"], project_name="p", experiment_name="e")
        assert time.monotonic() - started < 30
    (offline,) = tmp_path.glob("wandb/offline-run-*")
    assert list(offline.glob("*.wandb")) and len(read_metrics(tmp_path / "metrics.jsonl")) == 2
    said = capsys.readouterr().err
    assert said.count("ENGINE_TRACKER_FAILED") == 1 and "it goes on offline" in said and "k" * 40 not in said


def test_a_tracker_that_fails_on_the_way_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    from accelerate.tracking import TensorBoardTracker

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    PartialState(cpu=True)
    monkeypatch.setattr(TensorBoardTracker, "log", full)
    _log(RunFolder(tmp_path), logger=["tensorboard"])
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2
    assert capsys.readouterr().err.count("ENGINE_TRACKER_FAILED") == 1


def test_tensorboard_gets_the_values(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    PartialState(cpu=True)
    _log(RunFolder(tmp_path), logger=["tensorboard"])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 1.0), (2, 0.5)]


def test_facts_are_added_to_what_the_launcher_wrote(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"run_id": "r1", "schema_version": 1}))
    RunFolder(tmp_path).update_run(data_fingerprint="abc")
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["run_id"] == "r1" and run["data_fingerprint"] == "abc"


def test_the_error_of_another_rank_outlives_the_progress_that_is_written_meanwhile(tmp_path: Path) -> None:
    """Rank 0 writes how far it is, again and again, while another rank ends."""
    run, rounds = RunFolder(tmp_path), 25
    for number in range(rounds):
        run.write_status("RUNNING")
        progress = Progress(run, [], 0, 10)
        ended = threading.Event()

        def keep_writing(progress: Progress = progress, ended: threading.Event = ended) -> None:
            while not ended.is_set():
                progress._write(1, {}, "", 0.0, 1.0)
                time.sleep(0.0005)  # locks of files are not fair: whoever asks again at once has it again

        writer = threading.Thread(target=keep_writing)
        writer.start()
        time.sleep(0.002 + number * 0.0007)
        RunFolder(tmp_path).write_status("ERROR", message="ENGINE_OUT_OF_MEMORY: of rank 1")
        time.sleep(0.005)
        ended.set()
        writer.join()
        assert run.read_status()["message"] == "ENGINE_OUT_OF_MEMORY: of rank 1", number
        with progress:
            pass


def test_of_two_ranks_that_fail_the_first_is_told(tmp_path: Path) -> None:
    for _ in range(25):
        run, barrier = RunFolder(tmp_path), threading.Barrier(2)
        run.write_status("RUNNING", step=3, total_steps=9)
        firsts: list[str] = []

        def fail(rank: str, run: RunFolder = run, barrier: threading.Barrier = barrier, firsts: list = firsts) -> None:
            barrier.wait()
            problems = [INTERNAL.at(rank, "failed")]
            if run.write_status("ERROR", message=rank, unless=("ERROR", "COMPLETE"), problems=problems):
                firsts.append(rank)

        ranks = [threading.Thread(target=fail, args=(rank,)) for rank in ("rank 0", "rank 1")]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        assert (run.read_status()["step"], run.read_status()["total_steps"]) == (3, 9)
        assert firsts == [run.read_status()["message"]] == [problem.where for problem in run.read_problems()]
