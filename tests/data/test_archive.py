"""Media inside tar archives."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import pytest

from vidqa.data import check_records, load_records, media_exists

CONTENT = {"a.mp4": b"first" * 1000, "deep/b.mp4": b"second"}


def make_tar(path: Path, members: dict[str, bytes], prefix: str = "") -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def annotate(folder: Path, *names: str) -> Path:
    said = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So"}]
    path = folder / "annotations.json"
    path.write_text(json.dumps([{"video": name, "conversations": said} for name in names]))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIDQA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("prefix", ["", "./", "videos/", "clips/2024/"])
def test_members_of_a_tar_are_named_as_they_are_inside(tmp_path: Path, prefix: str) -> None:
    archive = make_tar(tmp_path / "videos.tar", CONTENT, prefix)
    inside = prefix.removeprefix("./").removeprefix("clips/")
    records = load_records(annotate(tmp_path, f"{inside}a.mp4", f"{inside}deep/b.mp4"), archive)
    with tarfile.open(archive) as tar:
        for record, content in zip(records, CONTENT.values(), strict=True):
            (medium,) = record.media
            assert (medium.path, medium.size, media_exists(medium)) == (str(archive), len(content), True)
            member = tar.extractfile(str(medium.member))
            assert member is not None
            assert member.read() == content


def test_the_top_folder_may_be_written_or_not(tmp_path: Path) -> None:
    flat = make_tar(tmp_path / "videos.tar", CONTENT)
    assert load_records(annotate(tmp_path, "videos/a.mp4", "a.mp4"), flat)[0].media[0].member == "a.mp4"
    nested = make_tar(tmp_path / "other.tar", CONTENT, "clips/")
    assert load_records(annotate(tmp_path, "a.mp4", "clips/a.mp4"), nested)[0].media[0].member == "clips/a.mp4"


def test_a_compressed_tar_is_unpacked_once(tmp_path: Path, cache: Path) -> None:
    archive = make_tar(tmp_path / "videos.tar.gz", CONTENT, "videos/")
    path = annotate(tmp_path, "a.mp4", "videos/deep/b.mp4")
    first = load_records(path, archive)
    files = [Path(record.media[0].path) for record in first]
    assert [file.read_bytes() for file in files] == list(CONTENT.values())
    assert all(file.is_relative_to(cache) for file in files)
    stamp = files[0].stat().st_mtime_ns
    archive.touch()  # a copy with another time has the same content
    assert load_records(path, archive) == first
    assert files[0].stat().st_mtime_ns == stamp
    make_tar(archive, {**CONTENT, "a.mp4": b"changed"}, "videos/")
    assert Path(load_records(path, archive)[0].media[0].path).read_bytes() == b"changed"


def test_a_dataset_folder_may_hold_its_media_as_archives(tmp_path: Path) -> None:
    make_tar(tmp_path / "videos.tar.gz", CONTENT)
    annotate(tmp_path, "a.mp4", "videos/deep/b.mp4")
    assert [Path(record.media[0].path).read_bytes() for record in load_records(tmp_path)] == list(CONTENT.values())


@pytest.mark.parametrize("name", ["videos.tar", "videos.tar.gz"])
def test_members_that_would_escape_are_never_written_nor_found(tmp_path: Path, name: str, cache: Path) -> None:
    archive = tmp_path / name
    with tarfile.open(archive, "w:gz" if name.endswith("gz") else "w") as tar:
        for member in ("../evil.mp4", "/tmp/evil.mp4", "ok/../../evil.mp4"):
            entry = tarfile.TarInfo(member)
            entry.size = 4
            tar.addfile(entry, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("link.mp4")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    records, problems = check_records(annotate(tmp_path, "evil.mp4", "link.mp4", "../evil.mp4"), archive)
    assert records == []
    assert [problem.code for problem in problems] == ["DATA_MEDIA_MISSING"] * 2 + ["DATA_MEDIA_OUTSIDE_ROOT"]
    assert list(tmp_path.rglob("evil.mp4")) == []
    assert list(cache.rglob("link.mp4")) == []


@pytest.mark.parametrize("name", ["videos.tar", "videos.tar.gz"])
@pytest.mark.parametrize("keep", [0, 100, 3000])
def test_broken_archives(tmp_path: Path, name: str, keep: int, cache: Path) -> None:
    noise = random.Random(0).randbytes(20_000)
    archive = make_tar(tmp_path / name, {"a.mp4": noise})
    archive.write_bytes(archive.read_bytes()[:keep])
    _, problems = check_records(annotate(tmp_path, "a.mp4"), archive)
    assert [problem.code for problem in problems] == ["DATA_TAR_BROKEN"]
    assert list(cache.rglob("*.mp4")) == []
