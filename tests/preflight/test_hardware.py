"""GPUs, seen through a program that answers as nvidia-smi does, or declared; clocks; what torch was compiled for."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from tests.preflight.corpus import Case, machine
from vidqa.jobs.platforms import local
from vidqa.preflight import gpus
from vidqa.preflight.environment_checks import clock_skew
from vidqa.preflight.gpus import (
    Build,
    Declared,
    Gpu,
    declared_or_visible,
    driver_cuda,
    engine_build,
    runs_on,
    visible_gpus,
)

H200 = "NVIDIA H200, 143771, 9.0, 580.159.04"


@pytest.fixture
def case(tmp_path: Path, clips: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, clips, tiny_model, monkeypatch)


def test_gpus_are_read_from_nvidia_smi(case: Case) -> None:
    machine(case, H200, cuda="13.0", count=4)
    assert visible_gpus() == [Gpu("NVIDIA H200", 140.4, "sm_90", "580.159.04")] * 4
    assert driver_cuda() == "13.0"
    for visible, count in (("", 0), ("1", 1), ("0,3", 2), ("GPU-2", 1), ("-1", 0), ("7", 0)):
        case.patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert len(visible_gpus()) == count, visible


@pytest.mark.parametrize(
    ("names", "profile"), [("MIG-b", "3g.71gb"), ("MIG-b,MIG-a", "3g.71gb"), (None, "1g.18gb"), ("0", ""), ("", None)]
)
def test_a_mig_device_is_one_slice_of_its_gpu(case: Case, names: str | None, profile: str | None) -> None:
    machine(case, H200, cuda="13.0", count=1)
    program = case.folder / "bin/nvidia-smi"
    slices = r"  MIG 1g.18gb     Device  0: (UUID: MIG-a)\n  MIG 3g.71gb     Device  1: (UUID: MIG-b)\n"
    program.write_text(program.read_text().replace("(UUID: GPU-0)\n", rf"(UUID: GPU-0)\n{slices}", 1))
    if names is not None:
        case.patch.setenv("CUDA_VISIBLE_DEVICES", names)
    whole = Gpu("NVIDIA H200", 140.4, "sm_90", "580.159.04")
    piece = replace(whole, name=f"NVIDIA H200 MIG {profile}", memory_gb=float((profile or "")[3:-2] or 0))
    assert visible_gpus() == ([] if profile is None else [piece if profile else whole])
    assert local.gpu_count() == len(visible_gpus())


def test_what_is_declared_wins(case: Case) -> None:
    machine(case, H200, cuda="13.0", count=1)
    assert declared_or_visible(Declared(), 8) == visible_gpus()
    assert declared_or_visible(Declared(2, 80.0, "sm_80"), 8) == [Gpu("NVIDIA H200", 80.0, "sm_80")] * 2
    case.patch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert declared_or_visible(Declared(gpu_memory_gb=80), 8) == [Gpu("declared", 80)] * 8


@pytest.mark.parametrize(
    ("arch", "built", "runs"),
    [
        ("sm_90", ["sm_80", "sm_90"], True),
        ("sm_86", ["sm_80"], True),  # binary code runs on newer minor versions
        ("sm_80", ["sm_86"], False),
        ("sm_90", ["sm_80"], False),
        ("sm_90", ["sm_80", "compute_80"], True),  # intermediate code is compiled on the spot
        ("sm_80", ["compute_90"], False),
        ("sm_103", ["sm_100"], True),
        ("sm_120", ["sm_100"], False),
        ("sm_90", ["sm_90a"], True),
        ("sm_103", ["sm_100a", "compute_100a"], False),  # code of one version alone
        ("sm_121", ["sm_120"], True),
        ("hopper", ["sm_90"], False),
    ],
)
def test_which_code_runs_where(arch: str, built: list[str], runs: bool) -> None:
    assert runs_on(arch, built) is runs


def test_torch_says_what_it_was_compiled_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process reads what it said, as long as it is the same torch."""
    monkeypatch.setenv("VIDQA_CACHE_DIR", str(tmp_path))
    asked = Mock(side_effect=cache(gpus.output_of))  # a real process, once
    monkeypatch.setattr(gpus, "output_of", asked)
    build = engine_build.__wrapped__()
    assert build is not None and build.cuda == (torch.version.cuda or "")
    kept = tmp_path / "torch_build.json"
    said = json.loads(kept.read_text())
    kept.write_text(json.dumps({**said, "cuda": "1.0"}))
    assert engine_build.__wrapped__() == Build("1.0", build.architectures) and asked.call_count == 1
    for useless in ({**said, "cuda": "1.0", "torch": ["/another/torch/__init__.py", 1, 2]}, {"torch": said["torch"]}):
        kept.write_text(json.dumps(useless))
        assert engine_build.__wrapped__() == build and json.loads(kept.read_text()) == said
    assert asked.call_count == 3


def test_a_machine_that_suits_raises_nothing(case: Case) -> None:
    machine(case, H200, cuda="13.9")
    report = case.report("environment")
    assert [problem.code for problem in report.problems if problem.severity == "error"] == []
    assert report.facts["gpu_arch"] == ["sm_90"] and report.facts["driver_cuda"] == "13.9"
    assert report.facts["gpu_memory_gb"] == 140.4


def test_declared_hardware_is_judged_as_if_it_were_here(case: Case) -> None:
    case.patch.setenv("CUDA_VISIBLE_DEVICES", "")
    case.options |= {"engine": "cosmos-rl", "declared": Declared(gpu_arch="sm_90")}
    report = case.report()
    assert report.problems == [] and report.facts["gpus"] == 2  # as many as the spec has ranks
    for unreleased in ("sm_75", "sm_89", "sm_121"):  # the image's libraries are proven on no sm_121
        case.options["declared"] = Declared(gpu_arch=unreleased)
        assert [problem.code for problem in case.report("environment").problems] == ["ENV_GPU_UNFIT"], unreleased


def test_a_clock_that_differs(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.touch()
    now = time.time()
    assert clock_skew(tmp_path, os.stat(made).st_mtime, now, now) == []
    assert clock_skew(tmp_path, now - 4, now, now + 1) == []
    (behind,) = clock_skew(tmp_path, now - 60, now, now + 1)
    (ahead,) = clock_skew(tmp_path, now + 61, now, now + 1)
    assert behind.code == ahead.code == "ENV_MACHINE_LIMITS"
    assert "60 s ago" in behind.message and "60 s ahead" in ahead.message
