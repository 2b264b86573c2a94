"""From a run folder to one export or checkpoint, over the layouts that exist in the wild."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vidqa.core.problem import ProblemError
from vidqa.spec.run_lookup import find_checkpoint, find_export


def export(run: Path, name: str, *, complete: bool = True) -> Path:
    folder = run / "safetensors" / name
    folder.mkdir(parents=True)
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"\0" * 8)
    if complete:
        (folder / "config.json").write_text("{}")
    return folder


def checkpoint(run: Path, name: str, *, complete: bool = True) -> Path:
    folder = run / "checkpoints" / name
    (folder / "policy").mkdir(parents=True)
    if complete:
        (folder / "policy" / "__0_0.distcp").write_bytes(b"\0")
    return folder


def best(run: Path, target: str, **facts: object) -> None:
    (run / "best").symlink_to(target)
    if facts:
        (run / "best.json").write_text(json.dumps(facts))


def code_of(wrong: pytest.ExceptionInfo[ProblemError]) -> tuple[str, str]:
    (problem,) = wrong.value.problems
    return problem.code, problem.message + problem.remedy


def test_our_own_run(tmp_path: Path) -> None:
    one, two = export(tmp_path, "epoch_1"), export(tmp_path, "epoch_2")
    best(tmp_path, "safetensors/epoch_1", metric="val/avg_loss", value=0.2, step=10, name="epoch_1")
    assert find_export(tmp_path) == one
    assert find_export(tmp_path, "latest") == two
    assert find_export(tmp_path, "epoch_2") == two


@pytest.mark.parametrize("where", ["", "run-1", "run-1/20260101120000"])
def test_below_run_id_and_timestamp(tmp_path: Path, where: str) -> None:
    run = tmp_path / where
    found = export(run, "step_40")
    state = checkpoint(run, "step_40")
    best(run, "safetensors/step_40")
    assert find_export(tmp_path) == found
    assert find_checkpoint(tmp_path, "best") == state


def test_an_absolute_link_of_another_machine(tmp_path: Path) -> None:
    found = export(tmp_path, "step_40")
    best(tmp_path, "/results/abc/20260101/safetensors/step_40")
    assert find_export(tmp_path) == found
    state = checkpoint(tmp_path, "step_40")
    (tmp_path / "checkpoints" / "best").symlink_to("/results/abc/20260101/checkpoints/step_40/policy")
    assert find_checkpoint(tmp_path, "best") == state


def test_a_dangling_best_is_repaired_by_its_twin_only(tmp_path: Path) -> None:
    found = export(tmp_path, "epoch_7")
    export(tmp_path, "epoch_9")
    best(tmp_path, "safetensors/step_7")
    assert find_export(tmp_path) == found


@pytest.mark.parametrize(
    ("link", "facts", "kept", "ours"),
    [
        ("step_7", {}, ["step_5", "epoch_7"], False),  # the run keeps both kinds of names: they count different things
        ("step_7", {}, ["epoch_7"], True),  # our own runs mean what they record
        ("", {"name": "epoch_1", "step": 10}, ["epoch_10"], False),  # step 10 is where epoch 1 ended
        ("", {"name": "epoch_1", "step": 10}, ["step_1"], False),
    ],
)
def test_step_7_is_not_epoch_7(tmp_path: Path, link: str, facts: dict, kept: list[str], ours: bool) -> None:
    for name in kept:
        export(tmp_path, name)
    if link:
        best(tmp_path, f"safetensors/{link}")
    if facts:
        (tmp_path / "best.json").write_text(json.dumps(facts))
    if ours:
        (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ProblemError) as wrong:
        find_export(tmp_path)
    code, text = code_of(wrong)
    assert code == "SPEC_PARENT_RUN" and "is not kept" in text


def test_best_json_alone_is_enough(tmp_path: Path) -> None:
    found = export(tmp_path, "epoch_3")
    (tmp_path / "best.json").write_text(json.dumps({"metric": "m", "value": 1, "step": 30, "name": "epoch_3"}))
    assert find_export(tmp_path) == found


def test_never_latest_in_silence(tmp_path: Path) -> None:
    export(tmp_path, "epoch_1"), export(tmp_path, "epoch_2")
    with pytest.raises(ProblemError) as wrong:
        find_export(tmp_path)
    code, text = code_of(wrong)
    assert code == "SPEC_PARENT_RUN" and "epoch_1, epoch_2" in text and "latest" in text
    best(tmp_path, "safetensors/epoch_5")
    with pytest.raises(ProblemError) as wrong:
        find_export(tmp_path)
    assert "epoch_5" in code_of(wrong)[1]


def test_half_exports_shards_and_strangers_are_ignored(tmp_path: Path) -> None:
    found = export(tmp_path, "step_9")
    export(tmp_path, "step_10", complete=False)
    (tmp_path / "safetensors" / ".step_11").mkdir()
    (tmp_path / "safetensors" / "base").mkdir()
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "model-00001-of-00004.safetensors").write_bytes(b"")
    assert find_export(tmp_path, "latest") == found
    ready = checkpoint(tmp_path, "step_9")
    checkpoint(tmp_path, "step_10", complete=False)
    assert find_checkpoint(tmp_path, "latest") == ready
    with pytest.raises(ProblemError) as wrong:
        find_checkpoint(tmp_path, "step_10")
    assert code_of(wrong)[0] == "SPEC_PARENT_RUN"


def test_latest_counts_numbers_and_falls_back_to_time(tmp_path: Path) -> None:
    export(tmp_path, "step_9"), export(tmp_path, "step_100")
    assert find_export(tmp_path, "latest").name == "step_100"
    mixed = export(tmp_path, "epoch_2")
    os.utime(mixed, (4e9, 4e9))
    assert find_export(tmp_path, "latest") == mixed


def test_no_run_and_several_runs(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ProblemError) as wrong:
            find_export(folder)
        assert code_of(wrong)[0] == "SPEC_PARENT_RUN"
    export(tmp_path / "a", "step_1"), export(tmp_path / "b", "step_1")
    with pytest.raises(ProblemError) as wrong:
        find_export(tmp_path, "latest")
    assert "2 runs" in code_of(wrong)[1]


def test_an_adapter_is_an_export(tmp_path: Path) -> None:
    folder = tmp_path / "safetensors" / "epoch_1"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"")
    (folder / "adapter_config.json").write_text("{}")
    assert find_export(tmp_path, "epoch_1") == folder


@pytest.mark.parametrize("which", ["best", "latest", "step_8"])
def test_a_run_without_an_export_says_so(tmp_path: Path, which: str) -> None:
    checkpoint(tmp_path, "step_8")
    with pytest.raises(ProblemError) as wrong:
        find_export(tmp_path, which)
    assert "no complete save" in code_of(wrong)[1]


@pytest.mark.parametrize("absolute", [True, False])
def test_a_run_of_cosmos_rl_with_best_at_its_root(tmp_path: Path, absolute: bool) -> None:
    """Its current layout: <output_dir>/best/safetensors is a link into <output_dir>/<timestamp>/safetensors."""
    run = tmp_path / "20260101120000"
    found, last = export(run, "step_20"), export(run, "final")
    export(run, "step_40"), checkpoint(run, "step_20")
    (tmp_path / "best").mkdir()
    away = "/results/job" if absolute else ".."
    for kind in ("safetensors", "checkpoints"):
        (tmp_path / "best" / kind).symlink_to(f"{away}/{run.name}/{kind}/step_20")
    assert find_export(tmp_path) == find_export(run) == found
    assert find_checkpoint(tmp_path) == run / "checkpoints/step_20"
    assert find_export(tmp_path, "latest") == find_export(tmp_path, "final") == last


def test_a_best_at_the_root_belongs_to_the_run_that_it_names(tmp_path: Path) -> None:
    first, second = tmp_path / "20260101", tmp_path / "20260102"
    export(first, "step_20"), export(second, "step_20")
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "safetensors").symlink_to("../20260102/safetensors/step_20")
    assert find_export(second) == second / "safetensors/step_20"
    with pytest.raises(ProblemError) as wrong:
        find_export(first)
    assert "records no best" in code_of(wrong)[1]


def test_a_best_in_the_folder_of_the_time_and_a_broken_one(tmp_path: Path) -> None:
    """Its older layout, where a best without a score is a link to nothing."""
    run = tmp_path / "20260101120000"
    found = export(run, "final")
    (run / "best").mkdir()
    (run / "best" / "safetensors").symlink_to(run / "safetensors" / "final")
    assert find_export(tmp_path) == found
    (run / "best" / "safetensors").unlink()
    (run / "best" / "safetensors").symlink_to(run / "safetensors" / "step_-1")
    with pytest.raises(ProblemError) as wrong:
        find_export(tmp_path)
    assert "it has: final" in code_of(wrong)[1]
