"""Preflight on real files: a clean set passes, every planted fault is found, and none hides another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clips import write_clip
from tests.hub_server import serving
from tests.preflight.conftest import records, script
from vidqa import spec as specs
from vidqa.core.problem import Exit, ProblemError
from vidqa.data import load_records
from vidqa.planning.samples import Planner, Prompting
from vidqa.preflight.report import Report, preflight
from vidqa.spec.layers import action_of

WriteSpec = Callable[..., Path]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "preflight.py"


def errors(report: Report) -> list[str]:
    return [problem.code for problem in report.problems if problem.severity == "error"]


def status(report: Report, name: str) -> str:
    return next(checked.status for checked in report.checks if checked.name == name)


def test_a_clean_set_passes_and_its_numbers_are_the_planners(write_spec: WriteSpec, tiny_model: Path) -> None:
    path = write_spec()
    report = preflight(path, "local")
    assert errors(report) == [], report.text
    assert [p.code for p in report.problems] == ["PLATFORM_TOO_FEW_GPUS"], report.problems
    assert not [c for c in report.checks if c.status == "error"]
    skipped = {c.name: c.why for c in report.checks if c.status == "skipped"}
    assert set(skipped) == {
        *("GPUs", "rules of the evaluation", "same model in the evaluation", "same frames in the evaluation"),
        *("checkpoint to resume", "time", "methods"),
        "rewards",
        "answer length",
    }, skipped
    assert all(skipped.values())

    asked = specs.load(path, "train")
    data = asked.custom.train_dataset
    planner = Planner(tiny_model, asked.custom.vision, Prompting("", "answer"))
    samples, _ = planner.plan(load_records(data.annotation_path, data.media_path))
    facts = report.facts
    assert facts["train"]["samples"] == len(samples) == 8
    assert facts["train"]["tokens"] == sum(sample.length for sample in samples)
    assert facts["train"]["supervised_tokens"] == sum(sample.supervised for sample in samples) > 0
    assert len(facts["train"]["longest"]) == 8 and facts["validation"]["samples"] == 4
    assert facts["effective_batch"] == 4 and facts["steps_per_epoch"] == 2
    assert facts["total_steps"] == specs.total_steps(asked, 8)
    assert facts["media_files"] == facts["media_decoded"] == 6
    assert facts["parameters"] > 100_000


def test_no_problem_hides_another(write_spec: WriteSpec, media: Path, tmp_path: Path) -> None:
    train = records(range(4))
    train[0]["conversations"][1]["value"] = ""
    train[2]["video"] = "absent.mp4"
    (media / "2.mp4").write_bytes((media / "2.mp4").read_bytes()[:300])
    (media / "3.mp4").write_bytes(b"")
    (tmp_path / "blocked").touch()
    more = {"train.output_dir": str(tmp_path / "blocked" / "runs"), "train.train_batch_per_replica": 100}
    report = preflight(write_spec(train, **more), "local")
    found = set(errors(report))
    assert {"ENV_FILE_REFUSED", "DATA_MEDIA_MISSING", "MEDIA_UNREADABLE", "SPEC_ZERO_STEPS"} <= found
    assert "DATA_FIELD" in found
    for name in ("2.mp4", "3.mp4"):
        named = [p for p in report.problems if name in p.where]
        assert len(named) == 1 and "used by" in named[0].message, named


def test_a_broken_spec_skips_only_what_needs_it(write_spec: WriteSpec) -> None:
    report = preflight(write_spec(**{"train.epochs": 3, "custom.vision.fps": 2}), "local", "train")
    assert {"SPEC_UNKNOWN_KEY", "SPEC_CONFLICT"} <= set(errors(report))
    assert status(report, "packages") == status(report, "ports") == "ok"
    blocked = [c for c in report.checks if c.status == "blocked"]
    assert len(blocked) > 10 and all("SPEC_" in c.why for c in blocked)


def test_a_model_that_is_not_there_leaves_data_and_media_checked(write_spec: WriteSpec, media: Path) -> None:
    (media / "1.mp4").write_bytes(b"no video at all")
    report = preflight(write_spec(**{"policy.model_name_or_path": "/absent/model"}), "local")
    assert "STORAGE_NOT_FOUND" in errors(report)
    assert status(report, "headers") == "error" and status(report, "annotations") == "ok"
    assert status(report, "tokens") == "blocked"
    alone = preflight(write_spec(**{"policy.model_name_or_path": "/absent/model"}), "local", group="budget")
    assert errors(alone) == ["STORAGE_NOT_FOUND"]


def test_a_frame_that_cannot_be_decoded_is_found_behind_a_good_header(write_spec: WriteSpec, media: Path) -> None:
    write_clip(media / "1.mp4", frames=48, fps=8, width=320, height=240)
    whole = bytearray((media / "1.mp4").read_bytes())
    begin, end = whole.index(b"mdat") + 4, whole.rindex(b"moov") - 4
    middle = (begin + end) // 2  # the first frames stay whole
    whole[middle:end] = bytes(end - middle)
    (media / "1.mp4").write_bytes(whole)
    report = preflight(write_spec(), "local")
    assert status(report, "headers") == "ok"
    assert status(report, "planned frames") == "error"
    assert any("1.mp4" in p.where for p in report.problems)
    report = preflight(write_spec(**{"engine.on_bad_sample": "quarantine"}), "local")
    assert errors(report) == [] and status(report, "planned frames") == "warning"


def test_a_sample_over_its_budget_is_told_what_fits(write_spec: WriteSpec) -> None:
    limit = 60
    path = write_spec(**{"policy.model_max_length": limit, "custom.vision.nframes": 16})
    report = preflight(path, "local")
    long = [p for p in report.problems if p.code == "SAMPLE_TOO_LONG"]
    assert len(long) == 12
    change = dict(part.split(" = ") for part in long[0].remedy.removeprefix("set one of: ").split("; "))
    assert set(change) >= {"policy.model_max_length", "custom.vision.nframes"}
    frames = int(change["custom.vision.nframes"])
    shortest = {"policy.model_max_length": int(change["policy.model_max_length"]), "custom.vision.nframes": 16}
    fits = {"policy.model_max_length": limit, "custom.vision.nframes": frames}
    more = {"policy.model_max_length": limit, "custom.vision.nframes": frames + 1}
    assert not [p for p in preflight(write_spec(**shortest), "local").problems if p.code == long[0].code]
    assert not [p for p in preflight(write_spec(**fits), "local").problems if p.code == long[0].code]
    assert [p for p in preflight(write_spec(**more), "local").problems if p.code == long[0].code]


def test_training_and_validation_must_be_apart(write_spec: WriteSpec, media: Path) -> None:
    (media / "link.mp4").symlink_to(media / "1.mp4")
    held = records(range(4, 5))
    held[0]["video"] = "link.mp4"
    held[1]["id"] = "clip0-0"
    report = preflight(write_spec(validation=held), "local")
    assert errors(report) == ["DATA_SPLIT_LEAK"] and "1.mp4" in str(report.problems)
    assert [p.code for p in report.problems if p.severity == "warning" and "ids are in both" in p.message] == [
        "DATA_SPLIT_LEAK"
    ]


def test_a_held_out_part_is_split_as_the_engine_splits_it(write_spec: WriteSpec) -> None:
    more = {"custom.val_dataset.annotation_path": None, "custom.val_dataset.media_path": None}
    report = preflight(write_spec(**more, **{"train.train_policy.dataset.test_size": 0.25}), "local")
    assert errors(report) == []
    assert (report.facts["train"]["samples"], report.facts["validation"]["samples"]) == (6, 2)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda model: (model / "tokenizer.json").unlink(), "MODEL_BROKEN"),
        (lambda model: (model / "model.safetensors").unlink(), "MODEL_BROKEN"),
        (lambda model: (model / "config.json").write_text('{"model_type": "llama"}'), "MODEL_UNSUPPORTED"),
        (lambda model: (model / "hf_quant_config.json").write_text("{}"), "MODEL_QUANTIZED"),
        (lambda model: cut(model / "model.safetensors"), "MODEL_BROKEN"),
        (lambda model: (model / "model.safetensors").write_bytes(b"\xff" * 100), "MODEL_BROKEN"),
        (lambda model: write_index(model, {"a.weight": "part-1.safetensors"}), "MODEL_BROKEN"),
        (lambda model: write_index(model, {"a.weight": "model.safetensors"}), "MODEL_BROKEN"),
    ],
)
def test_a_damaged_model(
    write_spec: WriteSpec, tiny_model: Path, tmp_path: Path, damage: Callable[[Path], None], code: str
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    damage(model)
    report = preflight(write_spec(**{"policy.model_name_or_path": str(model)}), "local", group="model")
    assert set(errors(report)) == {code}, report.text
    assert {checked.group for checked in report.checks} == {"model"}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def write_index(model: Path, weight_map: dict[str, str]) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_model_of_the_hub_is_planned_without_its_weights(
    write_spec: WriteSpec, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vidqa.data.storage.hub.PAUSES_S", ())
    with serving(tiny_model) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        path = write_spec(**{"policy.model_name_or_path": "hf_model://org/tiny"})
        report = preflight(path, "local")
        assert errors(report) == [], report.text
        assert report.facts["weights"] == "fetched at launch" and report.facts["train"]["samples"] == 8
        assert not list((tmp_path / "cache").rglob("*.safetensors"))
        hub.refuse = 403
        assert "STORAGE_DENIED" in errors(preflight(path, "local", group="model"))


@pytest.fixture
def evaluation(tmp_path: Path, media: Path, tiny_model: Path, write_spec: WriteSpec) -> dict[str, Any]:
    """The keys of an evaluation."""
    write_spec()
    return {
        "dataset.annotation_path": str(tmp_path / "val.json"),
        "dataset.media_dir": str(media),
        "model.model_name": str(tiny_model),
        "vision.nframes": 4,
        "results_dir": str(tmp_path / "results"),
    }


def written(path: Path, keys: dict[str, Any]) -> Path:
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    return path


def test_an_evaluation(tmp_path: Path, evaluation: dict[str, Any]) -> None:
    report = preflight(written(tmp_path / "evaluate.toml", evaluation), "local", probe_sample=1)
    assert report.action == "evaluate" and errors(report) == []
    assert report.facts["evaluation"]["samples"] == 4 and report.facts["media_decoded"] == 1


def test_the_action_is_told_by_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text("[logging]\n[dataset]\n")
    with pytest.raises(ProblemError):
        action_of(path)
    path.write_text("[custom.vision]\nfps = 1\n")
    assert action_of(path) == "train"
    path.write_text("num_gpus = 1\n")
    assert action_of(path) == "evaluate"


def test_the_script(write_spec: WriteSpec, media: Path) -> None:
    path = write_spec()
    command = [sys.executable, SCRIPT, "--spec", path, "--platform", "local", "--probe-sample", "2", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    result = json.loads(ran.stdout)
    assert ran.returncode == 0 and [group["status"] for group in result["data"]["groups"]].count("ok") >= 5
    assert "launch.py" in result["next"][0] and str(path) in result["next"][0]
    code, result, _ = script("preflight", "--spec", path, "--only", "budget", "--gpu-count", 2, "--nodes", 2)
    assert code == 0 and result["next"][0].endswith("--nodes 2 --gpu-count 2"), "the next one has the same options"
    (media / "0.mp4").unlink()
    code, result, _ = script("preflight", "--spec", path, "--only", "data")
    assert code == Exit.INPUT and result["problems"][0]["code"] == "DATA_MEDIA_MISSING" and result["next"] == []
    code, result, _ = script("preflight", "--spec", path.with_name("absent.toml"))
    assert code == Exit.INPUT and result["problems"][0]["code"] == "SPEC_FILE"
    both = ("--evaluate-spec", path, "--kpi-root", media)  # of which one would be ignored
    code, result, _ = script("preflight", "--spec", path, *both)
    assert code == Exit.USAGE and result["problems"][0]["code"] == "USAGE"
    evaluation = path.with_name("evaluation.toml")
    evaluation.write_text("num_gpus = 1\n")
    code, result, _ = script("preflight", "--spec", evaluation, "--kpi-root", media)
    assert code == Exit.USAGE and "nothing evaluates what evaluate makes" in result["problems"][0]["message"]
