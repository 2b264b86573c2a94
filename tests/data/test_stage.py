"""Data sets in a bucket: only what the annotations name is fetched, once, checked, and written down."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from programs import run_here
from tiny_world import tiny_data

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import Exit, ProblemError
from vidqa.data import load_records
from vidqa.data.storage import expected_set, stage_set, staging
from vidqa.data.storage.staging import RECORD, folder_of, read_record
from vidqa.jobs import job_results
from vidqa.jobs.launch import dry_run

SET, VIDEOS = "s3://lake/set/annotations.json", "s3://lake/set/videos"


def record(name: str, number: int = 0) -> dict[str, Any]:
    turns = [{"from": "human", "value": "<video>Is it?"}, {"from": "gpt", "value": "yes"}]
    return {"id": f"r{number}", "video": name, "conversations": turns}


def put(bucket: Any, names: list[str], annotations: list[dict[str, Any]] | None = None) -> None:
    rows = [record(name, number) for number, name in enumerate(names)] if annotations is None else annotations
    bucket.pipe("lake/set/annotations.json", json.dumps(rows).encode())
    for name in names:
        bucket.pipe(f"lake/set/videos/{name}", name.encode() * 100)


def codes(raised: pytest.ExceptionInfo[ProblemError]) -> list[str]:
    return [problem.code for problem in raised.value.problems]


def test_local_paths_stay_as_they_are() -> None:
    assert stage_set("a.json", "/media") == ("a.json", "/media")


def test_only_what_is_named_is_fetched_and_written_down(bucket: Any) -> None:
    put(bucket, ["a.mp4", "deep/b.mp4"])
    bucket.pipe("lake/set/videos/unused.mp4", b"x" * 1000)
    annotations, media = stage_set(SET, VIDEOS)
    assert Path(annotations).read_bytes() == bucket.cat("lake/set/annotations.json")
    found = sorted(str(path.relative_to(media)) for path in Path(media).rglob("*") if path.is_file())
    assert found == ["a.mp4", "deep/b.mp4"]
    assert [row.media[0].path for row in load_records(annotations, media)] == [f"{media}/a.mp4", f"{media}/deep/b.mp4"]
    staged = read_record(folder_of(SET, VIDEOS))[f"{VIDEOS}/deep/b.mp4"]
    content = b"deep/b.mp4" * 100
    assert (staged.bytes, staged.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert staged.etag == hashlib.md5(content).hexdigest()


def test_a_split_of_a_set_is_named_and_only_its_media_are_fetched(bucket: Any) -> None:
    put(bucket, ["a.mp4", "b.mp4", "c.mp4"])
    lines = "video,question,answer\n" + "".join(f"{name}.mp4,Is it open?,Yes\n" for name in "abc")
    bucket.pipe("lake/set/rows.csv", lines.encode())
    for address in (f"{SET}#train[1:2]", "s3://lake/set/rows.csv#[1:2]"):
        expected = expected_set(address, VIDEOS)
        annotations, media = stage_set(address, VIDEOS)
        assert (annotations, media) == expected and annotations.endswith("1:2]")
        assert [row.media[0].path for row in load_records(annotations, media)] == [f"{media}/b.mp4"]
        assert [path.name for path in Path(media).iterdir()] == ["b.mp4"]


def test_media_of_questions_without_answers_are_fetched(bucket: Any) -> None:
    put(bucket, ["a.mp4"])
    bucket.pipe("lake/set/asked.csv", b"video,question\na.mp4,Is it open?\n")
    annotations, media = stage_set("s3://lake/set/asked.csv", VIDEOS)
    (record,) = load_records(annotations, media, need_answers=False)
    assert record.media[0].path == f"{media}/a.mp4"


def test_nothing_is_fetched_twice_and_what_changed_is(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, ["a.mp4", "b.mp4"])
    stage_set(SET, VIDEOS)
    fetched: list[str] = []
    fetch_one = staging._fetch_one
    monkeypatch.setattr(staging, "_fetch_one", lambda *given: fetched.append(given[1].address) or fetch_one(*given))
    stage_set(SET, VIDEOS)
    assert fetched == []
    bucket.pipe("lake/set/videos/a.mp4", b"other" * 100)  # as many bytes as before
    _, media = stage_set(SET, VIDEOS)
    assert fetched == [f"{VIDEOS}/a.mp4"] and (Path(media) / "a.mp4").read_bytes() == b"other" * 100
    (Path(media) / "b.mp4").write_bytes(b"cut")
    stage_set(SET, VIDEOS)
    assert fetched[1:] == [f"{VIDEOS}/b.mp4"] and (Path(media) / "b.mp4").stat().st_size == 500


def test_an_interrupted_staging_goes_on(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, [f"{number}.mp4" for number in range(6)])
    fetch_one, fetched = staging._fetch_one, []

    def dies_at_the_third(*given: Any) -> Any:
        if given[1].address.endswith("/3.mp4"):
            raise KeyboardInterrupt
        return fetch_one(*given)

    monkeypatch.setattr(staging, "_fetch_one", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        stage_set(SET, VIDEOS)
    folder = folder_of(SET, VIDEOS)
    known = read_record(folder)
    with (folder / RECORD).open("ab") as lines:
        lines.write('{"source": "s3://laké'.encode()[:-1])  # and a line that was cut off, in the middle of a character
    assert 1 <= len(known) < 7 and not list(folder.rglob("media/.*"))
    monkeypatch.setattr(staging, "_fetch_one", lambda *given: fetched.append(given[1].address) or fetch_one(*given))
    _, media = stage_set(SET, VIDEOS)
    assert len(list(Path(media).iterdir())) == 6 and f"{VIDEOS}/0.mp4" not in fetched
    assert len(read_record(folder)) == 7, "no file is fetched once more because of that line"


def test_what_is_missing_is_all_named(bucket: Any) -> None:
    put(bucket, ["a.mp4"], [record("a.mp4", 0), record("b.mp4", 1), record("c.mp4", 2)])
    with pytest.raises(ProblemError) as raised:
        stage_set(SET, VIDEOS)
    assert [problem.where for problem in raised.value.problems] == [f"{VIDEOS}/b.mp4", f"{VIDEOS}/c.mp4"]
    put(bucket, ["a.mp4"], [record(f"{number}.mp4", number) for number in range(500)])
    with pytest.raises(ProblemError) as raised:
        stage_set(SET, VIDEOS)
    assert len(raised.value.problems) == 21 and "480 more" in str(raised.value.problems[-1])
    with pytest.raises(ProblemError) as raised:
        stage_set("s3://lake/none", VIDEOS)
    assert codes(raised) == ["STORAGE_NOT_FOUND"] and "annotations.jsonl" in str(raised.value)
    with pytest.raises(ProblemError) as raised:
        stage_set("s3://no-such-bucket/a.json", VIDEOS)
    assert codes(raised) == ["STORAGE_NOT_FOUND"]


@pytest.mark.parametrize("name", ["../secret.mp4", "s3://other/a.mp4", "a/../../b.mp4"])
def test_names_that_lead_elsewhere_are_refused(bucket: Any, name: str) -> None:
    put(bucket, [], [record(name)])
    with pytest.raises(ProblemError) as raised:
        stage_set(SET, VIDEOS)
    assert codes(raised) == ["STORAGE_NOT_FOUND"] and name in str(raised.value)


@pytest.mark.parametrize("address", ["s3://", "s3:///a", "s3://UPPER/a", "s3://a"])
def test_addresses_that_are_none(address: str) -> None:
    pytest.importorskip("s3fs")
    with pytest.raises(ProblemError) as raised:
        stage_set(address, "media")
    assert codes(raised) == ["STORAGE_NOT_FOUND"]


def test_absolute_names_are_files_of_this_machine(bucket: Any, tmp_path: Path) -> None:
    (tmp_path / "here.mp4").write_bytes(b"x")
    put(bucket, ["a.mp4"], [record("a.mp4", 0), record(str(tmp_path / "here.mp4"), 1)])
    annotations, media = stage_set(SET, VIDEOS)
    assert len(load_records(annotations, media)) == 2


def test_a_folder_with_annotations_and_a_local_half(bucket: Any, tmp_path: Path) -> None:
    put(bucket, ["a.mp4"])
    (tmp_path / "a.mp4").write_bytes(b"x")
    annotations, media = stage_set("s3://lake/set/", str(tmp_path))
    assert Path(annotations).name == "annotations.json" and media == str(tmp_path)
    local = tmp_path / "annotations.json"
    local.write_text(json.dumps([record("a.mp4")]))
    assert stage_set(str(local), VIDEOS)[0] == str(local)


def test_a_set_in_a_bucket_can_be_inspected_and_split(bucket: Any, tmp_path: Path) -> None:
    put(bucket, ["a.mp4", "b.mp4"])
    words = ["--annotations", SET, "--media-path", VIDEOS, "--skip-near-duplicates", "--json"]
    inspect, split = ([sys.executable, str(SKILL_ROOT / f"scripts/{name}_dataset.py")] for name in ("inspect", "split"))
    assert json.loads(run_here([*inspect, *words], cwd=tmp_path).stdout)["data"]["records"] == 2
    done = run_here([*split, *words, "--share", "0.5", "--out", str(tmp_path / "parts")], cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert sorted(path.name for path in (tmp_path / "parts").glob("*/*.mp4")) == ["a.mp4", "b.mp4"]


def test_archives(bucket: Any) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("videos/a.mp4")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"video"))
    put(bucket, [], [record("videos/a.mp4")])
    bucket.pipe("lake/set/media.tar.gz", packed.getvalue())
    annotations, media = stage_set(SET, "s3://lake/set/media.tar.gz")
    assert media.endswith("media.tar.gz") and load_records(annotations, media)[0].media[0].size == 5
    bucket.pipe("lake/set/packed/videos.tar.gz", packed.getvalue())
    annotations, media = stage_set(SET, "s3://lake/set/packed")
    assert load_records(annotations, media)[0].media[0].size == 5


def test_damaged_bytes_are_noticed(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, ["a.mp4"])
    below = staging.objects_below

    def other_tag(*given: Any) -> Any:
        return [staging.Object(each.address, each.size, "0" * 32) for each in below(*given)]

    monkeypatch.setattr(staging, "objects_below", other_tag)
    with pytest.raises(ProblemError) as raised:
        stage_set(SET, VIDEOS)
    assert codes(raised) == ["STORAGE_UNREACHABLE"]
    assert not list((folder_of(SET, VIDEOS) / "media").glob("*"))


def test_no_space(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, ["a.mp4"])
    monkeypatch.setattr(staging.hub_dataset, "SPARE", 1 << 60)
    with pytest.raises(ProblemError) as raised:
        stage_set(SET, VIDEOS)
    assert codes(raised) == ["ENV_DISK_SPACE"] and raised.value.exit_code == Exit.ENVIRONMENT


def test_a_server_that_is_not_there(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ProblemError) as raised:
        stage_set(SET, VIDEOS)
    assert codes(raised) == ["STORAGE_UNREACHABLE"]


def test_no_credentials(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ProblemError) as raised:
        stage_set(SET, VIDEOS)
    assert codes(raised) == ["STORAGE_DENIED"]


def test_two_processes_stage_a_set_once(bucket: Any) -> None:
    put(bucket, [f"{number}.mp4" for number in range(20)])
    threads = [threading.Thread(target=stage_set, args=(SET, VIDEOS)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lines = (folder_of(SET, VIDEOS) / RECORD).read_text().splitlines()
    assert len(lines) == 21


def test_a_launch_stages_before_its_job(bucket: Any, tmp_path: Path) -> None:
    root = tiny_data(tmp_path, clips=1, images=0, texts=0)
    bucket.put(str(root), "lake/whole", recursive=True)
    from vidqa.jobs.job_spec import load_job_spec
    from vidqa.spec import Layer, dump, resolve

    model = tmp_path / "model"
    model.mkdir()
    keys = {
        "policy.model_name_or_path": str(model),
        "custom.train_dataset.annotation_path": "s3://lake/whole",
        "custom.train_dataset.media_path": "s3://lake/whole",
        "custom.vision.nframes": 4,
        "train.output_dir": str(tmp_path / "out"),
    }
    spec = tmp_path / "spec.toml"
    spec.write_text(dump(resolve("train", [Layer("test", keys)]).spec))
    asked = load_job_spec("train", spec, fetch=True)
    staged = asked.resolved.custom.train_dataset
    assert len(load_records(staged.annotation_path, staged.media_path)) == 2
    assert asked.spec.custom.train_dataset.annotation_path == "s3://lake/whole"
    assert str(asked.reads).count("staged") == 2
    again = load_job_spec("train", spec, fetch=True)
    assert again.inputs_fingerprint == asked.inputs_fingerprint
    assert load_job_spec("train", spec, fetch=False).resolved == asked.resolved, (
        "what a dry run shows, and a launch fetches"
    )


def test_preflight_reads_what_is_staged(bucket: Any, tmp_path: Path) -> None:
    root = tiny_data(tmp_path, clips=1, images=0, texts=0)
    bucket.put(str(root), "lake/whole", recursive=True)
    script = Path(__file__).resolve().parents[2] / "scripts" / "preflight.py"
    (tmp_path / "spec.toml").write_text(
        f"""
        [policy]
        model_name_or_path = "{tmp_path}"
        [custom.train_dataset]
        annotation_path = "s3://lake/whole"
        media_path = "s3://lake/whole"
        [custom.vision]
        nframes = 4
        [train]
        output_dir = "{tmp_path / "out"}"
        """
    )
    words = ["--only", "data", "--spec", str(tmp_path / "spec.toml"), "--json"]
    ran = run_here([sys.executable, str(script), *words], cwd=tmp_path)
    problems = json.loads(ran.stdout)["problems"]
    assert not [p for p in problems if p["code"].startswith(("DATA", "MEDIA", "STORAGE", "VIDEO"))], problems


@pytest.mark.parametrize("annotations", [SET, "s3://lake/set", "s3://lake/set/"])
def test_where_a_set_will_be_is_known_before(bucket: Any, annotations: str) -> None:
    put(bucket, ["a.mp4"])
    before = expected_set(annotations, VIDEOS)
    assert not Path(before[0]).exists() and stage_set(annotations, VIDEOS) == before
    assert expected_set("a.json", "/media") == ("a.json", "/media")


def test_a_dry_run_shows_the_job_as_it_will_be_once_its_data_are_staged(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIDQA_STATE_DIR", str(tmp_path / "state"))
    put(bucket, ["a.mp4"])
    (tmp_path / "model").mkdir()
    spec = tmp_path / "spec.toml"
    keys = {"policy.model_name_or_path": tmp_path / "model", "train.output_dir": tmp_path / "runs"}
    keys |= {"custom.train_dataset.annotation_path": SET, "custom.train_dataset.media_path": VIDEOS}
    spec.write_text("".join(f"{key} = {json.dumps(str(value))}\n" for key, value in keys.items()))

    def shown() -> tuple[dict[str, str], list[str], tuple[str, ...]]:
        made = dry_run("train", spec, "local")
        texts = {name: text.replace(made.job.job_id, "JOB") for name, text in job_results.files_of(made).items()}
        return texts, [problem.code for problem in made.problems], made.job.fetch

    before, told, fetch = shown()
    assert "STORAGE_TO_FETCH" in told and "preflight.py" in fetch[0] and "s3://" not in before["spec.toml"]
    subprocess.run(["bash", "-c", fetch[0]], capture_output=True, timeout=120)  # its other findings are not the point
    after, told, fetch = shown()
    assert (after, fetch) == (before, ()) and "STORAGE_TO_FETCH" not in told
