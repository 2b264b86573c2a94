"""What belongs together: a training and its evaluation, its KPI set, the checkpoint that it goes on from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.clips import write_clip
from tests.preflight.conftest import records
from tests.preflight.corpus import Case
from vidqa import spec as specs
from vidqa.core.run_folder import QUARANTINE, RunFolder
from vidqa.engine.data.planned_samples import prepare_evaluation, prepare_training
from vidqa.engine.loading.freeze import choose_trainable
from vidqa.engine.loading.load import meta_model
from vidqa.engine.training.resume import Start, trainer_facts
from vidqa.planning.plan import load_sets
from vidqa.planning.samples import evaluation_planner, training_planner
from vidqa.preflight.report import preflight
from vidqa.video.pool import DecodePool


@pytest.fixture
def case(tmp_path: Path, clips: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Case(tmp_path, clips, tiny_model, monkeypatch)


def status(case: Case, name: str, group: str = "spec") -> tuple[str, str]:
    return next((c.status, c.why) for c in case.report(group).checks if c.name == name)


def test_the_checkpoint_of_this_very_run_is_accepted(case: Case) -> None:
    """The facts that the engine stores with a checkpoint are those that preflight compares, key by key."""
    case.spec["custom.system_prompt"] = "a"
    asked = specs.load(case.write(), "train")
    world = SimpleNamespace(size=2, is_main=True, on_main=lambda make: make())
    planner = training_planner(asked, case.shared_model)
    prepared = prepare_training(asked, planner, world, RunFolder(case.folder / "run"))
    model = meta_model(case.shared_model)
    choose_trainable(model, asked.policy)
    facts = json.loads(json.dumps(trainer_facts(asked, prepared, model, Start(), world)))
    folder = case.folder / "step_4"
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / ".metadata").touch()
    (folder / "trainer.json").write_text(json.dumps({**facts, "step": 4}))
    for named in (folder, folder / "policy"):
        case.spec["train.resume"] = str(named)
        assert status(case, "checkpoint to resume") == ("ok", "")
    for key, value in (
        ("train.train_batch_per_replica", 1),
        ("train.train_policy.dataloader_seed", 5),
        ("train.train_policy.dataloader_shuffle", False),
        ("policy.lora", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}),
        ("policy.freeze_pattern", ["visual"]),
        ("engine.share_video_prefix", True),
        ("custom.system_prompt", "b"),  # of as many tokens
    ):
        before = case.spec.get(key)
        case.spec[key] = value
        assert status(case, "checkpoint to resume")[0] == "error", key
        case.spec[key] = before
        if before is None:
            del case.spec[key]
    weights = case.model / "model.safetensors"  # another base model of the same sizes
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    (problem,) = [p for p in case.report("spec").problems if p.code == "RESUME_MISMATCH"]
    assert "base_model" in problem.message and "base model" in problem.remedy and "order" not in problem.message
    case.spec["policy.model_name_or_path"] = str(case.shared_model)
    case.train[0]["conversations"][1]["value"] = "perhaps"
    (problem,) = [p for p in case.report("spec").problems if p.code == "RESUME_MISMATCH"]
    assert "data_fingerprint" in problem.message and "effective_batch" not in problem.message


def test_resuming_the_newest_is_left_to_the_launch(case: Case) -> None:
    case.spec["train.resume"] = True
    assert status(case, "checkpoint to resume")[0] == "skipped"


def test_a_renamed_copy_of_the_model_is_the_same_model(case: Case) -> None:
    copied = shutil.copytree(case.shared_model, case.folder / "best")
    case.held = records(range(4, 5))
    (case.folder / "kpi.json").write_text(json.dumps(records(range(5, 6))))
    kpi = {"dataset.annotation_path": str(case.folder / "kpi.json")}
    case.options["evaluate_spec"] = case.evaluation(**kpi, **{"model.model_name": str(copied)})
    assert case.look() == []
    assert str(copied) in case.report("spec").facts["evaluated_model"]
    adapter = case.folder / "adapter"
    adapter.mkdir()
    lora = {"model.model_name": str(adapter), "model.enable_lora": True, "model.base_model_path": str(copied)}
    case.options["evaluate_spec"] = case.evaluation(**kpi, **lora)
    assert [p.code for p in case.report("spec").problems if p.severity == "error"] == []


# A file, an id, and files that look alike.
SHARED = {("DATA_SPLIT_LEAK", "error"), ("DATA_SPLIT_LEAK", "warning"), ("DATA_SPLIT_NEAR", "warning")}


def test_the_kpi_set_is_read_decoded_and_kept_apart(case: Case) -> None:
    root = shutil.copytree(case.shared_media, case.folder / "kpi")
    (root / "annotations.json").write_text(json.dumps([{**r, "id": f"k-{r['id']}"} for r in records(range(5, 6))]))
    case.held = records(range(4, 5))
    case.options["kpi_root"] = root
    assert case.look() == []
    facts = case.report("media").facts
    assert facts["media_files"] == facts["media_decoded"] == 6
    facts = case.report("data").facts
    assert facts["kpi_records"] == 2 and facts["kpi_answers"] == {"yes_no": 2}
    assert "every expected answer" in facts["kpi_gap_analysis"]
    (root / "annotations.json").write_text(json.dumps(records(range(3, 4))))
    found = {(p.code, p.severity): p for p in case.look()}
    assert set(found) == SHARED - {("DATA_SPLIT_NEAR", "warning")}  # a copy is reported once
    assert found["DATA_SPLIT_LEAK", "error"].where == "train and kpi"
    (root / "annotations.json").write_text("[]")
    assert {p.code for p in case.look()} == {"DATA_EMPTY"}
    assert "kpi_gap_analysis" not in case.report("data").facts  # nothing is claimed about no answers


def test_an_evaluation_on_what_its_model_has_learned_is_warned_of(case: Case) -> None:
    """Also if an earlier training learned it, from whose export the last one began."""
    for name, model, learned in (
        ("first", case.shared_model, range(3)),
        ("second", case.folder / "first/best", range(3, 4)),
    ):
        run = case.folder / name
        shutil.copytree(case.shared_model, run / "safetensors/step_4")
        (run / "best").symlink_to("safetensors/step_4")
        (run / "train.json").write_text(json.dumps(records(learned)))
        case.spec["policy.model_name_or_path"] = str(model)
        case.spec["custom.train_dataset.annotation_path"] = str(run / "train.json")
        (run / "spec.toml").write_text(specs.dump(specs.load(case.write(), "train")))

    def warned(model: Path, evaluated: range) -> list[str]:
        case.held = records(evaluated)
        case.write()
        path = case.evaluation(**{"model.model_name": str(model)})
        report = preflight(path, platform="local", group="data")
        check = next(check for check in report.checks if check.name == "new to the model")
        assert check.status != "skipped" or model == case.shared_model
        return [p.where for p in check.problems if (p.code, p.severity) == ("DATA_SPLIT_LEAK", "warning")]

    first, second = (f"train of {case.folder / run} and evaluation" for run in ("first", "second"))
    assert warned(case.folder / "second/best", range(4, 6)) == warned(case.shared_model, range(3)) == []
    assert set(warned(case.folder / "second/best", range(2, 4))) == {first, second}
    assert set(warned(case.folder / "first/safetensors/step_4", range(2, 4))) == {first}


def test_two_sets_that_are_embedded_may_share_files(case: Case) -> None:
    """Nothing is learned from either, and mining leaves out what the second one holds."""
    path = str(case.folder / "train.json")
    case.spec = {
        **{"dataset.annotation_path": path, "dataset.media_dir": str(case.shared_media)},
        **{"dataset.query_annotation_path": path, "dataset.query_media_dir": str(case.shared_media)},
        **{"model.model_name": str(case.shared_model), "vision.nframes": 4, "embed.batch_size": 2},
        "results_dir": str(case.folder / "results"),
    }
    assert case.look() == []
    assert status(case, "sets apart", "data") == ("skipped", "no set is learned from")
    assert case.report("budget").facts["queries"] == case.report("budget").facts["embedded"]


def test_a_kpi_set_may_name_its_media_by_absolute_paths(case: Case) -> None:
    """As answers to mined clips do, and as the loop evaluates its sets: not refused only when a training is due."""
    root = case.folder / "kpi"
    root.mkdir()
    rows = [{**each, "id": f"k-{each['id']}"} for each in records(range(5, 6))]
    rows = [{**each, "video": str(case.shared_media / each["video"])} for each in rows]
    (root / "annotations.json").write_text(json.dumps(rows))
    case.held = records(range(4, 5))
    case.options["kpi_root"] = root
    assert case.look() == []


def test_one_command_finds_every_leak_and_lists_all_of_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a copy, an id, and look-alikes: encoded again, under another name. No model is needed for it."""
    monkeypatch.setenv("VIDQA_CACHE_DIR", str(case.folder / "cache"))
    case.held = records(range(4, 5))
    root = case.folder / "kpi"
    root.mkdir()
    names = []
    for number in range(4):  # the clips of the training set in another container and codec
        write_clip(root / f"again{number}.avi", frames=16 + number, fps=8, codec="mpeg4")
        names.append(f"again{number}.avi")
    shutil.copy(case.shared_media / "2.mp4", root / "copied.mp4")
    turns = case.train[0]["conversations"]
    rows = [{"id": f"k{at}", "video": name, "conversations": turns} for at, name in enumerate([*names, "copied.mp4"])]
    rows[-1]["id"] = case.train[0]["id"]
    (root / "annotations.json").write_text(json.dumps(rows))
    case.options["kpi_root"] = root
    case.spec["policy.model_name_or_path"] = str(case.folder / "no-model-here")
    report = case.report("leaks")
    found = {(p.code, p.severity): p for p in report.problems}
    assert set(found) == SHARED
    listed = json.loads((case.folder / "leaks.json").read_text())["train and kpi"]
    assert listed["same_content"] == [[str(case.shared_media / "2.mp4"), str(root / "copied.mp4")]]
    assert listed["same_id"] == [case.train[0]["id"]] and listed["same_file"] == []
    pairs = {(Path(one).name, Path(other).name) for one, other in listed["look_alike"]}
    assert pairs >= {(f"{n}.mp4", f"again{n}.avi") for n in range(4)}
    assert ("2.mp4", "copied.mp4") not in pairs  # it is listed as a copy
    assert str(case.folder / "leaks.json") in found["DATA_SPLIT_NEAR", "warning"].message
    assert report.facts["leaks"]["counts"]["train and kpi"]["look_alike"] == len(listed["look_alike"])
    case.spec["policy.model_name_or_path"] = str(case.shared_model)
    assert {(p.code, p.severity) for p in case.look()} == set(found)  # what the whole preflight finds
    with monkeypatch.context() as patch:  # and once known, nothing is decoded again
        patch.setattr(DecodePool, "submit", None)
        assert {(p.code, p.severity) for p in case.report("leaks").problems} == set(found)
    case.options["kpi_root"] = None
    case.held = records(range(4, 5))
    assert case.report("leaks").problems == []
    assert json.loads((case.folder / "leaks.json").read_text())["train and validation"]["look_alike"] == []


def test_copies_are_found_inside_archives(case: Case) -> None:
    import tarfile

    root = case.folder / "kpi"
    root.mkdir()
    with tarfile.open(root / "videos.tar", "w") as tar:
        tar.add(case.shared_media / "5.mp4", "videos/other.mp4")
        tar.add(case.shared_media / "2.mp4", "videos/copied.mp4")
    case.held = records(range(4, 5))
    turns = case.held[0]["conversations"]
    kpi = [{"id": name, "video": f"{name}.mp4", "conversations": turns} for name in ("other", "copied")]
    (root / "annotations.json").write_text(json.dumps(kpi))
    case.options["kpi_root"] = root
    (problem,) = [p for p in case.report("data").problems if p.severity == "error"]
    assert problem.code == "DATA_SPLIT_LEAK" and "copied.mp4" in problem.message and "1 pairs" in problem.message


def test_missing_media_are_left_out_where_broken_ones_are(case: Case) -> None:
    """Preflight and the engine deal with a file that is not there as with one that cannot be read, in both actions."""
    case.train[0]["video"] = "nowhere.mp4"
    (case.folder / "broken.mp4").write_bytes(b"no video")
    case.train[2]["video"] = str(case.folder / "broken.mp4")
    assert {p.code for p in case.look() if p.severity == "error"} == {"DATA_MEDIA_MISSING", "MEDIA_UNREADABLE"}
    case.spec["engine.on_bad_sample"] = "quarantine"
    found = case.look()
    assert {p.severity for p in found} == {"warning"}
    assert {p.code for p in found} >= {"DATA_MEDIA_MISSING", "MEDIA_UNREADABLE"}
    assert sum("nowhere.mp4" in p.where and p.code == "MEDIA_UNREADABLE" for p in found) == 1
    report = case.report()
    asked = specs.load(case.write(), "train")
    world, run = SimpleNamespace(is_main=True, on_main=lambda make: make()), RunFolder(case.folder / "run")
    prepared = prepare_training(asked, training_planner(asked, case.shared_model), world, run)
    left_out = run.read_problems(QUARANTINE)
    assert len(load_sets(asked)["train"]) == 8 and len(prepared.train) == report.facts["train"]["samples"] == 6
    assert [p.code for p in left_out] == ["MEDIA_UNREADABLE"] * 2 and "nowhere.mp4" in left_out[0].where
    assert ["ffplay" in p.remedy for p in left_out] == [False, True]  # nobody can play a file that is not there
    keys = {"dataset.annotation_path": str(case.folder / "train.json"), "engine.on_bad_sample": "quarantine"}
    evaluation = specs.load(case.evaluation(**keys), "evaluate")
    planner = evaluation_planner(evaluation, case.shared_model)
    records, samples, left_out = prepare_evaluation(evaluation, planner, world, run)
    assert (len(records), len(samples), len(left_out)) == (8, 6, 2)  # those left out count as wrong
    case.options["spec_path"] = case.folder / "evaluate.json"
    assert {p.severity for p in case.look()} == {"warning"}


def test_answers_of_a_kind(case: Case) -> None:
    case.train = records(range(4), 12)
    for at, record in enumerate(case.train):
        record["conversations"][1]["value"] = "no" if at % 10 == 0 else "Yes, it is."
    assert case.look() == []  # 43 of 48 is not more than nine in ten
    for record in case.train:
        record["kind"] = "door"
        record["conversations"][1]["value"] = "no" if record is case.train[0] else "yes"
    (problem,) = case.look()
    assert problem.code == "DATA_LABELS_UNBALANCED" and "47 of the 48" in problem.message and "door" in problem.message
    case.train = case.train[:19]
    assert case.look() == []


def test_an_adapter_is_looked_at_with_its_base(case: Case) -> None:
    adapter = case.folder / "adapter"
    adapter.mkdir()
    shutil.copy(case.shared_model / "model.safetensors", adapter / "adapter_model.safetensors")
    keys = {
        "model.model_name": str(adapter),
        "model.enable_lora": True,
        "model.base_model_path": str(case.shared_model),
    }
    case.write()
    case.options["spec_path"] = case.evaluation(**keys)
    (problem,) = [p for p in case.report("model").problems if p.severity == "error"]
    assert problem.code == "MODEL_BROKEN" and problem.where.endswith("adapter_config.json")
    (adapter / "adapter_config.json").write_text("{}")
    assert case.report("model").problems == []
