"""What a run keeps: its best export and the proof of it, and nothing that others may read or a loader would run."""

from __future__ import annotations

import gc
import json
import os
import shutil
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import forked
import pytest
import torch
from clips import write_clip
from in_process import events, train_here
from safetensors.torch import load_file
from tiny_world import tiny_data, tiny_model, tiny_spec
from transformers import Qwen3VLForConditionalGeneration

from vidqa.core.run_folder import RunFolder, read_metrics
from vidqa.engine.export.best import adopt_best, best_of
from vidqa.engine.export.weights import WEIGHTS
from vidqa.engine.generators.hf import TransformersSession
from vidqa.engine.training import saving
from vidqa.engine.training.learner import Learner
from vidqa.planning.requests import Result
from vidqa.spec import EvaluateSpec

STEPS = 6
OPTIONS = {
    "train.max_num_steps": STEPS,
    "train.epoch": STEPS,
    "train.train_batch_per_replica": 3,
    "train.optm_lr": 1e-4,
    "train.epsilon": 1e-6,
    "train.ckpt.save_freq": 2,
    "train.ckpt.save_freq_in_epoch": 0,
    "validation.enable": True,
    "validation.freq": 2,
    "train.train_policy.dataset.test_size": 0.3,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model folder with code in it, a small data set, and an uninterrupted run under umask 077."""
    folder = tmp_path_factory.mktemp("saving")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder, clips=2))
    (place.model / "modeling_own.py").write_text("raise SystemExit('this must not run')\n")
    config = json.loads((place.model / "config.json").read_text())
    (place.model / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "modeling_own.Own"}}))
    place.held, place.headed = (
        [],
        [],
    )  # models in memory when the export is loaded again; rows of its head
    before = os.umask(0o077)
    try:
        load = watched(place, WEIGHTS.load)
        with patch.object(saving, "format_for", lambda _: replace(WEIGHTS, load=load)):
            place.reference = train_here(spec_of(place, "reference"), folder / "reference/run")
    finally:
        os.umask(before)
    return place


def watched(place: SimpleNamespace, load: Any) -> Any:
    def loads(*arguments: Any) -> Any:
        gc.collect()
        place.held.append(sum(isinstance(each, Qwen3VLForConditionalGeneration) for each in gc.get_objects()))
        model = load(*arguments)
        model.lm_head.register_forward_hook(lambda _, inputs, __: place.headed.append(inputs[0].shape[:-1].numel()))
        return model

    return loads


def spec_of(world: SimpleNamespace, name: str, **over: Any) -> Path:
    folder = world.folder / name
    folder.mkdir(exist_ok=True)
    return tiny_spec(folder, world.model, world.root, {**OPTIONS, **over})


def facts(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_an_export_holds_no_code_and_asks_for_none(world: SimpleNamespace) -> None:
    export = (world.reference / "best").resolve()
    assert not list(export.rglob("*.py"))
    assert "auto_map" not in facts(export / "config.json")
    assert facts(export / "config.json")["model_type"] == "qwen3_vl"
    kept = {path.name for path in world.model.iterdir() if path.suffix != ".py"}
    assert kept <= {path.name for path in export.iterdir()}


def test_what_a_run_writes_is_for_those_whom_the_umask_lets_in(world: SimpleNamespace) -> None:
    open_to_others = [
        str(path.relative_to(world.reference))
        for path in world.reference.rglob("*")
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert open_to_others == []
    assert events(world.reference, "train/loss").keys() == set(range(1, STEPS + 1))


def test_the_proof_takes_no_more_memory_than_it_needs(world: SimpleNamespace) -> None:
    """The trained model is gone when the export is loaded again, and only supervised tokens have logits."""
    assert world.held == [0]
    said = facts(world.reference / "run.json")["export_proof"]
    assert said["proved"] is True and said["export"] == facts(world.reference / "best.json")["name"]
    assert said["reloaded_loss"] == pytest.approx(said["trainer_loss"], rel=1e-4)
    asked = facts(world.root / "annotations.json")
    answer = next(each["conversations"][1]["value"] for each in asked if each["id"] == said["sample_id"])
    assert len(world.headed) == 1 and world.headed[0] <= len(answer) + 2  # its tokens, and those that end the turn


def test_an_export_that_nothing_could_prove_is_called_unproved(
    world: SimpleNamespace, capsys: pytest.CaptureFixture
) -> None:
    """No validation sample can be decoded: the index of the clip is whole, and its pictures are not."""
    clip = write_clip(world.folder / "broken.mp4", frames=64, fps=8, height=64)
    content = bytearray(clip.read_bytes())
    start, end = content.index(b"mdat") + 8, content.rindex(b"moov")
    content[(start + end) // 2 : end] = bytes(end - (start + end) // 2)
    clip.write_bytes(content)
    turns = [{"from": "human", "value": "<video>\nWhat is shown?"}, {"from": "gpt", "value": "bits"}]
    records = [{"id": f"v{number}", "video": clip.name, "conversations": turns} for number in range(20)]
    annotations = world.folder / "broken.json"
    annotations.write_text(json.dumps(records))
    over = {
        "custom.val_dataset.annotation_path": str(annotations),
        "custom.val_dataset.media_path": str(world.folder),
        "validation.enable": False,
        "engine.on_bad_sample": "quarantine",
        "train.max_num_steps": 1,
        "train.train_policy.dataset.test_size": None,
    }
    run = train_here(spec_of(world, "unproved", **over), world.folder / "unproved/run")
    assert facts(run / "run.json")["export_proof"]["proved"] is False
    assert "no sample could be decoded" in facts(run / "best/export.json")["unproved"]
    assert not (run / "best/proof.json").exists()
    assert "warning: the export step_1 is unproved" in capsys.readouterr().err


def test_validation_answers_as_long_as_an_evaluation(world: SimpleNamespace) -> None:
    """And scores as it does; what was cut off is counted apart."""
    limits: list[int] = []
    generate = TransformersSession.generate

    def answers(self: Any, requests: Any) -> Any:
        for request in requests:
            limits.append(request.sampling.max_tokens)
            if len(limits) == 1:
                text = f"<think>{'so ' * 100}</think>{expected[request.id]}"
                token_ids = self.planner.chat.tokens.core.encode(text).ids
                yield [Result(request.id, "stop", (*token_ids, request.stop_ids[0]))]
            else:
                yield from generate(self, [replace(request, sampling=replace(request.sampling, max_tokens=3))])

    records = facts(world.root / "annotations.json")
    expected = {record["id"]: record["conversations"][1]["value"] for record in records}
    over = {"engine.validation_generate": 4, "train.max_num_steps": 1, "train.ckpt.enable_checkpoint": False}
    with patch.object(TransformersSession, "generate", answers):
        run = train_here(spec_of(world, "answers", **over), world.folder / "answers/run")
    assert set(limits) == {EvaluateSpec().generation.max_tokens}
    assert events(run, "val/accuracy")[1] == pytest.approx(1 / len(limits))
    assert events(run, "val/truncated")[1] == pytest.approx(1 - 1 / len(limits))


def copied(world: SimpleNamespace, name: str, keep: str | None = None) -> Path:
    """The reference run's folder once more; with `keep`, as it was when this was its newest save."""
    run = world.folder / name / "run"
    shutil.copytree(world.reference, run, symlinks=True)
    step = int((keep or f"step_{STEPS}").removeprefix("step_"))
    for later in (path for kind in ("checkpoints", "safetensors") for path in (run / kind).glob("step_*")):
        if int(later.name.removeprefix("step_")) > step:
            shutil.rmtree(later)
    return run


def same_as(reference: Path, run: Path) -> bool:
    """Whether two runs ended with the same bytes of weights, and measured and lost the same on the way."""
    ours, theirs = (load_file(each / f"safetensors/step_{STEPS}/model.safetensors") for each in (run, reference))
    keys = ("train/loss", "val/avg_loss")
    return all(torch.equal(ours[name], theirs[name]) for name in theirs) and all(
        events(run, key) == events(reference, key) for key in keys
    )


def test_a_stop_on_a_step_that_is_due_leaves_the_best_alone(world: SimpleNamespace) -> None:
    """What nobody measured is exported by the run that goes on, which measures it; and by the next one if that run ends
    before its first checkpoint, each validation logged once."""
    run = world.folder / "stopped/run"
    over = {"train.ckpt.max_keep": 1}
    train_here(spec_of(world, "stopped", **over), run, stop_after=4)
    assert [path.name for path in (run / "safetensors").iterdir()] == ["step_2"]
    assert facts(run / "best.json")["name"] == "step_2" and facts(run / "best.json")["metric"] == "val/avg_loss"
    assert facts(run / "checkpoints/step_4/trainer.json")["owed"] is True
    again = spec_of(world, "stopped", **over, **{"train.resume": True})
    with patch.object(Learner, "train_step", side_effect=OSError), pytest.raises(OSError):
        train_here(again, run)
    train_here(again, run)
    assert same_as(world.reference, run)
    assert [event["step"] for event in read_metrics(run / "metrics.jsonl") if "val/avg_loss" in event] == [2, 4, 6]
    assert facts(run / "best.json") == facts(world.reference / "best.json")
    assert facts(run / "best/export.json")["measured"]["val/avg_loss"] == facts(run / "best.json")["value"]


def test_a_run_logs_every_step_before_it_stops_or_saves(world: SimpleNamespace) -> None:
    """Of these steps the run that goes on knows nothing: with them its mean would be of other steps."""
    run, over = world.folder / "logged/run", {"logging.log_interval": 4, "validation.enable": False}
    train_here(spec_of(world, "logged", **over), run, stop_after=5)
    stopped, single = events(run, "train/loss"), events(world.reference, "train/loss")
    assert set(stopped) == {2, 4, 5} and stopped[5] == single[5]
    train_here(spec_of(world, "logged", **over, **{"train.resume": str(run / "checkpoints/step_2")}), run)
    resumed = events(run, "train/loss")
    assert set(resumed) == {2, 4, 6} and all(resumed[step] == stopped[step] for step in (2, 4))


def test_what_was_measured_stays_before_what_was_not(world: SimpleNamespace, capsys: pytest.CaptureFixture) -> None:
    """Also when best.json was lost to a kill, and beside what is resumed with other values, which is said."""
    run = copied(world, "unmeasured")
    before = facts(run / "best.json")
    (run / "best.json").unlink()
    (run / "best").unlink()
    over = {"validation.enable": False, "train.ckpt.max_keep": 1, "train.max_num_steps": STEPS + 2, "train.epoch": 9}
    train_here(spec_of(world, "unmeasured", **over, **{"train.resume": True}), run)
    assert facts(run / "best.json") == before and before["metric"] == "val/avg_loss"
    assert os.readlink(run / "best") == f"safetensors/{before['name']}"
    assert (run / f"safetensors/step_{STEPS + 2}/export.json").exists()
    said = capsys.readouterr().err
    assert f"train.max_num_steps: {STEPS} -> {STEPS + 2}" in said and "validation.enable: True -> False" in said
    assert "save_freq" not in said
    assert facts(run / "run.json")["resumes"][-1]["step"] == STEPS


def test_a_run_that_begins_again_forgets_what_it_measured_before(world: SimpleNamespace) -> None:
    over = {"validation.val_before_train": True, "train.max_num_steps": 1, "train.ckpt.enable_checkpoint": False}
    spec = spec_of(world, "begun", **over, **{"train.ckpt.export_safetensors": False})
    for _ in range(2):
        train_here(spec, world.folder / "begun/run")
    lines = (world.folder / "begun/run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 1]


def test_no_checkpoint_is_ahead_of_what_was_measured(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill would leave a step without its loss, which no resumed run takes again. Here metrics are slow to write."""
    log_metrics, publish, measured = RunFolder.log_metrics, RunFolder.publish, dict[str, set[int]]()
    run = world.folder / "ahead/run"

    def slow(*values: Any) -> None:
        time.sleep(0.3)
        log_metrics(*values)

    def noted(unfinished: Path) -> Path:
        if unfinished.parent.name == "checkpoints":
            measured[unfinished.name] = {event["step"] for event in read_metrics(run / "metrics.jsonl")}
        return publish(unfinished)

    monkeypatch.setattr(RunFolder, "log_metrics", slow)
    monkeypatch.setattr(RunFolder, "publish", staticmethod(noted))
    over = {"train.max_num_steps": 2, "train.ckpt.save_freq": 1, "train.ckpt.export_safetensors": False}
    train_here(spec_of(world, "ahead", **over, **{"validation.enable": False}), run)
    assert measured == {".unfinished-step_1": {1}, ".unfinished-step_2": {1, 2}}


def test_a_run_that_resumes_at_its_end_says_that_it_trains_nothing(
    world: SimpleNamespace, capsys: pytest.CaptureFixture
) -> None:
    run = copied(world, "done")
    train_here(spec_of(world, "done", **{"train.resume": True}), run)
    assert f"no step is left to train: {STEPS} are done, and the run has {STEPS}" in capsys.readouterr().err
    assert same_as(world.reference, run)


def made_exports(run: RunFolder, **measured: dict[str, float]) -> None:
    for name, values in measured.items():
        folder = run.begin(run.exports, name)
        (folder / "model.safetensors").write_bytes(b"weights of " + name.encode())
        step = int(name.removeprefix("step_"))
        (folder / "export.json").write_text(json.dumps({"step": step, "measured": values}))
        run.publish(folder)


def test_the_best_is_found_again_from_what_lies_there(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert best_of(run, 100) is None
    made_exports(run, step_1={}, step_9={})
    assert (best_of(run, 5).name, best_of(run, 9).name) == ("step_1", "step_9")  # 9 is of an earlier attempt
    made_exports(run, step_2={"val/avg_loss": 0.7}, step_3={"val/avg_loss": 0.7}, step_4={"val/avg_loss": 0.9})
    assert (best_of(run, 9).name, best_of(run, 9).value) == ("step_2", 0.7)
    made_exports(run, step_5={"val/avg_loss": 0.8, "val/accuracy": 1.0})
    assert best_of(run, 9).name == "step_2"  # what all have is compared
    for name in ("step_2", "step_3", "step_4"):
        shutil.rmtree(run.exports / name)
    made_exports(run, step_6={"val/avg_loss": 0.1, "val/accuracy": 0.5})
    assert (best_of(run, 9).name, best_of(run, 9).metric) == ("step_5", "val/accuracy")


def test_best_json_of_an_earlier_version_counts(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    made_exports(run, step_1={}, step_2={})
    (run.exports / "step_1/export.json").write_text(json.dumps({"step": 1, "trainer_loss": 2.0}))
    best = {"metric": "val/avg_loss", "value": 6.7, "step": 1, "name": "step_1", "avg_loss": 6.7}
    (tmp_path / "best.json").write_text(json.dumps(best))
    assert vars(best_of(run, 2)) == best


def test_a_run_takes_over_the_best_of_the_run_that_it_goes_on_from(tmp_path: Path) -> None:
    parent, run = RunFolder(tmp_path / "parent"), RunFolder(tmp_path / "run")
    made_exports(parent, step_2={"val/avg_loss": 0.7}, step_4={"val/avg_loss": 0.8}, step_8={"val/avg_loss": 0.1})
    adopt_best(run, parent.path, upto=4)
    made_exports(run, step_6={"val/avg_loss": 0.75})
    assert best_of(run, 6).name == "step_2"
    assert (run.exports / "step_2/model.safetensors").samefile(parent.exports / "step_2/model.safetensors")
    assert "adopted_from" not in facts(parent.exports / "step_2/export.json")


def test_pruning_leaves_what_a_run_has_not_caught_up_with(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    made_exports(run, step_1={}, step_2={}, step_3={}, step_9={})
    run.prune(run.exports, "export.json", 1, {"step_1"}, upto=3)
    assert sorted(path.name for path in run.exports.iterdir()) == ["step_1", "step_3", "step_9"]


def test_threads_beside_a_training_on_a_cpu_compute_alone() -> None:
    """In a process of its own: the number is one of the whole process."""
    program = Path(__file__).with_name("threads_beside.py")
    assert forked.run([sys.executable, program], timeout=60).stdout.split() == ["2", "1"]
