"""Media inside tar archives."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.archives import make_tar
from vidqa.data import check_records, load_records, media_cache
from vidqa.data.load import load_pairs
from vidqa.data.sources import open_source

CONTENT = {"a.mp4": b"first" * 1000, "deep/b.mp4": b"second"}


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
            assert (medium.path, medium.size) == (str(archive), len(content))
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
    members = ("../evil.mp4", "/tmp/evil.mp4", "ok/../../evil.mp4")
    archive = make_tar(tmp_path / name, dict.fromkeys(members, b"evil"), links={"link.mp4": "/etc/passwd"})
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


def unpacked_files(cache: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in cache.rglob("*") if path.is_file() and "members" in path.parts}


def test_only_what_records_name_is_unpacked_of_a_compressed_tar(tmp_path: Path, cache: Path) -> None:
    archive = make_tar(tmp_path / "videos.tar.gz", {**CONTENT, "bomb.mp4": bytes(64 << 20)})
    records, problems = check_records(annotate(tmp_path, "a.mp4", "none.mp4"), archive)
    assert ([problem.code for problem in problems], len(records)) == (["DATA_MEDIA_MISSING"], 1)
    assert unpacked_files(cache) == {"a.mp4": len(CONTENT["a.mp4"])}
    (pair,), _ = load_pairs(
        open_source(annotate(tmp_path, "deep/b.mp4"), archive)
    )  # another file of records, another reader
    assert Path(pair.record.media[0].path).read_bytes() == CONTENT["deep/b.mp4"]
    assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) < 1 << 16


def test_a_member_that_was_lost_and_an_index_that_was_damaged_are_made_again(tmp_path: Path, cache: Path) -> None:
    archive, path = make_tar(tmp_path / "videos.tar.gz", CONTENT), annotate(tmp_path, "a.mp4", "deep/b.mp4")
    (first, second), (index,) = load_records(path, archive), cache.rglob("index.json")
    stamp = Path(second.media[0].path).stat().st_mtime_ns
    Path(first.media[0].path).write_bytes(b"cut")
    Path(second.media[0].path).unlink()
    for damaged in (index.read_bytes(), b"", b"\0" * 100, b'{"a.mp4": 3}', b"[" * 100_000):
        index.write_bytes(damaged)
        files = [Path(record.media[0].path) for record in load_records(path, archive)]
        assert [file.read_bytes() for file in files] == list(CONTENT.values())
        assert files[1].stat().st_mtime_ns == stamp  # nothing that is known of the file is lost with it


@pytest.fixture
def small_disk(cache: Path) -> Iterator[Path]:
    """The cache on a disk of its own of 4 MiB, of which archives may take half."""
    cache.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(cache)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield cache
    subprocess.run(["umount", "-l", str(cache)], check=False, capture_output=True)


def test_a_named_member_larger_than_half_of_the_free_disk_is_refused(tmp_path: Path, small_disk: Path) -> None:
    archive = make_tar(tmp_path / "videos.tar.gz", {"big.mp4": bytes(3 << 20), "a.mp4": b"small"})
    _, (problem,) = check_records(annotate(tmp_path, "big.mp4", "a.mp4"), archive)
    assert (problem.code, problem.exit_code, problem.where) == ("ENV_DISK_SPACE", 4, str(archive))
    assert "3.1 MB" in problem.message and "2.1 MB" in problem.message and "VIDQA_CACHE_DIR" in problem.remedy
    assert unpacked_files(small_disk) == {}
    assert len(load_records(annotate(tmp_path, "a.mp4"), archive)) == 1


LOAD = "import sys; from vidqa.data import load_records; load_records(*sys.argv[1:]); print('loaded'); input()"


def test_archives_that_nobody_uses_any_more_make_room_for_others(tmp_path: Path, small_disk: Path) -> None:
    noise = random.Random(0).randbytes(900_000)
    paths = []
    for name in ("one", "two", "three"):
        folder = tmp_path / name
        folder.mkdir()
        make_tar(folder / "videos.tar.gz", {f"{name}.mp4": noise})
        paths.append((str(annotate(folder, f"{name}.mp4")), str(folder / "videos.tar.gz")))

    def reader(at: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", LOAD, *paths[at]]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "loaded\n"
        return process

    first = reader(0)
    first.communicate("\n")
    second = reader(1)
    third = check_records(*paths[2])
    assert third[1] == [] and set(unpacked_files(small_disk)) == {"two.mp4", "three.mp4"}  # the first one had to go
    again = check_records(*paths[0])
    assert [problem.code for problem in again[1]] == ["ENV_DISK_SPACE"]  # both others are in use
    second.communicate("\n")
    assert check_records(*paths[0])[1] == [] and set(unpacked_files(small_disk)) == {"one.mp4", "three.mp4"}


SAID = {
    "a long name": "a name of 268435456 bytes",
    "names within names": "Recursion",
    "many members": "than 100 members",
}


@pytest.mark.parametrize("name", ["videos.tar", "videos.tar.gz"])
@pytest.mark.parametrize("attack", SAID)
def test_archives_that_fill_memory_are_refused(
    tmp_path: Path, name: str, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 0
    count = {"a long name": 1, "names within names": 2000, "many members": 101}[attack]
    if attack == "a long name":
        header.size = 256 << 20
    elif attack == "many members":
        header.type = tarfile.REGTYPE
        monkeypatch.setattr(media_cache, "MAX_MEMBERS", 100)
    pack = zlib.compressobj(9, wbits=31)
    with (tmp_path / name).open("wb") as file:
        for _ in range(count):
            piece = header.tobuf(tarfile.PAX_FORMAT)
            file.write(piece if name.endswith(".tar") else pack.compress(piece))
        if name.endswith(".tar"):
            file.truncate(file.tell() + header.size + 10240)
        else:
            for _ in range(header.size // (1 << 20)):
                file.write(pack.compress(bytes(1 << 20)))
            file.write(pack.compress(bytes(10240)) + pack.flush())
    _, (problem,) = check_records(annotate(tmp_path, "a.mp4"), tmp_path / name)
    assert problem.code == "DATA_TAR_BROKEN" and SAID[attack] in problem.message


@pytest.mark.parametrize("named", ["a.mp4", "bomb.mp4"])
def test_a_compressed_archive_that_is_mostly_nothing_is_refused_before_it_is_expanded(
    tmp_path: Path, cache: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_cache, "ALWAYS_ALLOWED_BYTES", 1 << 20)
    archive = make_tar(tmp_path / "videos.tar.gz", {"a.mp4": b"clip", "bomb.mp4": bytes(16 << 20)})
    _, (problem,) = check_records(annotate(tmp_path, named), archive)
    assert problem.code == "DATA_TAR_BROKEN" and "expand to more than" in problem.message
    assert unpacked_files(cache) == {}
