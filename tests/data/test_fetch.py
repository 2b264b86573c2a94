"""Published data sets in a folder: verified, gone on with, unpacked; from a real local HTTP server."""

from __future__ import annotations

import json
import os
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from clips import write_clip, write_image

from tests.data.archives import make_tar
from tests.hub_server import Hub, serving
from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.data.archive import unpack_beside
from vidqa.data.storage import hub, hub_dataset
from vidqa.data.storage import published_sets as fetching
from vidqa.data.storage.published_sets import Published, fetch, published_set, write_annotations

SET = Published("org/set", ("av", "robovqa"))


def pairs(name: str) -> list[dict[str, object]]:
    pair = {"question": "Which?", "index2ans": {"A": "left", "B": "right"}, "answer": "B"}
    return [{"video": f"clips/{name}.mp4", "qa_pairs": pair}]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """As the benchmark's repository is: questions as JSON, clips as an archive."""
    folder = tmp_path / "served"
    for subset in ("av", "robovqa"):
        (folder / subset).mkdir(parents=True)
        write_clip(tmp_path / f"{subset}.mp4", frames=4, first_number=len(subset))
        with tarfile.open(folder / subset / "clips.tar.gz", "w:gz") as tar:
            tar.add(tmp_path / f"{subset}.mp4", f"clips/{subset}.mp4")
        (folder / f"{subset}/{subset}_benchmark_qa_pairs.json").write_text(json.dumps(pairs(subset)))
    (folder / "README.md").write_text("# A set\n")
    monkeypatch.setattr(hub, "PAUSES_S", (0.01,))
    monkeypatch.setattr(hub, "TIMEOUT_S", 1.0)
    with serving(folder, "dataset", "org/set") as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        yield found


def codes(folder: Path, subsets: list[str], wanted: Published = SET) -> set[str]:
    with pytest.raises(ProblemError) as refused:
        fetch(wanted, subsets, folder)
    return {problem.code for problem in refused.value.problems}


def test_a_subset_is_fetched_unpacked_and_can_be_read(server: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = fetch(SET, ["robovqa"], out)
    assert (found.files, found.new, found.unpacked) == (3, 3, 1) and not (out / "av").exists()
    (record,) = load_records(f"{out}#robovqa:")
    assert record.answer == "B" and record.media[0].path == str(out / "robovqa/clips/robovqa.mp4")
    server.requests.clear()
    assert fetch(SET, ["robovqa"], out).new == 0 and not [each for each in server.requests if "/resolve/" in each]
    (out / "robovqa/robovqa_benchmark_qa_pairs.json").write_text("[]")  # somebody changed it
    assert fetch(SET, ["robovqa"], out).new == 1 and len(load_records(f"{out}#robovqa:")) == 1
    assert fetch(published_set("org/set"), [], out).files == 5  # any set of the hub, whole


def test_a_cut_off_file_is_gone_on_with_and_a_damaged_one_is_removed(server: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    server.cut_after = 100
    found = fetch(SET, ["av"], out)  # the client asks for the rest
    assert found.new == 3 and load_records(f"{out}#av:")
    server.damaged = True
    assert codes(tmp_path / "other", ["av"]) == {"STORAGE_UNREACHABLE"}
    assert not [path for path in (tmp_path / "other").rglob("*.gz")]
    server.damaged = False
    assert fetch(SET, ["av"], tmp_path / "other").unpacked == 1


def test_what_cannot_be_had_is_said_before_anything_is_written(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert codes(out, ["agibot"]) == codes(out, []) == {"USAGE"}
    assert codes(out, ["av"], Published("org/none")) <= {"STORAGE_NOT_FOUND", "STORAGE_DENIED"}
    server.gated_to = "hf_of_another"
    assert codes(out, ["av"]) == {"STORAGE_DENIED"}
    server.gated_to = None
    monkeypatch.setattr(hub_dataset, "SPARE", 1 << 60)
    assert codes(out, ["av"]) == {"ENV_DISK_SPACE"}
    assert not out.exists()
    with pytest.raises(ProblemError, match="organisation/name") as unknown:
        published_set("nothing")
    assert "name one of nexar, cosmos-reason1-sft" in unknown.value.problems[0].remedy
    with pytest.raises(ProblemError) as none:
        fetch(Published("org/none"), [], out)
    assert "hf_model" not in none.value.problems[0].remedy


def listed(path: object, size: object = 7, **others: object) -> dict[str, object]:
    return {"type": "file", "path": path, "size": size, "oid": "0" * 40, **others}


@pytest.mark.parametrize("prefix", ["", "/", "..", "av/.."])
def test_a_name_that_leads_out_of_the_folder_removes_nothing(server: Hub, tmp_path: Path, prefix: str) -> None:
    """The user's own file has another size than the one that the hub lists under its name."""
    own = tmp_path / "precious.txt"
    own.write_text("years of work")
    name = f"{prefix}/precious.txt" if prefix.endswith("..") else f"{prefix}{own}"
    server.listed = [listed(name)]
    assert codes(tmp_path / "out", ["av"]) == {"HUB_ANSWER"} and own.read_text() == "years of work"
    with pytest.raises(ProblemError, match="HUB_ANSWER"):
        hub_dataset.stage_dataset("hf_dataset://org/set")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "entries",
    [
        [listed("av/./b")],
        [listed("av//b")],
        [listed("")],
        [listed("av/")],
        [listed("C:b")],
        [listed("a\0b")],
        [listed("a\ud800b")],
        [listed("a" * 300)],
        [listed(5)],
        [listed(None)],
        [listed("a", "7")],
        [listed("a", -7)],
        [listed("a", 7.5)],
        [listed("a", True)],
        [listed("a"), listed("a")],
        [listed("a"), listed("a/b")],
        [listed("a", lfs={})],
        [listed("a", lfs=5)],
        [listed("a", lfs={"oid": 5, "size": 7, "pointerSize": 9})],
        [listed("a", oid=5)],
        [{"type": "file"}],
        [{}],
        ["a"],
        [None],
    ],
    ids=repr,
)
def test_a_listing_that_no_hub_writes_is_refused(server: Hub, tmp_path: Path, entries: list[object]) -> None:
    server.listed = entries
    assert codes(tmp_path / "out", ["av"]) == {"HUB_ANSWER"} and not (tmp_path / "out").exists()


@pytest.mark.parametrize("commit", ["../../../out", "/tmp", "", None, 5, "a\0"], ids=repr)
def test_a_commit_that_is_none_is_refused(server: Hub, commit: object) -> None:
    server.commit = commit
    for name, kind in (("hf_dataset://org/set", "dataset"), ("hf_model://org/set", "model")):
        server.kind = kind
        with pytest.raises(ProblemError, match="HUB_ANSWER"):
            hub.ask(name, token=None)


def test_a_file_of_the_users_stays(server: Hub, tmp_path: Path) -> None:
    """The folder need not be ours alone, and a link in it may lead anywhere."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    (out / "README.md").write_text("my own notes")
    assert codes(out, ["av"]) == {"OUTPUT_EXISTS"} and (out / "README.md").read_text() == "my own notes"
    assert sorted(path.name for path in out.iterdir()) == ["README.md"]
    (out / "README.md").unlink()
    fetch(SET, ["av"], out)
    (out / "av").rename(elsewhere)
    (out / "av").symlink_to(elsewhere)
    (elsewhere / "av_benchmark_qa_pairs.json").write_text("my own answers")
    assert codes(out, ["av"]) == {"REMOVAL_OUTSIDE"}
    assert (elsewhere / "av_benchmark_qa_pairs.json").read_text() == "my own answers"


def test_a_set_without_any_of_its_files_is_refused(server: Hub, tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="STORAGE_NOT_FOUND"):
        fetch(Published("org/set", (), ("no_such.json",)), [], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def coco(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "web").mkdir()
    write_image(tmp_path / "one.jpg", number=3, width=64, height=64)
    with zipfile.ZipFile(tmp_path / "web/train2017.zip", "w") as packed:
        packed.write(tmp_path / "one.jpg", "train2017/one.jpg")

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *given: object) -> None:
            super().__init__(*given, directory=str(tmp_path / "web"))  # type: ignore[arg-type]

        def log_message(self, *ignored: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_address[1]}/train2017.zip"
        found.shutdown()


def test_llava_questions_come_with_the_images_of_coco(server: Hub, coco: str, tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "bits"}]
    (server.folder / "detail_23k.json").write_text(json.dumps([{"id": 1, "image": "one.jpg", "conversations": turns}]))
    wanted = Published("org/set", (), ("detail_23k.json",), ((coco, "images"),))
    out = tmp_path / "out"
    (out / "images").mkdir(parents=True)
    archive = out / "images/train2017.zip"
    part = archive.with_name("train2017.zip.part")
    part.write_bytes(b"x")  # of an earlier try; this server knows no ranges
    found = fetch(wanted, [], out)
    assert (found.files, found.unpacked) == (1, 1)
    whole = archive.read_bytes()
    for arrived in (whole, whole + b"of another archive"):  # a try that was killed at its end, and another file
        archive.unlink()
        part.write_bytes(arrived)
        assert fetch(wanted, [], out).files == 1 and archive.read_bytes() == whole and not part.exists()
    assert load_records(out / "detail_23k.json", out / "images/train2017")[0].answer == "bits"
    assert fetching.PUBLISHED["llava-detail-23k"].web[0][1] == "images"


def test_questions_about_the_weather_are_made_of_nexars_tables(tmp_path: Path) -> None:
    folder = tmp_path / "train/positive"
    folder.mkdir(parents=True)
    write_clip(folder / "1.mp4", frames=4)
    (folder / "metadata.csv").write_text("file_name,weather,scene\n1.mp4,Rain,City\n2.mp4,Snow,City\n1.mp4,,City\n")
    (tmp_path / "train/negative").mkdir()
    write_clip(tmp_path / "train/negative/3.mp4", frames=4)
    (tmp_path / "train/negative/metadata.csv").write_text("file_name,weather,scene\n3.mp4,,Rural\n")
    path, count, warnings = write_annotations(tmp_path)
    (record,) = load_records(path)
    assert record.answer == "Rain" and record.question.startswith("What is the weather") and record.kind == "weather"
    assert count == 1 and [(each.code, each.message, each.severity) for each in warnings] == [
        ("DATA_LEFT_OUT", "2 of 4 rows have no weather", "warning"),
        ("DATA_LEFT_OUT", "1 of 4 rows name a missing file", "warning"),
    ]


def test_another_column_or_the_collision_of_nexars_videos_is_asked_about(tmp_path: Path) -> None:
    for number, part in enumerate(("positive", "negative")):
        (tmp_path / "train" / part).mkdir(parents=True)
        write_clip(tmp_path / f"train/{part}/{number}.mp4", frames=4)
        (tmp_path / f"train/{part}/metadata.csv").write_text(f"file_name,weather,scene\n{number}.mp4,Rain,City\n")
    path = write_annotations(tmp_path, "collision").path
    assert {record.media[0].written: record.answer for record in load_records(path)} == {
        "train/positive/0.mp4": "Yes",
        "train/negative/1.mp4": "No",
    }
    write_annotations(tmp_path, "scene", "Where is it?")
    assert {(record.question, record.answer, record.kind) for record in load_records(f"{tmp_path}#train[:1]")} == {
        ("Where is it?", "City", "scene")
    }
    for column, question in (("scene", ""), ("season", "Which season is it?")):
        with pytest.raises(ProblemError, match="DATA_FIELD"):
            write_annotations(tmp_path, column, question)


def test_members_that_lead_out_of_the_folder_are_left_out(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path)
    members = dict.fromkeys(("../out.txt", "/out.txt", "good/a.txt"), b"x")
    make_tar(inside / "a.tar", members, links={"good/link": "/etc/passwd"})
    assert unpack_beside(inside / "a.tar") == 1 and unpack_beside(inside / "a.tar") == 0
    with zipfile.ZipFile(inside / "b.zip", "w") as packed:
        packed.writestr("../out.txt", "x")
        odd = zipfile.ZipInfo("good/link")
        odd.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(odd, "/etc/passwd")
        packed.writestr("good/b.txt", "x")
    assert unpack_beside(inside / "b.zip") == 1 and not (tmp_path / "out.txt").exists()
    assert sorted(path.name for path in (inside / "good").iterdir()) == ["a.txt", "b.txt"]
    make_tar(inside / "c.tar", {"link/through.txt": b"x"})
    for broken in ("c.tar", "d.zip"):
        (inside / "d.zip").write_bytes(b"no zip")
        with pytest.raises(ProblemError, match="DATA_TAR_BROKEN"):
            unpack_beside(inside / broken)
    assert not (tmp_path / "through.txt").exists()


def test_members_of_an_archive_that_has_changed_are_written_again(tmp_path: Path) -> None:
    archive, found = tmp_path / "a.tar", []
    for content in (b"x", b"y"):
        make_tar(archive, {"a.txt": content})
        if found:  # as if a while had passed
            later = (tmp_path / "a.txt").stat().st_mtime_ns + 1
            os.utime(archive, ns=(later, later))
        found.append((unpack_beside(archive), (tmp_path / "a.txt").read_bytes()))
    assert found == [(1, b"x"), (1, b"y")]
