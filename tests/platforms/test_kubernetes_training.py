"""A real training of the tiny model as a job in a cluster: two pods under real torchrun, preempted, and resumed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tomli_w

from tests.platforms.kubernetes_api import cluster, until
from tests.tiny_world import losses, tiny_data, tiny_model, tiny_spec
from vidqa.core.run_folder import read_metrics
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import launch
from vidqa.jobs.platforms._base import State
from vidqa.jobs.resources import Resources

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


def place(folder: Path, nodes: int) -> Resources:
    table = {"python": sys.executable, "volumes": [{"mount_path": "/", "host_path": "/"}]}
    (folder / "site.toml").write_text(tomli_w.dumps({"kubernetes": table}))
    return Resources(nodes=nodes, gpus=0, image="engine:1", site=folder / "site.toml")


def test_two_pods_train_are_preempted_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=4)
    # More steps than any machine takes meanwhile: the training is cancelled when it has shown what it is for.
    settings = {"policy.parallelism.dp_shard_size": 2, "train.epoch": 10_000, "train.train_batch_per_replica": 2}
    spec = tiny_spec(tmp_path, model, root, {**settings, "train.ckpt.export_safetensors": False})
    with cluster(tmp_path / "cluster") as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        record = launch("train", spec, "kubernetes", place(tmp_path, 2)).record
        metrics = Path(record.run_dir) / "metrics.jsonl"
        until(lambda: metrics.exists() and losses(metrics.parent), "a step", 600)
        running = [pod for pod in api.select("pods", "") if pod["status"]["phase"] == "Running"]
        api.disrupt(running[1], "PreemptionByScheduler")  # the node without rank 0
        until(lambda: "resumed after step" in jobs.tail(record, 500), "another attempt", 600)
        done = len(losses(metrics.parent))
        until(lambda: len(losses(metrics.parent)) > done, "a step of it", 600)
        record = jobs.cancel(record.job_id, 60)
        assert (record.state, record.exit_code) == (State.CANCELED, 6), (record, jobs.tail(record, 40))
        assert len(running) == 2 and len(api.processes) == 4
    steps = [event["step"] for event in read_metrics(metrics) if "train/loss" in event]
    assert steps == list(range(1, len(steps) + 1))  # every step once
