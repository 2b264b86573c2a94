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


def place(folder: Path, nodes: int) -> Wanted:
    table = {"python": sys.executable, "volumes": [{"mount_path": "/", "host_path": "/"}]}
    (folder / "site.toml").write_text(tomli_w.dumps({"kubernetes": table}))
    return Wanted(nodes=nodes, gpus=0, image="engine:1", site=folder / "site.toml")


@pytest.mark.slow
def test_two_pods_train_are_preempted_and_take_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=4)
    settings = {"policy.parallelism.dp_shard_size": 2, "train.epoch": 3, "train.train_batch_per_replica": 2}
    with cluster(tmp_path / "cluster") as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        whole = launch("train", tiny_spec(tmp_path, model, root, settings), "kubernetes", place(tmp_path, 2)).record
        whole = jobs.wait(whole, 150)
        assert whole.state == State.COMPLETE, (whole, jobs.tail(whole, 40))
        spec = tiny_spec(tmp_path, model, root, {**settings, "logging.experiment_name": "again"})
        record = launch("train", spec, "kubernetes", place(tmp_path, 2)).record
        metrics = Path(record.run_dir) / "metrics.jsonl"
        until(lambda: metrics.exists() and len(losses(Path(record.run_dir))) >= 2, "two steps", 90)
        running = [pod for pod in api.select("pods", "") if pod["status"]["phase"] == "Running"]
        api.disrupt(running[1], "PreemptionByScheduler")
        record = jobs.wait(record, 150)
        assert record.state == State.COMPLETE, (record, jobs.tail(record, 40))
        assert "resumed after step" in jobs.tail(record, 500)
    assert losses(Path(record.run_dir)) == pytest.approx(losses(Path(whole.run_dir)), rel=1e-4)
