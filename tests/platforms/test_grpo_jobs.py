"""A job of reinforcement learning is rendered as one of training is, on every platform, with what its rewards read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from vidqa.jobs import job_results
from vidqa.jobs.launch import DryRun, dry_run
from vidqa.jobs.resources import Resources

IMAGE = "registry/engine@sha256:" + "0" * 64
SITES = {
    "local": "",
    "docker": "[docker]\n",
    "slurm": '[slurm]\nbackend = "apptainer"\nimage = "docker://registry/engine:1"\n',
    "kubernetes": '[kubernetes]\nvolumes = [{{mount_path = "{folder}", claim = "data"}}]\n',
}


def rendered(action: str, spec: Path, platform: str) -> DryRun:
    site = spec.with_name("site.toml")
    site.write_text(SITES[platform].format(folder=spec.parent))
    image = IMAGE if platform in ("docker", "kubernetes") else None
    return dry_run(action, spec, platform, Resources(gpus=1, image=image, site=site))


def files(made: DryRun) -> dict[str, str]:
    """What would be submitted, but the spec; the same for two jobs that differ in their names alone."""
    named = re.compile(re.escape(made.job.job_id), re.IGNORECASE)
    texts = {name: named.sub("JOB", text) for name, text in job_results.files_of(made).items() if name != "spec.toml"}
    return {name: re.sub(r"(?s)kind: ConfigMap.*?\n---", "", text) for name, text in texts.items()}


@pytest.mark.parametrize("platform", SITES)
def test_both_actions_are_submitted_alike(platform: str, write_spec: Callable[..., Path]) -> None:
    spec = write_spec("complete")
    train, grpo = files(rendered("train", spec, platform)), files(rendered("grpo", spec, platform))
    assert train and grpo != train
    assert {name: text.replace("grpo", "train") for name, text in grpo.items()} == train


@pytest.mark.parametrize("platform", ["docker", "slurm"])
def test_a_container_sees_the_folder_of_a_reward_function(
    platform: str, write_spec: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec, own = write_spec("complete"), tmp_path_factory.mktemp("own") / "mine.py"
    own.write_text("def score(text, record, token_ids, finish_reason):\n    return 1.0\n")
    with spec.open("a") as file:
        file.write(f"[train.train_policy]\nreward_function = {json.dumps([f'{own}:score'])}\n")
    made = rendered("grpo", spec, platform)
    assert f"{own}:score" in made.spec_toml
    assert any(str(own.parent) in text for text in files(made).values())
