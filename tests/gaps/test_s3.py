"""Gap analysis over s3://, against a real S3 server on this machine."""

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vidqa.gaps import analyze
from vidqa.problem import ProblemError

s3fs = pytest.importorskip("s3fs")
SERVER = shutil.which("moto_server", path=str(Path(sys.executable).parent))
pytestmark = pytest.mark.skipif(SERVER is None, reason="moto[server] is not installed")


@pytest.fixture(scope="module")
def endpoint():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def bucket(endpoint, monkeypatch):
    for name, value in {
        "ENDPOINT_URL": endpoint,
        "ACCESS_KEY_ID": "x",
        "SECRET_ACCESS_KEY": "x",
        "DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdirs("kpi", exist_ok=True)
    yield files
    files.rm("kpi", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def test_everything_in_a_bucket(bucket):
    turns = [{"from": "human", "value": "<video>Is it?"}, {"from": "gpt", "value": "yes"}]
    notes = [{"id": "a", "video": "clips/a.mp4", "conversations": turns}]
    bucket.pipe("kpi/set/annotations.json", json.dumps(notes).encode())
    rows = [{"video_id": "a", "question": "Is it?", "gt": "yes", "response": "No."}]
    bucket.pipe("kpi/runs/one/results.json", json.dumps(rows).encode())
    found = analyze("s3://kpi/runs", "s3://kpi/gaps.parquet", "s3://kpi/set", "", jsonl="s3://kpi/gaps.jsonl")
    assert found.sources == ["s3://kpi/runs/one/results.json"]
    row = json.loads(bucket.cat("kpi/gaps.jsonl"))
    assert row["video_id"] == "s3://kpi/set/clips/a.mp4" and row["parsed_response"] == "no"
    assert bucket.cat("kpi/gaps.parquet").startswith(b"PAR1")
    bucket.pipe("kpi/runs/two/results.json", b"[]")
    with pytest.raises(ProblemError) as error:
        analyze("s3://kpi/runs", "s3://kpi/gaps.parquet", "s3://kpi/set")
    assert error.value.problems[0].code == "GAPS_SEVERAL_RESULTS"


def test_what_is_not_in_a_bucket(bucket, tmp_path):
    with pytest.raises(ProblemError) as error:
        analyze("s3://no-such-bucket/x", str(tmp_path / "g"), "s3://kpi/none.json")
    assert error.value.problems[0].code in ("GAPS_RESULTS_MISSING", "GAPS_STORAGE")
    bucket.pipe("kpi/results.json", b"[]")
    with pytest.raises(ProblemError) as error:
        analyze("s3://kpi", str(tmp_path / "g"), "s3://kpi/none.json")
    assert error.value.problems[0].code == "GAPS_STORAGE"


def test_a_server_that_is_not_there(bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(ProblemError) as error:
        analyze("s3://kpi/runs", str(tmp_path / "g"), "s3://kpi/none.json")
    assert error.value.problems[0].code == "GAPS_STORAGE"
    monkeypatch.undo()
