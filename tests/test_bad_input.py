"""Wrong inputs through the scripts and the real engine: each a problem with its code, an exit code, one JSON object, no
traceback, and nothing that was saved before is lost. What preflight says of every input is in tests/preflight."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from clips import write_clip
from programs import run_here
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec

from vidqa.engine.export import load_export

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
INPUT, ENVIRONMENT, JOB_FAILED = 3, 4, 5


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("bad-input")
    return SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder, clips=3))


@dataclass
class Case:
    """A sound run of its own to spoil: a spec, a list of records, a folder of media and the model."""

    folder: Path
    spec: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def root(self) -> Path:
        return self.folder / "data"

    def set(self, key: str, value: Any) -> None:
        *tables, name = key.split(".")
        table = self.spec
        for part in tables:
            table = table.setdefault(part, {})
        table[name] = value

    def fresh(self) -> dict[str, Any]:
        """A new sound record at the end, for a fault of its own."""
        record = {**copy.deepcopy(self.records[0]), "id": f"new{len(self.records)}"}
        self.records.append(record)
        return record

    def fresh_clip(self) -> Path:
        """The clip of a new sound record."""
        record = self.fresh()
        record["video"] = f"videos/{record['id']}.mp4"
        return shutil.copy(self.root / "videos/0.mp4", self.root / record["video"])

    def write(self) -> Path:
        if self.root.is_dir():
            (self.root / "annotations.json").write_text(json.dumps(self.records))
        path = self.folder / "spec.json"
        path.write_text(json.dumps(self.spec))
        return path


@pytest.fixture
def case(world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    shutil.copytree(world.root, tmp_path / "data")
    table = tomllib.loads(tiny_spec(tmp_path, world.model, tmp_path / "data").read_text())
    return Case(tmp_path, table, json.loads((world.root / "annotations.json").read_text()))


def script(name: str, *words: object) -> SimpleNamespace:
    """Run a script with --json, in this process unless a job of it may start. Whatever happens, stdout is one JSON
    object and nothing shows a traceback."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, words), "--json"]
    if name == "launch" and "--skip-preflight" in words:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    else:
        done = run_here(command, cwd=Path.cwd())
    said = json.loads(done.stdout)  # raises where there is more than one object, or none
    assert "Traceback" not in done.stdout and tracebacks(done.stderr) == [], done.stderr
    assert said["schema"] == "vidqa.result.v1" and said["ok"] == (done.returncode == 0)
    errors = [problem for problem in said["problems"] if problem["severity"] == "error"]
    for problem in said["problems"]:
        assert problem["code"] != "INTERNAL", problem
        assert problem["where"] and problem["message"] and problem["remedy"], problem
    assert bool(errors) == (done.returncode != 0)
    return SimpleNamespace(exit_code=done.returncode, errors=errors, codes=[p["code"] for p in errors], **said)


def tracebacks(text: str) -> list[str]:
    """The tracebacks in a text, each up to the line that names the exception."""
    return re.findall(r"Traceback \(most recent call last\):\n(?:.*\n)*?(?=\S*Error|\S*Exception)", text)


def empty_clip(case: Case) -> None:
    case.fresh_clip().write_bytes(b"")


def damage(clip: Path) -> None:
    """Header and first pictures are whole: only decoding all that is planned finds it."""
    data = bytearray(write_clip(clip, frames=64, fps=8, height=64).read_bytes())
    start, end = data.index(b"mdat") + 8, data.rindex(b"moov")
    middle = (start + end) // 2
    data[middle:end] = bytes(end - middle)
    clip.write_bytes(data)


def same_id_twice(case: Case) -> None:
    case.fresh()["id"] = case.records[0]["id"]


def empty_answer(case: Case) -> None:
    case.fresh()["conversations"][1]["value"] = " "


def output_under_a_file(case: Case) -> None:
    (case.folder / "file").write_text("in the way")
    case.set("train.output_dir", str(case.folder / "file/out"))


def spec(key: str, value: Any) -> Callable[[Case], None]:
    return lambda case: case.set(key, value)


def test_many_faults_are_counted_not_listed(case: Case) -> None:
    turns = case.records[0]["conversations"]
    case.records[:] = [{"id": f"x{n}", "video": f"videos/gone{n}.mp4", "conversations": turns} for n in range(500)]
    said = script("preflight", "--spec", case.write(), "--only", "data")
    assert 10 <= len(said.errors) <= 110 and said.exit_code == INPUT


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--set", "train.epochs=3"], "SPEC_UNKNOWN_KEY"),
        (["--set", "train.epoch=three"], "SPEC_VALUE"),
        (["--set", "train.epoch=0"], "SPEC_VALUE"),
        (["--set", "train.epoch"], "SPEC_FILE"),
        (["--override", "/nowhere/o.toml"], "SPEC_FILE"),
        (["--train-root", "/nowhere/set"], "SPEC_FILE"),
        (["--profile", "huge"], "SPEC_VALUE"),
        (["--parent-run", "/nowhere/run"], "SPEC_PARENT_RUN"),
        (["--set", "custom.vision.fps=2", "--set", "custom.vision.nframes=8"], "SPEC_CONFLICT"),
    ],
)
def test_build_spec_names_the_fault_and_keeps_what_was_there(case: Case, words: list[str], code: str) -> None:
    out = case.folder / "kept.toml"
    out.write_text("# mine\n")
    root = [] if "--train-root" in words else ["--train-root", case.root]
    case.write()
    said = script("build_spec", "train", *root, *words, "--out", out)
    assert code in said.codes, said.problems
    assert said.exit_code == INPUT
    assert out.read_text() == "# mine\n"


def test_build_spec_collects_all_wrong_keys(case: Case) -> None:
    case.write()
    words = ["--set", "train.epochs=3", "--set", "train.optm_lr=fast", "--set", "policy.parallelism.dp_shard_size=0"]
    said = script("build_spec", "train", "--train-root", case.root, *words)
    assert {"SPEC_UNKNOWN_KEY", "SPEC_VALUE"} <= set(said.codes)


@pytest.mark.parametrize("content", ["[train\nepoch = 1", "train = 3", ""])
def test_a_file_that_is_no_spec(case: Case, content: str) -> None:
    path = case.folder / "no.toml"
    path.write_text(content)
    for name, words in (("preflight", ["--spec", path]), ("launch", ["train", "--spec", path])):
        said = script(name, *words)
        assert said.exit_code == INPUT and all(code.startswith("SPEC_") for code in said.codes), said.problems


def test_a_spec_that_is_not_there(case: Case) -> None:
    for name, words in (("preflight", []), ("launch", ["train"])):
        said = script(name, *words, "--spec", case.folder / "nowhere.toml")
        assert said.codes == ["SPEC_FILE"] and said.exit_code == INPUT


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("train.epochs", 3, "SPEC_UNKNOWN_KEY"),
        ("train.epoch", "three", "SPEC_VALUE"),
        ("train.ckpt.max_keep", -2, "SPEC_VALUE"),
        ("custom.train_dataset.annotation_path", "/nowhere/a.json", "DATA_FILE_MISSING"),
        ("policy.model_name_or_path", "/nowhere/m", "STORAGE_NOT_FOUND"),
        ("train.train_policy.mini_batch", 3, "SPEC_CONFLICT"),
    ],
)
def test_launch_starts_nothing_for_what_it_can_see(case: Case, key: str, value: object, code: str) -> None:
    case.set(key, value)
    said = script("launch", "train", "--spec", case.write(), "--wait")
    assert code in said.codes, said.problems
    assert said.exit_code == INPUT and not (case.folder / "out").exists()
    assert script("jobs", "list").data["jobs"] == []


def test_launch_cannot_write_its_output(case: Case) -> None:
    output_under_a_file(case)
    said = script("launch", "train", "--spec", case.write(), "--wait")
    assert "ENV_FILE_REFUSED" in said.codes and said.exit_code == ENVIRONMENT
    said = script("launch", "train", "--spec", case.write(), "--wait", "--skip-preflight")
    assert said.codes == ["ENV_FILE_REFUSED"] and said.exit_code == ENVIRONMENT
    assert script("jobs", "list").data["jobs"] == []


ENGINE_FAULTS = {
    "records": ([same_id_twice, empty_answer], {"DATA_FIELD"}),
    "clips": ([empty_clip, spec("policy.model_max_length", 30)], {"MEDIA_UNREADABLE", "SAMPLE_TOO_LONG"}),
    "batch": ([spec("train.train_batch_per_replica", 64)], {"SPEC_ZERO_STEPS"}),
}


def launched(case: Case, _: Path, *words: str) -> SimpleNamespace:
    """What becomes of a job of the case, as a launch says it."""
    said = script("launch", "train", "--spec", case.write(), "--wait", *words)
    run_dir = Path(said.data["run_dir"])
    return SimpleNamespace(codes=said.codes, exit_code=said.exit_code, run=run_dir, log=run_dir / "log.txt")


def started(case: Case, run: Path, *_: str) -> SimpleNamespace:
    """The same of the engine alone, as its run folder says it: a launch repeats that."""
    done = run_engine("train", case.write(), run, check=False)
    (case.folder / "log.txt").write_text(done.stdout + done.stderr)
    problems = run / "problems.json"
    codes = [problem["code"] for problem in json.loads(problems.read_text())] if problems.exists() else []
    return SimpleNamespace(codes=codes, exit_code=done.returncode, run=run, log=case.folder / "log.txt")


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINE_FAULTS)
def test_a_job_that_fails_on_its_data_says_what_the_launch_has_said(case: Case, name: str) -> None:
    spoils, codes = ENGINE_FAULTS[name]
    for spoil in spoils:
        spoil(case)
    said = script("launch", "train", "--spec", case.write(), "--wait")
    assert codes <= set(said.codes), said.problems
    assert said.exit_code == INPUT and script("jobs", "list").data["jobs"] == []
    job = launched if name == "records" else started
    ended = job(case, case.folder / "run", "--skip-preflight")
    assert codes <= set(ended.codes) and ended.exit_code == INPUT, ended.codes
    assert json.loads((ended.run / "status.json").read_text())["state"] == "ERROR"
    assert "Traceback" not in ended.log.read_text()
    assert not list((ended.run / "checkpoints").glob("*"))


@pytest.mark.slow
def test_a_clip_that_fails_while_training_ends_all_ranks_with_its_problem(case: Case) -> None:
    damage(case.root / "videos/0.mp4")
    case.set("policy.parallelism.dp_shard_size", 2)
    case.set("train.train_batch_per_replica", 2)
    run_dir = case.folder / "run"
    done = run_engine("train", case.write(), run_dir, ranks=2, check=False)
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("ERROR", INPUT), done.stderr[-3000:]
    problems = json.loads((run_dir / "problems.json").read_text())
    assert {p["code"] for p in problems} == {"ENGINE_BAD_SAMPLE"} and "videos/0.mp4" in problems[0]["where"]
    assert not list((run_dir / "checkpoints").glob("*"))


def disk_of(folder: Path, size: int) -> None:
    """Put a disk of `size` bytes at `folder`, which only root may do."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Gives a folder with so many bytes of room; asked again, it has the new size."""
    folder = tmp_path / "disk"

    def make(size: int) -> Path:
        if folder.exists():
            subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
        else:
            disk_of(folder, size)
        return folder

    yield make
    if folder.exists():
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def saving_case(case: Case, disk: Path, mode: str) -> int:
    """Six steps, saved after every second one; an export has the model's size, a checkpoint three times that."""
    for key, value in {
        "train.output_dir": str(disk),
        "train.epoch": 3,
        "train.train_batch_per_replica": 4,
        "train.ckpt.save_freq": 2,
        "train.ckpt.save_freq_in_epoch": 0,
        "train.ckpt.save_mode": mode,
    }.items():
        case.set(key, value)
    return 6


@dataclass
class Sizes:
    """Bytes on disk of one export, one checkpoint, and everything else that a run writes."""

    export: int
    checkpoint: int
    rest: int = 300_000


@pytest.fixture(scope="module")
def sizes(world: SimpleNamespace) -> Sizes:
    (world.folder / "sizes").mkdir()
    spec = tiny_spec(world.folder / "sizes", world.model, world.root, {"train.max_num_steps": 1})
    run_engine("train", spec, world.folder / "sizes/run")
    return Sizes(*(_on_disk(world.folder / "sizes/run" / name / "step_1") for name in ("safetensors", "checkpoints")))


def _on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


def assert_nothing_half_written(run_dir: Path) -> None:
    folders = [run_dir, run_dir / "checkpoints", run_dir / "safetensors"]
    hidden = {path.name for folder in folders for path in folder.iterdir() if path.name.startswith(".")}
    assert hidden <= {".status.lock"}
    for export in (run_dir / "safetensors").iterdir():
        load_export(export, None, torch.float32, torch.device("cpu"))
    assert (run_dir / "best").resolve().is_dir()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_disk_that_fills_up_with_checkpoints(
    case: Case, sizes: Sizes, small_disk: Callable[[int], Path], mode: str
) -> None:
    """The second checkpoint does not fit. What was saved stays, and with more room the run goes on from it."""
    disk = small_disk(2 * sizes.export + sizes.checkpoint * 3 // 2 + sizes.rest)
    steps = saving_case(case, disk, mode)
    said = script("launch", "train", "--spec", case.write(), "--wait")
    assert said.exit_code == ENVIRONMENT and "ENV_DISK_SPACE" in said.codes, said.problems
    job = launched if mode == "sync" else started
    ended = job(case, disk / "run", "--skip-preflight")
    assert (ended.codes, ended.exit_code) == (["ENGINE_SAVE_FAILED"], JOB_FAILED)
    run_dir = ended.run
    assert json.loads((run_dir / "status.json").read_text())["exit_code"] == JOB_FAILED
    assert names(run_dir / "checkpoints") == ["step_2"]
    assert tracebacks(ended.log.read_text()) == []
    assert_nothing_half_written(run_dir)

    small_disk(10 * (sizes.export + sizes.checkpoint))
    case.set("train.resume", True)
    ended = job(case, run_dir)
    assert (ended.exit_code, ended.run) == (0, run_dir)
    assert "resumed after step 2" in ended.log.read_text()
    assert len(losses(run_dir)) == steps
    assert job is started or not (run_dir / "problems.json").exists()  # a launch takes it away
    assert_nothing_half_written(run_dir)


@pytest.mark.slow
def test_a_disk_that_fills_up_with_an_export(case: Case, sizes: Sizes, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(sizes.export * 3 // 2 + sizes.checkpoint + sizes.rest // 3)
    saving_case(case, disk, "sync")
    done = run_engine("train", case.write(), disk / "run", check=False)
    status = json.loads((disk / "run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("ERROR", JOB_FAILED), done.stderr[-3000:]
    assert status["message"].startswith("ENGINE_SAVE_FAILED")
    assert names(disk / "run/checkpoints") == names(disk / "run/safetensors") == ["step_2"]
    assert tracebacks(done.stdout + done.stderr) == []
    assert_nothing_half_written(disk / "run")


@pytest.mark.slow
def test_an_output_that_is_read_only(case: Case, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(1 << 20)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    case.set("train.output_dir", str(disk))
    path = case.write()
    said = script("preflight", "--spec", path, "--only", "environment")
    assert "ENV_FILE_REFUSED" in said.codes and said.exit_code == ENVIRONMENT
    said = script("launch", "train", "--spec", path, "--wait", "--skip-preflight")
    assert (said.codes, said.exit_code) == (["ENV_FILE_REFUSED"], ENVIRONMENT)
    done = run_engine("train", path, disk / "run", check=False)
    assert done.returncode and "ENV_FILE_REFUSED" in done.stderr and tracebacks(done.stderr) == []
