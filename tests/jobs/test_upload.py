"""What a run made goes to a bucket and to the hub: whole, checked, once, and never at the cost of the run."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.hub_uploads import Hub, serving
from tests.programs import run_here
from tests.tiny_world import run_engine, tiny_data, tiny_model, tiny_spec
from vidqa.core import environment
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import upload as upload_module
from vidqa.jobs.upload import UPLOADS, Destinations, main, run_files, spec_destinations, upload

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "upload.py"
HUB = "hub:org/tuned"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with three exports, of which the second is the best."""
    folder = tmp_path / "20260101T120000Z-1a2b3c"
    for step in (1, 2, 3):
        export = folder / "safetensors" / f"step_{step}"
        export.mkdir(parents=True)
        (export / "export.json").write_text(json.dumps({"step": step}))
        (export / "model.safetensors").write_bytes(os.urandom(5000))
        (export / "config.json").write_text("{}")
    (folder / "checkpoints" / "step_3").mkdir(parents=True)
    (folder / "checkpoints" / "step_3" / "state").write_bytes(b"large")
    (folder / "safetensors" / ".unfinished-step_4").mkdir()
    (folder / "best.json").write_text('{"name": "step_2"}')
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "spec.toml").write_text("[train]\n")
    (folder / "best").symlink_to("safetensors/step_2")
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")  # the hub's own storage has no open server; LFS is the other way
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield hub


def codes(problems: list[Any]) -> list[str]:
    return [problem.code for problem in problems]


def asks(run_dir: Path, **ckpt: Any) -> Destinations:
    lines = [f"{key} = {json.dumps(value)}" for key, value in ckpt.items()]
    (run_dir / "spec.toml").write_text("\n".join(["[train.ckpt]", *lines]))
    return spec_destinations(run_dir)


def test_what_the_spec_asks_for(run_dir: Path) -> None:
    assert not asks(run_dir, upload_s3=False, s3_bucket="lake")
    destinations = asks(
        run_dir, upload_s3="all", s3_bucket="lake", s3_prefix="team", upload_hf=True, hf_repo_name="org/tuned"
    )
    assert destinations == Destinations("s3://lake/team", "all", "org/tuned")
    assert asks(run_dir, upload_s3="final", s3_bucket="lake").s3 == "s3://lake/outputs"


def test_a_run_goes_to_a_bucket_whole_and_only_once(bucket: Any, run_dir: Path) -> None:
    done, problems = upload(run_dir, Destinations("s3://lake/outputs"), None)
    address = f"s3://lake/outputs/{run_dir.name}"
    assert problems == [] and done[address]["state"] == "COMPLETE"
    there = {name.partition(f"{run_dir.name}/")[2] for name in bucket.find(address)}
    exports = {f"safetensors/step_{n}/{f}" for n in (2, 3) for f in ("export.json", "model.safetensors", "config.json")}
    assert there == exports | {"best.json", "metrics.jsonl", "spec.toml"}
    model = (run_dir / "safetensors/step_2/model.safetensors").read_bytes()
    assert bucket.cat(f"{address}/safetensors/step_2/model.safetensors") == model
    record = json.loads((run_dir / UPLOADS).read_text())["destinations"][address]
    sent = {each["path"]: each for each in record["files"]}["safetensors/step_2/model.safetensors"]
    assert sent["sha256"] == hashlib.sha256(model).hexdigest() and record["sent"] == 9
    again, _ = upload(run_dir, Destinations("s3://lake/outputs"), None)
    assert again[address]["sent"] == 0
    bucket.rm(f"{address}/best.json")
    (run_dir / UPLOADS).write_text("[]")  # what something else wrote
    (run_dir / "metrics.jsonl").write_text("{}\n{}\n")
    again, _ = upload(run_dir, Destinations("s3://lake/outputs"), None)
    assert again[address]["sent"] == 2 and bucket.cat(f"{address}/metrics.jsonl") == b"{}\n{}\n"
    everything, _ = upload(run_dir, Destinations("s3://lake/outputs", "all"), None)
    assert everything[address]["sent"] == 3


def test_a_folder_of_an_export_goes_to_a_bucket_without_the_path_of_its_base(bucket: Any, tmp_path: Path) -> None:
    folder = tmp_path / "doors"
    folder.mkdir()
    (folder / "export.json").write_text("{}")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "base_model_name_or_path": str(tmp_path)}))
    done, problems = upload(folder, Destinations("s3://lake/models"), None)
    assert problems == [] and done["s3://lake/models/doors"]["sent"] == 2
    config = json.loads(bucket.cat("lake/models/doors/adapter_config.json"))
    assert config == {"r": 4, "base_model_name_or_path": None, "revision": None}
    assert str(tmp_path) in (folder / "adapter_config.json").read_text()


def test_files_of_several_parts(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_module, "PART", 5 << 20)  # the smallest that S3 takes
    root = tmp_path / "run"
    root.mkdir()
    for name, size in (("parts", 12 << 20), ("edge", 10 << 20), ("one", (10 << 20) - 1), ("empty", 0)):
        (root / name).write_bytes(os.urandom(size))
    first = upload_module.send("s3://lake/run", root, sorted(root.iterdir()))
    tags = {each["path"]: each["etag"] for each in first["files"]}
    assert tags["parts"].endswith("-3") and tags["edge"].endswith("-2") and "-" not in tags["one"] + tags["empty"]
    assert upload_module.send("s3://lake/run", root, sorted(root.iterdir()))["sent"] == 0


def test_bytes_that_change_on_their_way_are_noticed(
    bucket: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_module, "hashes", lambda path, part: ("0" * 32, "0" * 64))
    done, problems = upload(run_dir, Destinations("s3://lake/outputs"), None)
    assert set(codes(problems)) == {"STORAGE_UNREACHABLE"} and len(problems) == 9
    assert json.loads((run_dir / UPLOADS).read_text())["destinations"] == json.loads(json.dumps(done))


def test_the_tag_of_an_object_with_a_key_of_its_own_says_nothing(
    bucket: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.s3_additional_kwargs = {"ServerSideEncryption": "aws:kms"}
    monkeypatch.setattr(upload_module, "connect", lambda: bucket)
    monkeypatch.setattr(upload_module, "hashes", lambda path, part: ("0" * 32, "0" * 64))
    try:
        _, problems = upload(run_dir, Destinations("s3://lake/outputs"), None)
    finally:
        bucket.s3_additional_kwargs = {}
    assert problems == []


def test_the_best_export_goes_to_the_hub_private(hub: Hub, run_dir: Path) -> None:
    done, problems = upload(run_dir, Destinations(hub="org/tuned"), hub.token)
    assert problems == [] and done[HUB]["export"] == "step_2"
    repo = hub.repos["org/tuned"]
    assert repo["private"] is True
    export = run_dir / "safetensors/step_2"
    assert repo["files"] == {path.name: path.read_bytes() for path in export.iterdir()}
    assert [request for request in hub.requests if request.startswith("PUT /objects/")]
    hub.requests.clear()
    upload(run_dir, Destinations(hub="org/tuned"), hub.token)
    assert not [request for request in hub.requests if request.startswith("PUT ")]  # the weights are there already


def test_a_name_without_an_organisation_is_in_the_tokens_own_namespace(hub: Hub, run_dir: Path) -> None:
    done, problems = upload(run_dir, Destinations(hub="tuned"), hub.token)
    assert problems == [] and done["hub:tuned"]["repository"] == "me/tuned"
    assert upload(run_dir, Destinations(hub="tuned"), hub.token)[1] == []  # it is there already
    assert set(hub.repos) == {"me/tuned"} and "model.safetensors" in hub.repos["me/tuned"]["files"]


def test_a_folder_that_is_an_export_goes_without_its_run(bucket: Any, hub: Hub, run_dir: Path) -> None:
    export = (run_dir / "safetensors/step_2").rename(run_dir.parent / "doors")
    (export / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# doors\n")
    files = {path.name: path.read_bytes() for path in export.iterdir()}
    for _ in range(2):  # the second time there is the record of the first
        done, problems = upload(export, Destinations("s3://lake/models", hub="org/tuned"), hub.token)
        assert problems == [] and [each["state"] for each in done.values()] == ["COMPLETE"] * 2
        assert hub.repos["org/tuned"]["files"] == files
    there = bucket.find("s3://lake/models/doors")
    assert {name.rpartition("/")[2] for name in there} == set(files) and (export / UPLOADS).is_file()


def test_a_public_repository_gets_nothing_unless_agreed(hub: Hub, run_dir: Path) -> None:
    hub.make("org/tuned", private=False)
    _, problems = upload(run_dir, Destinations(hub="org/tuned"), hub.token)
    assert codes(problems) == ["NOT_AGREED"] and hub.repos["org/tuned"]["files"] == {}
    done, problems = upload(run_dir, Destinations(hub="org/tuned", public=True), hub.token)
    assert problems == [] and done[HUB]["state"] == "COMPLETE"
    upload(run_dir, Destinations(hub="org/new", public=True), hub.token)
    assert hub.repos["org/new"]["private"] is False


@pytest.mark.parametrize(
    ("part", "status", "code"),
    [("/preupload/", 403, "STORAGE_DENIED"), ("/commit/", 400, "STORAGE_DENIED")],
)
def test_what_the_hub_refuses(hub: Hub, run_dir: Path, part: str, status: int, code: str) -> None:
    hub.refuse[part] = status
    done, problems = upload(run_dir, Destinations(hub="org/tuned"), hub.token)
    assert codes(problems) == [code] and done[HUB]["state"] == "ERROR"
    hub.refuse.clear()
    assert upload(run_dir, Destinations(hub="org/tuned"), hub.token)[1] == []


def test_a_wrong_token_is_told_without_it(hub: Hub, run_dir: Path) -> None:
    done, problems = upload(run_dir, Destinations(hub="org/tuned"), "hf_planted_secret")
    assert codes(problems) == ["STORAGE_DENIED"] and "401" in problems[0].message
    assert problems[0].remedy.endswith(f"scripts/upload.py RUN --hub {problems[0].where}")
    assert "planted" not in json.dumps(done) + (run_dir / UPLOADS).read_text()


def test_weights_that_arrive_damaged(hub: Hub, run_dir: Path) -> None:
    hub.damage = True
    _, problems = upload(run_dir, Destinations(hub="org/tuned"), hub.token)
    assert codes(problems) == ["STORAGE_UNREACHABLE"] and "model.safetensors" in problems[0].message


@pytest.mark.parametrize("endpoint", ["minio", "localhost:9000", "ftp://host", "http://", "http://a b"])
def test_an_endpoint_that_is_no_address(endpoint: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    _, problems = upload(run_dir, Destinations(s3="s3://lake/x"), None)
    assert [(problem.code, problem.where) for problem in problems] == [("STORAGE_UNREACHABLE", "AWS_ENDPOINT_URL")]


def test_a_token_with_the_end_of_its_line(hub: Hub, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file of another system leaves it: the token alone is sent, and no message repeats it."""
    monkeypatch.setenv("HF_TOKEN", "planted-token-1\r\n")
    assert environment.hf_token() == "planted-token-1"
    assert "planted" not in environment.redacted("Illegal header value b'Bearer planted-token-1\\r\\n'")


def test_a_hub_that_is_not_there(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    _, problems = upload(run_dir, Destinations(hub="org/tuned"), "t")
    assert codes(problems) == ["STORAGE_UNREACHABLE"]


def test_one_place_that_fails_does_not_keep_the_other_from_its_share(bucket: Any, hub: Hub, run_dir: Path) -> None:
    done, problems = upload(run_dir, Destinations("s3://none-such/x", hub="org/tuned"), hub.token)
    assert [each["state"] for each in done.values()] == ["ERROR", "COMPLETE"] and len(problems) >= 1


def test_nothing_to_upload(run_dir: Path, tmp_path: Path) -> None:
    for destinations in (Destinations(), Destinations(hub="two/slashes/here")):
        with pytest.raises(ProblemError) as raised:
            upload(run_dir, destinations, None)
        assert raised.value.exit_code == Exit.USAGE
    (tmp_path / "evaluation").mkdir()
    with pytest.raises(ProblemError) as raised:
        upload(tmp_path / "evaluation", Destinations(hub="org/x"), None)
    assert "no export" in str(raised.value)


def test_an_evaluation_has_its_results_and_no_exports(bucket: Any, tmp_path: Path) -> None:
    run = tmp_path / "evaluation"
    run.mkdir()
    for name in ("results.json", "metrics.json", "report.html"):
        (run / name).write_text("{}")
    done, problems = upload(run, Destinations("s3://lake/scores"), None)
    assert problems == [] and done["s3://lake/scores/evaluation"]["sent"] == 3
    assert [path.name for path in run_files(run, [])] == ["metrics.json", "report.html", "results.json"]


def test_the_end_of_a_training_uploads_what_its_spec_asks_for(bucket: Any, hub: Hub, run_dir: Path) -> None:
    asks(run_dir, upload_s3="final", s3_bucket="lake", upload_hf=True, hf_repo_name="org/tuned")
    ran = subprocess.run(
        [sys.executable, "-m", "vidqa.jobs.upload", run_dir],
        env={**os.environ, "HF_TOKEN": hub.token, "PYTHONPATH": str(SCRIPT.parents[1] / "src")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert set(hub.repos["org/tuned"]["files"]) == {"config.json", "export.json", "model.safetensors"}
    assert bucket.exists(f"lake/outputs/{run_dir.name}/safetensors/step_3/model.safetensors")
    assert main(run_dir) == 1  # without the token: told, recorded, and nothing raised


def test_the_script_uploads_again_what_failed(bucket: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(*words: object, **more: str) -> tuple[int, dict[str, Any]]:
        with monkeypatch.context() as patch:
            for name, value in more.items():
                patch.setenv(name, value)
            ran = run_here([sys.executable, str(SCRIPT), *map(str, words), "--json"], cwd=run_dir)
        return ran.returncode, json.loads(ran.stdout)

    dead = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    code, result = script(run_dir, "--s3", "s3://lake/outputs", **dead)
    assert code == Exit.ENVIRONMENT and result["problems"][0]["code"] == "STORAGE_UNREACHABLE"
    assert "upload.py" in result["next"][0]
    code, result = script(run_dir, "--s3", "s3://lake/outputs")
    assert code == 0 and result["data"]["destinations"][f"s3://lake/outputs/{run_dir.name}"]["state"] == "COMPLETE"
    code, result = script(run_dir / "none")
    assert code == Exit.USAGE and result["problems"][0]["code"] == "USAGE"


@pytest.mark.slow
def test_a_real_training_uploads_at_its_end_and_does_not_fail_with_it(bucket: Any, hub: Hub, tmp_path: Path) -> None:
    model, data = tiny_model(tmp_path), tiny_data(tmp_path, clips=2, images=0, texts=0)
    asked = {
        "train.ckpt.upload_s3": "final",
        "train.ckpt.s3_bucket": "lake",
        "train.ckpt.upload_hf": True,
        "train.ckpt.hf_repo_name": "org/tuned",
    }
    spec, run_dir = tiny_spec(tmp_path, model, data, asked), tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "spec.toml").write_text(spec.read_text())
    # Without a token the hub refuses; the job itself is offline.
    done = run_engine("train", run_dir / "spec.toml", run_dir, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert json.loads((run_dir / "status.json").read_text())["state"] == "COMPLETE"
    assert "STORAGE_DENIED" in done.stderr and "scripts/upload.py" in done.stderr
    record = json.loads((run_dir / UPLOADS).read_text())["destinations"]
    assert {address: each["state"] for address, each in record.items()} == {
        "s3://lake/outputs/run": "COMPLETE",
        HUB: "ERROR",
    }
    exported = [name for name in bucket.find("lake/outputs/run") if name.endswith("model.safetensors")]
    assert len(exported) == 1 and bucket.exists("lake/outputs/run/report.html")
    _, problems = upload(run_dir, spec_destinations(run_dir), hub.token)
    assert problems == [] and "model.safetensors" in hub.repos["org/tuned"]["files"]
