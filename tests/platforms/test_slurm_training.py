"""The tiny model trained on two SLURM nodes: a node lost on the way costs nothing but time, and cancelling saves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec

from tests.hub_server import serving
from tests.platforms.slurm_cluster import SlurmCluster
from tests.platforms.test_slurm_jobs import number, until_seen
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import launch, retry
from vidqa.jobs.platforms._base import State
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
LIMIT_S = 900
STEPS = 36
LAUNCH = Path(__file__).resolve().parents[2] / "scripts/launch.py"
TWO_NODES = Resources(nodes=2)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec of STEPS steps for two processes, saved after each second one."""
    folder = tmp_path_factory.mktemp("slurm-training")
    changes = {
        "policy.parallelism.dp_shard_size": 2,
        "train.train_batch_per_replica": 2,
        "train.epoch": 18,
        "train.max_num_steps": STEPS,
        "train.ckpt.save_freq": 2,
        "train.ckpt.export_safetensors": False,
    }
    return tiny_spec(folder, tiny_model(folder), tiny_data(folder, clips=4), changes)


def until_step(record: JobRecord, step: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while record.run.read_status().get("step", 0) < step:
        seen = jobs.observe(record)
        assert not seen.state.is_terminal and time.monotonic() < deadline, f"{seen.state}\n{record.log.read_text()}"
        time.sleep(0.05)


def test_a_job_is_cancelled_goes_on_loses_a_node_and_goes_on_again(slurm: SlurmCluster, training: Path) -> None:
    undisturbed = training.parent / "undisturbed"
    run_engine("train", training, undisturbed, ranks=2)  # on this machine
    first = launch("train", training, "slurm", TWO_NODES).record
    run = Path(first.run_dir)
    until_step(first, 5)
    first = jobs.cancel(first.job_id, LIMIT_S)
    assert (first.state, first.exit_code) == (State.CANCELED, 6), first.log.read_text()
    done = len(losses(run))
    assert 5 <= done < STEPS and slurm.ask("squeue", "-h") == ""

    record = retry(first).record
    until_step(record, done + 5)
    slurm.lose("n2")
    lost_at = len(losses(run))
    until_seen(record, lambda seen: seen.message.startswith("attempt 2"))
    slurm.bring_back("n2")
    until_seen(record, lambda seen: seen.state == State.PENDING)
    slurm.start_now(number(record))
    record = jobs.wait(record, LIMIT_S)
    log = record.log.read_text()
    assert (record.state, record.run_dir) == (State.COMPLETE, first.run_dir), log
    assert f"resumed after step {done} " in log  # the cancelled job had saved on both nodes
    assert log.count("resumed after step") == 2 and done + 5 <= lost_at < STEPS
    assert losses(run) == pytest.approx(losses(undisturbed), rel=1e-6)
    assert json.loads((run / "run.json").read_text())["jobs"] == [first.job_id, record.job_id]


def test_what_a_dry_run_of_a_hub_model_wrote_trains_when_it_is_submitted(
    slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of `next` as it is printed: the model is fetched, the job computes offline."""
    folder = tmp_path_factory.mktemp("by-hand")
    model = tiny_model(folder)
    changes = {"train.epoch": 2, "policy.model_name_or_path": "hf_model://org/tiny"}
    spec = tiny_spec(folder, model, tiny_data(folder, clips=2), changes)
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    asked = [LAUNCH, "train", "--spec", spec, "--platform", "slurm", "--gpus", 0, "--dry-run", "--out", folder / "look"]
    with serving(model) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        ran = subprocess.run([sys.executable, *map(str, asked), "--json"], capture_output=True, text=True)
        result = json.loads(ran.stdout)
        assert ran.returncode == 0 and len(result["next"]) == 2, ran.stdout
        fetch, submit = result["next"]
        subprocess.run(["bash", "-c", fetch], check=True, capture_output=True, timeout=LIMIT_S)
    subprocess.run(["bash", "-c", submit], check=True, capture_output=True, timeout=LIMIT_S)  # the hub is gone
    run = Path(result["data"]["run_dir"])
    deadline = time.monotonic() + LIMIT_S
    while not list(run.glob("slurm-*.exit")):
        assert time.monotonic() < deadline, (run / "log.txt").read_text()
        time.sleep(0.1)
    assert json.loads((run / "status.json").read_text())["state"] == "COMPLETE", (run / "log.txt").read_text()
    assert len(losses(run)) == 2 and (run / "best").is_dir()
