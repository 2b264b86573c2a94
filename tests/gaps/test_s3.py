"""Gap analysis over s3://, against a real S3 server on this machine."""

import json

import pytest

from vidqa.core.problem import ProblemError
from vidqa.gaps.analysis.analyze import analyze


def test_everything_in_a_bucket(bucket):
    turns = [{"from": "human", "value": "<video>Is it?"}, {"from": "gpt", "value": "yes"}]
    notes = [{"id": "a", "video": "clips/a.mp4", "conversations": turns}]
    bucket.pipe("lake/set/annotations.json", json.dumps(notes).encode())
    rows = [{"video_id": __file__, "sample_id": "a", "question": "Is it?", "gt": "yes", "response": "No."}]
    bucket.pipe("lake/runs/one/results.json", json.dumps(rows).encode())
    found = analyze("s3://lake/runs", "s3://lake/gaps.parquet", "s3://lake/set", "", jsonl="s3://lake/gaps.jsonl")
    assert found.sources == ["s3://lake/runs/one/results.json"] and found.problems == []
    row = json.loads(bucket.cat("lake/gaps.jsonl"))
    assert row["video_id"] == "s3://lake/set/clips/a.mp4" and row["parsed_response"] == "no"
    assert bucket.cat("lake/gaps.parquet").startswith(b"PAR1")
    bucket.pipe("lake/runs/two/results.json", b"[]")
    with pytest.raises(ProblemError) as error:
        analyze("s3://lake/runs", "s3://lake/gaps.parquet", "s3://lake/set")
    assert error.value.problems[0].code == "RESULTS_FOLDER"


def test_what_is_not_in_a_bucket(bucket, tmp_path):
    with pytest.raises(ProblemError) as error:
        analyze("s3://no-such-bucket/x", str(tmp_path / "g"), "s3://lake/none.json")
    assert error.value.problems[0].code in ("RESULTS_FOLDER", "ENV_FILE_REFUSED")
    bucket.pipe("lake/results.json", b"[]")
    with pytest.raises(ProblemError) as error:
        analyze("s3://lake", str(tmp_path / "g"), "s3://lake/none.json")
    assert error.value.problems[0].code == "GAPS_ANNOTATIONS"


def test_a_server_that_is_not_there(bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    forget = pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache  # connections are kept by their options
    forget()
    with pytest.raises(ProblemError) as error:
        analyze("s3://lake/runs", str(tmp_path / "g"), "s3://lake/none.json")
    assert error.value.problems[0].code == "ENV_FILE_REFUSED"
    monkeypatch.undo()
    forget()
