"""A real training of the tiny model as a job in a cluster: two pods under real torchrun, preempted, and resumed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tomli_w

from tests.platforms.kubernetes_api import cluster, until
from tests.tiny_world import losses, tiny_data, tiny_model, tiny_spec
from vidqa.platforms import jobs
from vidqa.platforms._base import State
from vidqa.platforms.launch import Wanted, launch
from vidqa.run_folder import read_metrics


def place(folder: Path, nodes: int) -> Wanted:
    table = {"python": sys.executable, "volumes": [{"mount_path": "/", "host_path": "/"}]}
    (folder / "site.toml").write_text(tomli_w.dumps({"kubernetes": table}))
    return Wanted(nodes=nodes, gpus=0, image="engine:1", site=folder / "site.toml")


@pytest.mark.slow
def test_two_pods_train_are_preempted_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=4)
    settings = {"policy.parallelism.dp_shard_size": 2, "train.epoch": 40, "train.train_batch_per_replica": 2}
    spec = tiny_spec(tmp_path, model, root, {**settings, "train.ckpt.export_safetensors": False})
    with cluster(tmp_path / "cluster") as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        record = launch("train", spec, "kubernetes", place(tmp_path, 2)).record
        run_dir = Path(record.run_dir)
        until(lambda: (run_dir / "metrics.jsonl").exists() and losses(run_dir), "a step", 150)
        running = [pod for pod in api.select("pods", "") if pod["status"]["phase"] == "Running"]
        assert len(running) == 2
        api.disrupt(running[1], "PreemptionByScheduler")  # the node without rank 0
        record = jobs.wait(record, 150)
        assert record.state == State.COMPLETE, (record, jobs.tail(record, 40))
        assert "resumed after step" in jobs.tail(record, 500)
        assert len(api.select("pods", "")) == 4
    steps = [event["step"] for event in read_metrics(run_dir / "metrics.jsonl") if "train/loss" in event]
    assert steps == list(range(steps[0], steps[0] + 80))  # every step once
