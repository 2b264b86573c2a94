"""Training with real torchrun processes: ranks, accumulation, packing and kills change nothing but speed."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import torch
from forked import Started
from in_process import train_here, train_on
from safetensors.torch import load_file
from tiny_world import engine_command, losses, run_engine, tiny_data, tiny_model, tiny_spec

from vidqa.core.run_folder import RunFolder, read_metrics
from vidqa.engine.export import load_export
from vidqa.jobs.platforms.processes import ProcessIdentity

STEPS = 8
# Small rate and large epsilon: Adam must not turn the last bit of a tiny gradient into a step of full size.
OPTIONS = {
    "train.epoch": 4,
    "train.optm_lr": 1e-4,
    "train.epsilon": 1e-6,
    "train.ckpt.save_freq": 2,
    "train.ckpt.save_freq_in_epoch": 0,
    "validation.enable": True,
    "train.train_policy.dataset.test_size": 0.1,
}


def options(ranks: int, **changes: Any) -> dict[str, Any]:
    """The same effective batch of 6 on any number of ranks."""
    parallel = {"policy.parallelism.dp_shard_size": ranks, "train.train_batch_per_replica": 6 // ranks}
    return {**OPTIONS, **parallel, **changes}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One uninterrupted run on one rank, to compare every other one with."""
    folder = tmp_path_factory.mktemp("training")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder))
    place.spec = lambda name, over: _spec(place, name, over)
    place.reference = folder / "reference"
    run_engine("train", place.spec("reference", options(1)), place.reference)
    return place


def _spec(world: SimpleNamespace, name: str, over: dict[str, Any]) -> Path:
    (world.folder / name).mkdir(exist_ok=True)
    return tiny_spec(world.folder / name, world.model, world.root, over)


def weights(run_dir: Path, name: str = f"step_{STEPS}") -> dict[str, torch.Tensor]:
    return load_file(run_dir / "safetensors" / name / "model.safetensors")


def assert_same_run(run_dir: Path, reference: Path) -> None:
    assert losses(run_dir) == pytest.approx(losses(reference), rel=1e-5)
    assert len(losses(reference)) == STEPS
    ours, theirs = weights(run_dir), weights(reference)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-5)


def test_a_run_leaves_what_it_promises(world: SimpleNamespace) -> None:
    run = world.reference
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"], status["total_steps"], status["exit_code"]) == (
        "COMPLETE",
        STEPS,
        STEPS,
        0,
    )
    plan = json.loads((run / "plan.json").read_text())
    assert plan["total_steps"] == STEPS and plan["effective_batch"] == 6
    assert losses(run)[-1] < losses(run)[0]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_4", "step_6", "step_8"]
    best = json.loads((run / "best.json").read_text())
    assert best["metric"] == "val/avg_loss" and best["value"] == min(_validation(run))
    assert os.readlink(run / "best") == f"safetensors/{best['name']}"
    page = (run / "report.html").read_text()
    assert f"COMPLETE · step {STEPS} of {STEPS}" in page and 'aria-label="Loss"' in page and "loaded again" in page
    proof = json.loads((run / "best" / "proof.json").read_text())
    assert proof["reloaded_loss"] == pytest.approx(proof["trainer_loss"], rel=1e-4)


def _validation(run: Path) -> list[float]:
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [event["val/avg_loss"] for event in events if "val/avg_loss" in event]


def test_the_trained_weights_differ_from_the_base(world: SimpleNamespace) -> None:
    base = load_file(world.model / "model.safetensors")
    unchanged = [name for name, tensor in weights(world.reference).items() if torch.equal(tensor, base[name])]
    assert not unchanged


def test_an_export_loads_in_plain_transformers(world: SimpleNamespace) -> None:
    load_export(world.reference / "best", None, torch.float32, torch.device("cpu"))
    kept = {p.name for p in world.model.iterdir()}
    assert kept <= {p.name for p in (world.reference / "best").iterdir()}


# One sample a micro-step: a text, an image and videos meet on the two ranks; and all layers stay gathered meanwhile.
SINGLY = {
    "engine.packing": False,
    "train.train_policy.mini_batch": 1,
    "train.fsdp_reshard_after_forward": "never",
}


@pytest.mark.parametrize(("name", "changes"), [("two", {}), pytest.param("two_singly", SINGLY, marks=pytest.mark.slow)])
def test_two_ranks_are_one_rank(world: SimpleNamespace, name: str, changes: dict[str, Any]) -> None:
    run_engine("train", world.spec(name, options(2, **changes)), world.folder / name / "run", ranks=2)
    assert_same_run(world.folder / name / "run", world.reference)


def test_what_computes_before_the_weights_are_there_leaves_nothing(world: SimpleNamespace) -> None:
    """Neither in layers that train nor in frozen ones, gathered for a whole step."""
    frozen = {"policy.freeze_pattern": ["visual"], "train.fsdp_reshard_after_forward": "never"}
    reference = train_here(world.spec("frozen", options(1, **frozen)), world.folder / "frozen/run")
    spec, run = world.spec("late", options(2, **frozen)), world.folder / "late/run"
    command = engine_command("train", spec, run, ranks=2)
    at = command.index("vidqa.engine")
    command[at - 1 : at + 1] = [str(Path(__file__).with_name("late_weights.py"))]
    done = forked.run(command, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_run(run, reference)


def test_accumulation_without_packing_is_packing(world: SimpleNamespace) -> None:
    changes = {
        "engine.packing": False,
        "train.train_policy.mini_batch": 2,
        "policy.model_gradient_checkpointing": False,
    }
    assert_same_run(train_here(world.spec("loose", options(1, **changes)), world.folder / "loose/run"), world.reference)


def test_shared_videos_change_speed_and_nothing_else(world: SimpleNamespace) -> None:
    """With every sample in every step the order of samples is the same too, so that losses and weights must be."""
    samples = len(json.loads((world.root / "annotations.json").read_text()))
    whole = {"validation.enable": False, "train.epoch": 3, "engine.pack_tokens": 900}
    whole["train.train_policy.dataset.test_size"] = None
    for name, share, ranks in (("alone", False, 1), ("shared", True, 1), ("shared_2", True, 2)):
        over = options(ranks, **whole, **{"engine.share_video_prefix": share})
        over["train.train_batch_per_replica"] = samples // ranks
        spec, run = world.spec(name, over), world.folder / name / "run"
        train_on(ranks, spec, run)
    alone = world.folder / "alone/run"
    tokens = [[e["perf/tokens_per_s"] * e["perf/step_s"] for e in _steps(world, name)] for name in ("shared", "alone")]
    assert tokens[0][0] < 0.8 * tokens[1][0]
    for name in ("shared", "shared_2"):
        run = world.folder / name / "run"
        assert losses(run) == pytest.approx(losses(alone), rel=1e-5)
        ours, theirs = weights(run, "step_3"), weights(alone, "step_3")
        assert all(torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-5) for key in theirs)


def _steps(world: SimpleNamespace, name: str) -> list[dict[str, Any]]:
    return [e for e in read_metrics(world.folder / name / "run/metrics.jsonl") if "perf/step_s" in e]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_killed_run_resumes_on_another_number_of_ranks(world: SimpleNamespace, before: int, after: int) -> None:
    name = f"killed_{before}_{after}"
    run_dir = world.folder / name / "run"
    spec = world.spec(name, options(before))
    process = _start(spec, run_dir, before)
    _wait_for(run_dir / "checkpoints/step_2/trainer.json", process)
    ranks = [found for pid in _children(process.pid) if (found := ProcessIdentity.of_pid(pid))]
    assert len(ranks) == before
    if before == 1:
        process.kill()
    else:  # one rank alone, for which the others do not wait
        os.kill(ranks[-1].pid, signal.SIGKILL)
    process.wait(60)
    deadline = time.monotonic() + 60
    while any(each.is_alive for each in ranks):  # they end by themselves, in spite of sessions of their own
        assert time.monotonic() < deadline, f"still alive: {ranks}"
        time.sleep(0.02)
    done = len(losses(run_dir))
    assert done < STEPS
    codes = [problem.code for problem in RunFolder(run_dir).read_problems()]
    assert codes == ([] if before == 1 else ["ENGINE_RANK_LOST"])
    resumed = run_engine("train", world.spec(name, options(after, **{"train.resume": True})), run_dir, ranks=after)
    assert "resumed after step" in resumed.stderr
    assert_same_run(run_dir, world.reference)


def test_sigterm_saves_and_stops_and_the_run_resumes(world: SimpleNamespace) -> None:
    run_dir = world.folder / "stopped/run"
    never = {"train.ckpt.save_freq": 1000}
    process = _start(world.spec("stopped", options(2, **never)), run_dir, 2)
    _wait_for(run_dir / "metrics.jsonl", process)
    for child in _children(process.pid):
        os.kill(child, signal.SIGTERM)
    process.wait(60)
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("STOPPED", 6)
    assert f"STOPPED · step {status['step']} of {STEPS}" in (run_dir / "report.html").read_text()
    process = _start(world.spec("stopped", options(2, **never, **{"train.resume": True})), run_dir, 2)
    while process.poll() is None:  # signals that come when all is done, until the processes are gone, change nothing
        if json.loads((run_dir / "status.json").read_text())["state"] == "COMPLETE":
            with suppress(OSError):
                for child in _children(process.pid):
                    os.kill(child, signal.SIGTERM)
        time.sleep(0.01)
    assert process.returncode == 0
    assert_same_run(run_dir, world.reference)
    page = (run_dir / "report.html").read_text()
    assert f"COMPLETE · step {STEPS} of {STEPS}" in page and f"resumes after step {status['step']}" in page


def _start(spec: Path, run_dir: Path, ranks: int) -> Started:
    log = (spec.parent / "log.txt").open("wb")
    return Started(engine_command("train", spec, run_dir, ranks), stdout=log, stderr=log, start_new_session=True)


def _wait_for(path: Path, process: Started) -> None:
    deadline = time.monotonic() + 600
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
