"""build_spec.py and route_train.py: what they print, write and exit with; the first test starts a process."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from programs import run_here

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.run_folder import RunFolder
from vidqa.spec import load


def script(name: str, *words: object, cwd: Path = SKILL_ROOT) -> subprocess.CompletedProcess[str]:
    return run_here([sys.executable, str(SKILL_ROOT / "scripts" / f"{name}.py"), *map(str, words)], cwd=cwd)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "set one"
    folder.mkdir()
    (folder / "annotations.json").write_text('[{"id": 1, "video": "a.mp4"}]')
    return folder


def test_root_mode_from_another_folder(tmp_path: Path, root: Path) -> None:
    words = ["train", "--train-root", root.name, "--val-root", root.name, "--out", "s.toml"]
    command = [sys.executable, str(SKILL_ROOT / "scripts/build_spec.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    spec = load(tmp_path / "s.toml", "train")
    assert spec.custom.train_dataset.annotation_path == str(root / "annotations.json")
    assert (spec.custom.train_dataset.media_path, spec.validation.enable) == (str(root), True)
    assert "preflight.py --spec s.toml --platform local" in done.stdout


def test_archives_in_the_root_are_media_beside_its_files(root: Path) -> None:
    """cosmos-rl reads one archive alone."""
    (root / "videos.tar.gz").write_bytes(b"")
    for words, media in ((["--target", "native"], root), (["--target", "cosmos-rl"], root / "videos.tar.gz")):
        done = script("build_spec", "train", "--train-root", root, *words)
        assert tomllib.loads(done.stdout)["custom"]["train_dataset"]["media_path"] == str(media), done.stderr


def test_json_is_one_object_with_spec_and_origins(root: Path, tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text("train:\n  epoch: 5\n")
    words = [
        "--train-root",
        root,
        "--override",
        tmp_path / "o.yaml",
        "--set",
        "learning_rate=3e-5",
        "--profile",
        "lora",
    ]
    done = script("build_spec", "train", *words, "--explain", "--json")
    said = json.loads(done.stdout)
    assert said["ok"] and said["next"] == []
    spec = tomllib.loads(said["data"]["spec"])
    assert (spec["train"]["epoch"], spec["train"]["optm_lr"], spec["policy"]["lora"]["r"]) == (5, 3e-5, 16)
    origins = said["data"]["origins"]
    assert (origins["train.epoch"], origins["train.optm_lr"]) == (str(tmp_path / "o.yaml"), "--set")
    assert origins["custom.train_dataset.media_path"] == f"data root {root}"


def test_explain_shows_every_key(root: Path) -> None:
    shown = script(
        "build_spec", "train", "--train-root", root, "--explain", "--set", "num_epochs=9"
    ).stdout.splitlines()
    (line,) = [line for line in shown if line.startswith("train.epoch ")]
    assert line.split() == ["train.epoch", "9", "--set"]


def test_explain_names_the_profile_and_what_it_opens(root: Path) -> None:
    words = ["train", "--train-root", root, "--explain", "--set", "policy.lora.r=4"]
    first, *lines = script("build_spec", *words, "--profile", "lora").stdout.splitlines()
    assert first == f"layers, the later one wins: template, profile lora, data root {root}, --set"
    origin = {line.split()[0]: line.split("  ")[-1].strip() for line in lines}
    assert (origin["train.optm_lr"], origin["policy.lora.r"]) == ("profile lora", "--set")
    assert (origin["policy.lora.lora_alpha"], origin["train.seed"]) == ("template, by profile lora", "template")
    assert "profile full" in script("build_spec", *words[:4]).stdout.splitlines()[0]
    (said,) = [json.loads(script("build_spec", *words[:4], "--json").stdout)]
    assert said["data"]["layers"] == ["template", "profile full", f"data root {root}"]


def test_paths_of_options_are_in_full(tmp_path: Path, root: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)

    def built(action: str, *words: str) -> dict:
        part = "train" if action == "train" else "eval"
        done = script("build_spec", action, f"--{part}-root", root, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return tomllib.loads(done.stdout)

    spec = built("train", "--model", "models/mine", "--results-dir", "outputs/train")
    assert spec["policy"]["model_name_or_path"] == str(tmp_path / "models" / "mine")
    assert spec["train"]["output_dir"] == str(tmp_path / "outputs" / "train")
    spec = built("evaluate", "--model", "./absent", "--results-dir", "s3://bucket/results")
    assert (spec["model"]["model_name"], spec["results_dir"]) == (str(tmp_path / "absent"), "s3://bucket/results")
    spec = built("evaluate", "--model", "hf_model://a/b", "--results-dir", "~/results")
    assert (spec["model"]["model_name"], spec["results_dir"]) == ("hf_model://a/b", str(Path.home() / "results"))
    bare = script("build_spec", "train", "--train-root", root, "--model", "nvidia/Cosmos-Reason2-8B", cwd=tmp_path)
    assert "SPEC_MODEL" in bare.stderr and "write hf_model://nvidia" in bare.stderr


def test_the_next_command_is_for_the_platform_that_is_named(root: Path, tmp_path: Path) -> None:
    words = ["train", "--train-root", root, "--out", tmp_path / "s.toml"]
    assert "--platform kubernetes" in script("build_spec", *words, "--platform", "kubernetes").stdout
    assert script("build_spec", *words, "--platform", "moon").returncode == 2
    moon = script("preflight", "--spec", tmp_path / "none.toml", "--platform", "moon")
    assert moon.returncode == 2 and "use one of: local" in moon.stdout + moon.stderr


def test_a_mistyped_model_folder_is_not_taken_for_a_name_of_the_hub_alone(root: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    refused = script("build_spec", "train", "--train-root", root, "--model", "models/tiny", cwd=tmp_path)
    assert "name another folder in models, or write hf_model://models/tiny" in refused.stdout + refused.stderr


def test_problems_of_all_layers_at_once_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text("a = = 1")
    words = ["--train-root", tmp_path / "absent", "--override", tmp_path / "o.toml", "--profile", "tiny", "--set", "x"]
    done = script("build_spec", "train", *words, "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 3 and done.stderr == ""
    assert [p["code"] for p in said["problems"]] == ["SPEC_VALUE", "SPEC_FILE", "SPEC_FILE", "SPEC_FILE"]
    assert f"custom.train_dataset.annotation_path={tmp_path}/absent" in said["problems"][1]["remedy"]


def test_a_wrong_spec_is_not_written(root: Path, tmp_path: Path) -> None:
    done = script("build_spec", "train", "--train-root", root, "--set", "train.epoch=0", "--out", tmp_path / "s.toml")
    assert done.returncode == 3 and "SPEC_VALUE" in done.stderr and not (tmp_path / "s.toml").exists()
    assert script("build_spec", "train", "--eval-root", root).returncode == 3
    assert script("build_spec", "traim").returncode == 2
    assert script("build_spec", "evaluate", "--eval-root", root, "--target", "cosmos-rl").returncode == 0


@pytest.mark.parametrize("name", ["folder.toml", "file.toml/spec.toml", "a" * 300 + ".toml"])
def test_a_place_that_cannot_be_written(root: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "file.toml").touch()
    done = script("build_spec", "train", "--train-root", root, "--out", tmp_path / name, "--json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert (done.returncode, problem["code"]) == (4, "ENV_FILE_REFUSED") and problem["where"] == str(tmp_path / name)


@pytest.mark.parametrize("words", [["--out", "spec"], ["--out", "spec.txt"]])
def test_a_name_that_no_spec_could_be_read_from_again(root: Path, tmp_path: Path, words: list[str]) -> None:
    done = script("build_spec", "train", "--train-root", root, *words, "--json", cwd=tmp_path)
    assert done.returncode == 3 and [p["code"] for p in json.loads(done.stdout)["problems"]] == ["SPEC_FILE"]
    assert [path.name for path in tmp_path.iterdir()] == [root.name]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--which", "best"], "SPEC_PARENT_RUN"),
        (["--model", ""], "SPEC_VALUE"),
        (["--profile", ""], "SPEC_VALUE"),
        (["--val-root", ""], "SPEC_FILE"),
        (["--parent-run", "x" * 300], "SPEC_PARENT_RUN"),
    ],
)
def test_no_option_is_ignored(root: Path, words: list[str], code: str) -> None:
    done = script("build_spec", "train", "--train-root", root, *words, "--json")
    assert done.returncode == 3 and [p["code"] for p in json.loads(done.stdout)["problems"]] == [code]


def run_of(tmp_path: Path, root: Path, *, lora: bool) -> Path:
    """A finished run, its spec built by the script."""
    run = tmp_path / "runs" / "r1"
    export = run / "safetensors" / "epoch_2"
    export.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    words = ["--profile", "lora"] if lora else []
    words += ["--set", "custom.vision.fps=2", "--set", "engine.on_bad_sample=quarantine"]
    script("build_spec", "train", "--train-root", root, *words, "--out", run / "spec.toml")
    (export / ("adapter_model.safetensors" if lora else "model.safetensors")).write_bytes(b"")
    (export / ("adapter_config.json" if lora else "config.json")).write_text("{}")
    (run / "best").symlink_to("safetensors/epoch_2")
    (run / "checkpoints" / "step_8" / "policy").mkdir(parents=True)
    (run / "checkpoints" / "step_8" / "policy" / ".metadata").write_bytes(b"")
    return run


@pytest.mark.parametrize("lora", [False, True])
def test_an_evaluation_sees_videos_as_its_parent_did(tmp_path: Path, root: Path, lora: bool) -> None:
    run = run_of(tmp_path, root, lora=lora)
    for words, model in ((["--parent-run", run], "safetensors/epoch_2"), (["--model", run / "best"], "best")):
        done = script("build_spec", "evaluate", *words, "--eval-root", root, "--out", tmp_path / "e.yaml")
        assert done.returncode == 0, done.stderr
        spec = load(tmp_path / "e.yaml", "evaluate")
        assert spec.model.model_name == str(run / model)
        assert (spec.vision.fps, spec.vision.nframes) == (2.0, None)
        assert (spec.model.enable_lora, bool(spec.model.base_model_path)) == (lora, lora)


def test_what_goes_on_from_a_training_sees_what_the_training_saw(tmp_path: Path, root: Path) -> None:
    run = run_of(tmp_path, root, lora=False)
    again = ["train", "--model", run / "best", "--train-root", root]
    for words in (again, [*again, "--set", "engine.objective=dpo"], ["quantize", "--parent-run", run]):
        done = script("build_spec", *words, "--out", tmp_path / "s.toml")
        assert done.returncode == 0, done.stderr
        table = tomllib.loads((tmp_path / "s.toml").read_text())
        vision = table.get("vision") or table["custom"]["vision"]
        assert vision["fps"] == 2.0 and "nframes" not in vision
    assert table["engine"]["on_bad_sample"] == "quarantine"  # the records are the training's, broken ones among them


def test_an_adapter_can_be_quantized_and_asked_by_its_folder(tmp_path: Path, root: Path) -> None:
    best = run_of(tmp_path, root, lora=True) / "best"
    for action, name in (("quantize", "model_path"), ("embed", "model_name")):
        words = ["--set", f"dataset.annotation_path={root / 'annotations.json'}", "--out", tmp_path / "s.toml"]
        done = script("build_spec", action, "--model", best, *words)
        assert done.returncode == 0, done.stderr
        model = tomllib.loads((tmp_path / "s.toml").read_text())["model"]
        assert (model[name], model["enable_lora"]) == (str(best), True) and model["base_model_path"]


def test_training_goes_on_from_the_parents_checkpoint(tmp_path: Path, root: Path) -> None:
    run = run_of(tmp_path, root, lora=False)
    done = script("build_spec", "train", "--parent-run", run.parent, "--out", tmp_path / "t.toml", "--json")
    parent = f"parent run {run} (latest)"  # of the folder of runs that was named
    assert f"from {parent}" in done.stderr and parent in json.loads(done.stdout)["data"]["layers"]
    assert done.returncode == 0, done.stderr
    spec = load(tmp_path / "t.toml", "train")
    assert (spec.train.resume, spec.custom.vision.fps) == (str(run / "checkpoints" / "step_8"), 2.0)
    assert script("build_spec", "train", "--parent-run", run, "--which", "step_9").returncode == 3
    RunFolder(run).write_status("RUNNING")
    assert "(latest of a run that is RUNNING)" in script("build_spec", "train", "--parent-run", run).stderr


def test_a_training_without_the_parents_checkpoint_names_the_weights_it_starts_from(tmp_path: Path, root: Path) -> None:
    """The adapter of a parent is among its keys; the weights of a full training have to be named."""
    for lora in (True, False):
        run = run_of(tmp_path / str(lora), root, lora=lora)
        words = (
            "build_spec",
            "train",
            "--parent-run",
            run,
            "--set",
            "train.resume=false",
            "--out",
            tmp_path / "t.toml",
        )
        problems = json.loads(script(*words, "--json").stdout)["problems"]
        assert ("train.resume" in [problem["where"] for problem in problems]) is not lora
    assert f"--model {run / 'best'}" in problems[0]["remedy"]
    assert script(*words, "--model", run / "best").returncode == 0
    assert load(tmp_path / "t.toml", "train").policy.model_name_or_path == str(run / "best")


def test_the_epochs_of_an_earlier_run_are_said_in_steps_of_the_new_data(tmp_path: Path, root: Path) -> None:
    run = run_of(tmp_path, root, lora=False)
    (run / "plan.json").write_text(json.dumps({"total_steps": 6, "train_samples": 16}))
    more = tmp_path / "more"
    more.mkdir()
    records = [{"id": number, "video": "a.mp4"} for number in range(40)]

    def warned(*words: object, count: int = 40) -> list[dict]:
        (more / "annotations.json").write_text(json.dumps(records[:count]))
        done = script("build_spec", "train", *words, "--json")
        assert done.returncode == 0, done.stdout
        return [each for each in json.loads(done.stdout)["problems"] if each["code"] == "SPEC_CONFLICT"]

    (warning,) = warned("--parent-run", run, "--train-root", more)
    assert "is 3 as in" in warning["message"]
    assert "40 samples this is 15 steps of 8; there it was 6 with 16" in warning["message"]
    taken_over = [
        "--override",
        run / "spec.toml",
        "--set",
        f"custom.train_dataset.annotation_path={more}/annotations.json",
    ]
    assert len(warned(*taken_over)) == 1
    assert warned(*taken_over, "--set", "num_epochs=2") == []  # a number of one's own
    assert warned("--parent-run", run, "--train-root", more, count=17) == []  # as many steps
    few = script("build_spec", "train", "--train-root", more, "--set", "train.max_num_steps=60")
    assert few.returncode == 0 and "SPEC_CONFLICT" in few.stderr


def test_route_train_says_what_a_search_costs_and_what_to_run_next() -> None:
    auto = json.loads(script("route_train", "--json").stdout)
    assert auto["data"]["decision"] == "automl" and auto["data"]["runnable"] is True
    assert auto["data"]["cost"]["trials"] > 1 and str(auto["data"]["cost"]["trials"]) in auto["data"]["reason"]
    assert "build_spec.py train" in auto["next"][0] and "--val-root DATA/val" in auto["next"][0]  # a search needs it
    assert auto["next"][1].endswith("run_automl.py plan --study outputs/study --spec train.toml --json")
    assert auto["next"][2].endswith("route_train.py --automl off")
    off = json.loads(script("route_train", "--json", "--automl", "off").stdout)
    assert (off["data"]["decision"], off["data"]["cost"]) == ("direct", None)
    assert [command.split()[1] for command in off["next"]] == [auto["next"][0].split()[1]]


@pytest.mark.parametrize("action", ["train", "evaluate"])
def test_toml_begins_with_the_schema_by_which_editors_complete_it(tmp_path: Path, root: Path, action: str) -> None:
    out = tmp_path / "deep" / "spec.toml"
    part = {"train": "--train-root", "evaluate": "--eval-root"}[action]
    words = (action, part, root, "--results-dir", tmp_path / "out")
    assert script("build_spec", *words, "--out", out).returncode == 0
    first = out.read_text().partition("\n")[0]
    assert (out.parent / first.removeprefix("#:schema ")).resolve() == SKILL_ROOT / f"schemas/{action}.schema.json"
    assert script("build_spec", *words, "--out", out.with_suffix(".yaml")).returncode == 0
    assert "#:schema" not in out.with_suffix(".yaml").read_text()
