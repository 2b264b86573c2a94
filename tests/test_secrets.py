"""Planted tokens: through every step of a real run, its failures included, they are in no output, file or process list.

One test drives the scripts with tokens in the environment, against a hub that wants one of them; then everything that
was written anywhere is searched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_server import Answer, serving
from tiny_world import tiny_data, tiny_model

from vidqa.core import cli, environment
from vidqa.core.problem import INTERNAL

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
TOKENS = {
    "HF_TOKEN": "hf_plantedPLANTEDplantedPLANTED0123",
    "WANDB_API_KEY": "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED012345678",
    "AWS_SECRET_ACCESS_KEY": "planted/secret+access/key/0123456789abcd",
    "AWS_SESSION_TOKEN": "plantedSessionToken0123456789==",
}
PASSWORD = "planted-pass-word"
NEVER = [value.encode() for value in (*TOKENS.values(), PASSWORD)]
SMALL = [
    *("train.max_num_steps=2", "train.train_batch_per_replica=2", "dp_shard_size=2", "custom.vision.nframes=4"),
    *("policy.model_max_length=4096", "train.param_dtype=float32", "engine.pack_tokens=400"),
    *("train.train_policy.dataloader_num_workers=1", "train.optm_warmup_steps=0"),
]


class Echo(Answer):
    """A hub whose refusals repeat the request, header and all, as some proxies do."""

    def refuse(self, status: int) -> None:
        said = f"refused {dict(self.headers)}"
        self.reply(status, json.dumps({"error": said}).encode(), **{"X-Error-Message": said})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """Model and data outside of `home`, which gets everything that is written."""
    home = tmp_path / "home"
    (home / "tmp").mkdir(parents=True)
    model = tiny_model(tmp_path / "made")
    root = tiny_data(home, clips=3, images=0, texts=0)
    with serving(model) as hub:
        hub.gated_to = TOKENS["HF_TOKEN"]
        places = {"HF_HOME": "hf", "VIDQA_STATE_DIR": "state", "VIDQA_CACHE_DIR": "cache", "TMPDIR": "tmp", "HOME": "."}
        variables = {**os.environ, **{name: str(home / folder) for name, folder in places.items()}, **TOKENS}
        variables |= {"HF_ENDPOINT": hub.url, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        yield SimpleNamespace(home=home, root=root, hub=hub, environment=variables, said=home / "said", made=tmp_path)


def run(world: SimpleNamespace, name: str, *words: object, code: int | None = 0) -> dict[str, Any]:
    """One script with --json; what it prints is kept among the files that are searched."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, cwd=world.home, env=world.environment, timeout=1200)
    world.said.mkdir(exist_ok=True)
    (world.said / f"{len(list(world.said.iterdir()))}-{name}").write_bytes(done.stdout + b"\n" + done.stderr)
    if code is not None:
        assert done.returncode == code, (name, words, done.stdout[-3000:], done.stderr[-3000:])
    return json.loads(done.stdout)


class ProcessList:
    """Looks at the command lines of all processes, again and again, while a block runs."""

    def __enter__(self) -> ProcessList:
        self.found: set[bytes] = set()
        self.looked = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def _look(self) -> None:
        while not self.over.wait(0.05):
            self.looked += 1
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = file.read_bytes()
                except OSError:  # it has ended
                    continue
                self.found |= {line for secret in NEVER if secret in line}

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def leaks(folder: Path) -> list[str]:
    """The files below a folder, and the names of files and links, that hold a planted token."""
    found = []
    for path in folder.rglob("*"):
        texts = [str(path).encode(), os.readlink(path).encode() if path.is_symlink() else b""]
        texts += [path.read_bytes()] if path.is_file() and not path.is_symlink() else []
        found += [str(path) for secret in NEVER if any(secret in text for text in texts)]
    return found


@pytest.mark.slow
def test_tokens_are_in_nothing_that_is_written_or_run(world: SimpleNamespace) -> None:
    with ProcessList() as processes:
        _the_whole_path(world)
        _what_fails(world)
    assert processes.found == set() and processes.looked > 20
    assert world.hub.requests  # the token was really used
    assert leaks(world.home) == []
    assert len(list(world.said.iterdir())) > 10 and list(world.home.rglob("log.txt"))
    (world.home / "said/planted").write_text(f"Authorization: Bearer {TOKENS['HF_TOKEN']}")
    assert leaks(world.home) != []  # the search would have found one


def _the_whole_path(world: SimpleNamespace) -> None:
    sets = [word for value in SMALL for word in ("--set", value)]
    given = ("--train-root", world.root, "--model", "hf_model://org/tiny", "--results-dir", "out")
    run(world, "build_spec", "train", *given, *sets, "--out", "t.toml")
    run(world, "preflight", "--spec", "t.toml", "--platform", "local", code=None)
    for platform in ("local", "slurm", "docker", "kubernetes"):  # whatever lacks here, the files are written
        words = ("--image", "registry.example/image:1") if platform in ("docker", "kubernetes") else ()
        words = ("--platform", platform, *words, "--dry-run", "--out", f"files-{platform}")
        run(world, "launch", "train", "--spec", "t.toml", *words, code=None)
        assert list((world.home / f"files-{platform}").iterdir())
    trained = run(world, "launch", "train", "--spec", "t.toml", "--platform", "local", "--wait")["data"]
    words = ("--parent-run", trained["run_dir"], "--eval-root", world.root, "--results-dir", "eval")
    run(world, "build_spec", "evaluate", *words, "--set", "generation.max_tokens=8", "--out", "e.toml")
    evaluated = run(world, "launch", "evaluate", "--spec", "e.toml", "--platform", "local", "--wait")["data"]
    table = ("--gaps-parquet", "gaps.parquet", "--kpi-ann-path", world.root, "--jsonl", "gaps.jsonl")
    run(world, "analyze_gaps", "--results-dir", evaluated["run_dir"], *table)
    long = [f"--set={key}" for key in ("train.max_num_steps=null", "train.epoch=5000", "dp_shard_size=1")]
    run(world, "build_spec", "train", "--override", "t.toml", *long, "--out", "long.toml")
    job = run(world, "launch", "train", "--spec", "long.toml", "--platform", "local")["data"]["job_id"]
    deadline = time.monotonic() + 600
    while not run(world, "jobs", "status", job, code=None)["data"].get("progress", {}).get("step"):
        assert time.monotonic() < deadline
        time.sleep(1)
    run(world, "jobs", "cancel", job, code=None)
    run(world, "jobs", "logs", job, code=None)
    run(world, "jobs", "list", code=None)


def _what_fails(world: SimpleNamespace) -> None:
    shutil.copytree(world.root, world.home / "broken")
    for clip in world.home.glob("broken/videos/*"):
        clip.write_bytes(clip.read_bytes()[:600])
    keys = {"annotation_path": "broken/annotations.json", "media_path": "broken"}
    sets = [word for key, value in keys.items() for word in ("--set", f"custom.train_dataset.{key}={value}")]
    run(world, "build_spec", "train", "--override", "t.toml", *sets, "--out", "broken.toml")
    said = run(world, "launch", "train", "--spec", "broken.toml", "--platform", "local", "--wait", code=None)
    assert not said["ok"]
    names = (
        f"https://user:{PASSWORD}@localhost/x",
        f"hf_model://{TOKENS['HF_TOKEN']}@org/x",
        f"hf_model://u:{PASSWORD}@a/b",
    )
    for script, name in zip(("build_spec", "preflight", "launch"), names, strict=True):
        file = world.made / f"{script}.json"  # outside of what is searched
        file.write_text(json.dumps({"policy": {"model_name_or_path": name}}))
        words = ("--override", file, "--explain") if script == "build_spec" else ("--spec", file, "--platform", "local")
        refused = run(world, script, *(() if script == "preflight" else ("train",)), *words, code=3)
        assert "SPEC_SECRET" in {problem["code"] for problem in refused["problems"]}, (script, refused)
    world.hub.RequestHandlerClass = Echo
    for status in (403, 500):
        world.hub.refuse = status
        run(world, "preflight", "--spec", "t.toml", "--platform", "local", "--only", "credentials", code=None)


def test_a_problem_that_names_an_address_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    def main(_: Any) -> cli.Result:
        raise INTERNAL.error(f"s3://user:{PASSWORD}@localhost:1/x", "it failed")

    assert cli.run(cli.Parser("x"), main, ["--json"]) == 1
    out, err = capsys.readouterr()
    assert "localhost:1/x" in out and PASSWORD not in out + err


def test_an_exception_that_quotes_the_request_is_cleaned_in_output_and_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)

    def main(_: Any) -> cli.Result:
        headers = {"authorization": f"Bearer {TOKENS['HF_TOKEN']}", "x-amz-security-token": TOKENS["AWS_SESSION_TOKEN"]}
        raise RuntimeError(f"403 for https://user:{PASSWORD}@hub/api with {headers}")

    for words in ([], ["--json"]):
        assert cli.run(cli.Parser("x"), main, words) == 1
        out, err = capsys.readouterr()
        log = Path((out + err).split("report it with ")[1].split(".log")[0] + ".log")
        text = out + err + log.read_text()
        log.unlink()
        assert [secret for secret in NEVER if secret.decode() in text] == [] and "<HF_TOKEN>" in text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("s3://bucket/a@b.json", "s3://bucket/a@b.json"),
        ("hf_model://org/name@main and me@host.org", "hf_model://org/name@main and me@host.org"),
        ("https://me:pw@host/x, s3://k:s/e+c@b/x", "https://<credentials>@host/x, s3://<credentials>@b/x"),
        ("Basic instructions for a Bearer of news", "Basic instructions for a Bearer of news"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic <token>"),
        ("token hf_abcdefghijklmnopqrstuvwxyz", "token <token>"),
        ("hf_model://org/name hf_home", "hf_model://org/name hf_home"),
        ("http://host:8080/a@b tcp://h:1/x", "http://host:8080/a@b tcp://h:1/x"),
    ],
)
def test_what_counts_as_a_secret(text: str, clean: str) -> None:
    assert environment.redacted(text) == clean
