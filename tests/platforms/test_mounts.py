"""What a container has to see: everything a spec names, links followed, nothing twice, nothing over the program."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.platforms.specs import write_spec_in
from vidqa.jobs.job_spec import load_job_spec
from vidqa.jobs.launch import job_of
from vidqa.jobs.platforms import platform
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.docker import DockerSite, container_body
from vidqa.jobs.platforms.mounts import Mount, media_folders, mounts, shadowed_image_paths
from vidqa.jobs.platforms.slurm_script import SlurmSite
from vidqa.jobs.resources import Resources


def job(folder: Path, reads: list[Path], writes: list[Path]) -> Job:
    run = folder / "out/run"
    run.mkdir(parents=True)
    return Job("j", "train", run, 1, 0, image="i", reads=tuple(reads), writes=tuple(writes))


def test_the_outermost_folder_holds_the_others(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    (data / "videos").mkdir(parents=True)
    (data / "annotations.json").touch()
    found = mounts(job(tmp_path, [data / "annotations.json", data / "videos", data, out / "model"], [out]))
    assert found == [Mount(data, True), Mount(out, False)]  # what lies in a writable folder is seen there


def test_a_writable_folder_inside_data_that_is_only_read(tmp_path: Path) -> None:
    found = mounts(job(tmp_path, [tmp_path], [tmp_path / "out"]))
    assert found == [Mount(tmp_path, True), Mount(tmp_path / "out", False)]


def test_links_of_a_snapshot_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models/snapshots/abc", tmp_path / "models/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "1234").touch()
    (snapshot / "config.json").symlink_to("../../blobs/1234")
    linked = tmp_path / "linked"
    linked.symlink_to(snapshot)
    found = {mount.path for mount in mounts(job(tmp_path, [linked], []))}
    assert found == {linked, snapshot, blobs, tmp_path / "out/run"}


def test_media_that_no_folder_of_the_spec_holds(tmp_path: Path) -> None:
    data, far, real = tmp_path / "data", tmp_path / "far", tmp_path / "real"
    for folder in (data, far, real):
        folder.mkdir()
    (real / "c.mp4").touch()
    (data / "c.mp4").symlink_to(real / "c.mp4")
    named = [str(data / "a.mp4"), str(far / "b.mp4"), str(data / "c.mp4")]
    assert media_folders(named, [data]) == [far, real]


def test_a_container_sees_media_wherever_the_annotations_name_them(
    tmp_path: Path,
) -> None:
    spec, far = write_spec_in(tmp_path, "complete"), tmp_path / "far"
    far.mkdir()
    turns = [{"from": "human", "value": "<video>Is it?"}, {"from": "gpt", "value": "yes"}]
    (far / "a.mp4").touch()
    data = tmp_path / "set"
    data.mkdir()
    (data / "b.mp4").touch()
    with tarfile.open(data / "videos.tar.gz", "w:gz") as packed:
        packed.add(data / "b.mp4", "packed.mp4")
    names = (str(far / "a.mp4"), "b.mp4", "packed.mp4")
    rows = [{"id": name, "video": name, "conversations": turns} for name in names]
    (data / "annotations.json").write_text(json.dumps(rows))
    spec.write_text(
        spec.read_text()
        .replace(f'"{tmp_path / "annotations.json"}"', f'"{data / "annotations.json"}"')
        .replace(f'media_path = "{tmp_path}"', f'media_path = "{data}"')
    )
    asked = load_job_spec("train", spec, fetch=False)
    assert asked.media_elsewhere() == [far]  # what was unpacked is in the cache, which the job writes
    settings = SlurmSite(backend="apptainer")
    made = job_of(asked, platform("slurm"), settings, Resources(image="i.sif"), tmp_path / "runs/j", "j")
    assert far in made.reads
    assert far not in job_of(asked, platform("local"), None, Resources(), tmp_path / "runs/j", "j").reads


@pytest.mark.parametrize(
    ("path", "hides"),
    [("/", True), ("/opt", True), ("/opt/vidqa/project", True), ("/opt/data", False), ("/usr/share/x", True)],
)
def test_what_would_cover_the_program(path: str, hides: bool) -> None:
    found = shadowed_image_paths([Mount(Path(path), True)], ("/opt/vidqa", "/usr"))
    assert found == ([Path(path)] if hides else [])


def test_gpus_are_those_that_the_launcher_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Job("j", "train", tmp_path, 2, 4, image="i", settings=DockerSite())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    (given,) = container_body(asked, ("x",), {})["HostConfig"]["DeviceRequests"]
    assert given["DeviceIDs"] == ["5", "6"] and "Count" not in given
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (given,) = container_body(asked, ("x",), {})["HostConfig"]["DeviceRequests"]
    assert given["Count"] == 2
