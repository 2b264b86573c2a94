"""Preflight's last group asks the platform about the very job that a launch would send: settings, image, nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vidqa.jobs.resources import Resources
from vidqa.preflight.report import Report, preflight

WriteSpec = Callable[..., Path]


def errors(report: Report, severity: str = "error") -> list[str]:
    return [problem.code for problem in report.problems if problem.severity == severity]


def remedy(report: Report) -> str:
    """What to do about a platform that cannot be reached: it names no other one."""
    return next(problem.remedy for problem in report.problems if problem.code == "PLATFORM_UNREACHABLE")


def test_docker_daemon_that_does_not_run(
    write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    report = preflight(write_spec(), "docker", group="platform", resources=Resources(image="engine:1"))
    assert errors(report) == [] and "PLATFORM_UNREACHABLE" in errors(report, "warning"), report.text
    assert "DOCKER_HOST" in remedy(report) and "SLURM" not in report.text


def test_engine_image_without_a_name(write_spec: WriteSpec) -> None:
    report = preflight(write_spec(), "docker", group="platform")
    assert errors(report) == ["PLATFORM_IMAGE_UNUSABLE"], report.text


def test_slurm_without_its_commands(write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = preflight(write_spec(), "slurm", group="platform")
    assert errors(report) == [] and "PLATFORM_UNREACHABLE" in errors(report, "warning"), report.text
    assert "login node" in remedy(report) and "docker" not in report.text.casefold()


def test_kubernetes_without_a_kubeconfig(
    write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    report = preflight(write_spec(), "kubernetes", group="platform", resources=Resources(image="engine:1"))
    # Nothing mounts the spec's folders into a pod either, as no site.toml says how: one report names both.
    assert set(errors(report)) == {"PLATFORM_PATH_UNSEEN"}, report.text
    assert "PLATFORM_UNREACHABLE" in errors(report, "warning"), "a launch refuses, whatever the platform"
    assert "KUBECONFIG" in remedy(report) and "Docker" not in remedy(report)
    assert all("SLURM" not in problem.remedy for problem in report.problems)


def test_site_settings_are_read(write_spec: WriteSpec, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('[slurm]\npartitoin = "gpu"\n')
    report = preflight(write_spec(), "slurm", group="platform", resources=Resources(site=site))
    assert len(errors(report)) == 1 and "partition" in report.problems[-1].message + report.problems[-1].remedy


def test_processes_that_do_not_spread_over_the_nodes(write_spec: WriteSpec) -> None:
    report = preflight(write_spec(), "local", group="platform", resources=Resources(nodes=3))
    assert "PLATFORM_NODES" in errors(report), report.text


def test_paths_only_on_the_cluster_are_skipped_with_a_warning(write_spec: WriteSpec, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('[slurm]\ncluster_paths = ["/nodes"]\n')
    away = {f"custom.{part}_dataset.annotation_path": f"/nodes/{part}.json" for part in ("train", "val")}
    away |= {"policy.model_name_or_path": "/nodes/model"}
    report = preflight(write_spec(**away), "slurm", resources=Resources(site=site))
    skipped = {checked.name: checked.why for checked in report.checks if "/nodes" in checked.why}
    assert {checked.status for checked in report.checks if checked.name in skipped} == {"skipped"}
    assert {"access", "weights", "annotations", "planned frames", "tokens", "steps", "GPU memory"} <= skipped.keys()
    (told,) = [problem for problem in report.problems if problem.code == "PLATFORM_NOT_SEEN"]
    assert told.severity == "warning" and "/nodes/model" in told.message and "/nodes/val.json" in told.message
    assert set(errors(report)) <= {"PLATFORM_REFUSED"} and not report.facts["by_hand"], report.text
    media = {f"custom.{part}_dataset.media_path": f"/nodes/{part}" for part in ("train", "val")}
    report = preflight(write_spec(**media), "slurm", resources=Resources(site=site))
    states = {checked.name: checked.status for checked in report.checks}
    assert states["annotations"] == states["sets apart"] == states["steps"] == "ok", report.text
    assert states["headers"] == states["near duplicates"] == states["tokens"] == states["GPU memory"] == "skipped"
    assert report.facts["train_records"] == 8 and report.facts["total_steps"] == 6
    without = preflight(write_spec(**away), "slurm")
    assert {"STORAGE_NOT_FOUND", "DATA_FILE_MISSING"} <= set(errors(without)), "what is not declared has to be here"
