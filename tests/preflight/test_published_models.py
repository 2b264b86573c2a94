"""Without the hub: what is known of a model by its name is estimated and called so, and the rest is still counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vidqa.core.cli import SKILL_ROOT
from vidqa.families import Sizes, TextSizes, VisionSizes
from vidqa.families.published import published
from vidqa.families.qwen3_vl import QWEN3_VL
from vidqa.preflight.gpus import Declared
from vidqa.preflight.report import Report, preflight

pytestmark = pytest.mark.usefixtures("no_hub")

WriteSpec = Callable[..., Path]
NAME, SMALL, UNKNOWN = "nvidia/Cosmos-Reason2-8B", "nvidia/Cosmos-Reason2-2B", "nvidia/Cosmos-Reason9-9B"


def looked_at(write_spec: WriteSpec, name: str, **more: object) -> Report:
    spec = write_spec(**{"policy.model_name_or_path": f"hf_model://{name}", **more})
    return preflight(spec, "local", declared=Declared(2, 141.0, "sm_90"))


def states(report: Report) -> dict[str, str]:
    return {checked.name: checked.status for checked in report.checks}


def test_memory_time_and_disk_of_the_default_model_are_estimated(write_spec: WriteSpec) -> None:
    report = looked_at(write_spec, NAME)
    found, facts = states(report), report.facts
    assert {p.code for p in report.problems if p.severity == "error"} == {"STORAGE_UNREACHABLE"}, report.text
    assert found["tokenizer and chat template"] == found["weights"] == "blocked"
    assert not {found[name] for name in ("tokens", "steps", "GPU memory", "time", "disk")} & {"blocked", "error"}
    assert facts["trainable_parameters"] == facts["parameters"] == 8_767_123_696
    assert facts["memory"]["weights_and_optimizer_gib"] == pytest.approx(8_767_123_696 * 12 / 2 / 1024**3, abs=0.1)
    assert (facts["total_steps"], facts["effective_batch"]) == (6, 4) and facts["time"]["gpu_hours"] >= 0
    assert facts["estimated_for"] == NAME and "estimated" in report.text and "about" in report.text
    assert looked_at(write_spec, SMALL).facts["memory"]["peak_gib"] < facts["memory"]["peak_gib"]


def test_of_what_is_not_known_steps_are_counted_from_records(write_spec: WriteSpec) -> None:
    report = looked_at(write_spec, UNKNOWN)
    found = states(report)
    assert found["tokens"] == found["GPU memory"] == "blocked" and found["steps"] == "ok"
    assert report.facts["total_steps"] == looked_at(write_spec, NAME).facts["total_steps"] == 6
    assert "of all records" in report.text and "estimated_for" not in report.facts


def test_an_estimate_is_no_error(write_spec: WriteSpec) -> None:
    long = looked_at(write_spec, NAME, **{"policy.model_max_length": 70, "custom.vision.nframes": 16})
    told = [problem for problem in long.problems if problem.code == "SAMPLE_TOO_LONG"]
    assert told and {problem.severity for problem in told} == {"warning"}
    assert all(problem.message.startswith("estimated: ") for problem in told)


def test_tokens_of_media_are_exact_and_those_of_text_are_near(
    write_spec: WriteSpec, tiny_model: Path, tmp_path: Path, media: Path
) -> None:
    """The tiny model's files with the known model's processor are the known model to a planner."""
    report = looked_at(write_spec, NAME)
    processor = published(NAME).processor
    (tmp_path / "model").mkdir()
    for file in tiny_model.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model/processor_config.json").write_text(json.dumps(processor))
    real = preflight(write_spec(**{"policy.model_name_or_path": str(tmp_path / "model")}), "local", group="budget")
    told, counted = (each.facts["train"] for each in (report, real))
    assert [each["media_tokens"] for each in told["longest"]] == [each["media_tokens"] for each in counted["longest"]]
    assert told["samples"] == counted["samples"] and told["tokens"] > sum(
        each["media_tokens"] for each in told["longest"]
    )


def test_the_sizes_that_are_shipped_are_those_that_were_measured() -> None:
    files = (SKILL_ROOT / "benchmarks" / "results").glob("memory-*.json")
    rows = {row["parameters"]["all"]: row["sizes"] for file in files for row in json.loads(file.read_text())}
    measured = [Sizes(TextSizes(**row["text"]), VisionSizes(**row["vision"])) for row in rows.values()]
    assert len(measured) >= 2
    for name in (NAME, SMALL):
        assert QWEN3_VL.sizes(published(name).config, Path(name)) in measured


def test_the_second_family_is_known_by_name_and_estimated(write_spec: WriteSpec) -> None:
    found = published("nvidia/cosmos-reason1-7b")
    assert found == published("Qwen/Qwen2.5-VL-7B-Instruct") and found.processor != published(NAME).processor
    report = looked_at(write_spec, "nvidia/Cosmos-Reason1-7B")
    assert report.facts["trainable_parameters"] == 8_292_166_656  # as many as were published
    assert {p.code for p in report.problems if p.severity == "error"} == {"STORAGE_UNREACHABLE"}, report.text
    assert report.facts["memory"]["peak_gib"] > 50


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("2B", 2_127_532_032), ("4B", 4_437_815_808), ("8B", 8_767_123_696), ("32B", 33_357_390_064)],
)
def test_the_parameters_are_as_many_as_were_published(name: str, parameters: int) -> None:
    found = published(f"qwen/qwen3-vl-{name}-instruct")
    assert found == published(f"Qwen/Qwen3-VL-{name}-Thinking")
    sizes = QWEN3_VL.sizes(found.config, Path(name))
    assert sum(tensor.numel for tensor in QWEN3_VL.tensors(sizes)) == parameters
