"""What a split keeps on one side: clips that look alike, stems, recordings; and each part holds its own clips alone."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.clips import write_clip, write_image
from tests.programs import run_here
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.datatools import split as linking
from vidqa.datatools.split import Split, split_dataset
from vidqa.video.pool import DecodePool


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDQA_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five scenes, each filmed once and encoded again: another codec, container and size."""
    folder = tmp_path_factory.mktemp("clips")
    for number in range(5):
        first = 8000 * number + 321
        write_clip(folder / f"v/{number}.mp4", frames=12, width=128, height=96, first_number=first)
        write_clip(folder / f"v/copy-of-{number}.avi", frames=12, codec="mpeg4", first_number=first)
    write_image(folder / "v/odd.png", number=0b1010011010010110)
    return folder


def dataset(folder: Path, names: list[str], **fields: list[str]) -> Path:
    turns = [{"from": "human", "value": "Is it open?"}, {"from": "gpt", "value": "Yes"}]
    rows = [
        {
            "id": f"r{at}",
            "image" if name.endswith("png") else "video": name,
            "conversations": turns,
            **{key: values[at] for key, values in fields.items()},
        }
        for at, name in enumerate(names)
    ]
    (folder / "annotations.json").write_text(json.dumps(rows))
    return folder


def sides(out: Path) -> list[set[str]]:
    return [{record.media[0].written for record in load_records(out / part)} for part in ("train", "val")]


def split(root: Path, out: Path, share: float = 0.4, seed: int = 0, **more: object) -> Split:
    return split_dataset(root, "", out, share, seed, "kind", **more)  # type: ignore[arg-type]


@pytest.fixture
def scenes(clips: Path, tmp_path: Path) -> Path:
    root = shutil.copytree(clips, tmp_path / "data")
    names = [f"v/{n}.mp4" for n in range(5)] + [f"v/copy-of-{n}.avi" for n in range(5)] + ["v/odd.png"]
    return dataset(root, names)


def test_clips_that_look_alike_stay_together(scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = 0
    for seed in range(6):
        made = split(scenes, tmp_path / f"out{seed}", seed=seed)
        train, val = sides(tmp_path / f"out{seed}")
        for number in range(5):
            pair = {f"v/{number}.mp4", f"v/copy-of-{number}.avi"}
            assert pair <= train or pair <= val
        split(scenes, tmp_path / f"apart{seed}", seed=seed, skip_near_duplicates=True)
        apart = sides(tmp_path / f"apart{seed}")[0]
        torn += sum((f"v/{n}.mp4" in apart) != (f"v/copy-of-{n}.avi" in apart) for n in range(5))
        monkeypatch.setattr(DecodePool, "submit", None)  # the next one decodes nothing again
    assert torn > 0  # without looking, some are on both sides
    assert made.facts["together"]["look_alike"] == {"groups": 5, "members": 10, "pairs": 5}
    said = json.loads((tmp_path / "out0/together.json").read_text())
    assert sorted(map(sorted, said["look_alike"])) == sorted(
        sorted([f"v/{n}.mp4", f"v/copy-of-{n}.avi"]) for n in range(5)
    )


def test_each_part_holds_its_own_clips_and_no_others(scenes: Path, tmp_path: Path) -> None:
    made = split(scenes, tmp_path / "out")
    assert made.is_rooted
    held = [{str(p.relative_to(tmp_path / "out" / part)) for p in (tmp_path / "out" / part).rglob("*") if p.is_file()}
            for part in ("train", "val")]  # fmt: skip
    assert [names - {"annotations.json"} for names in held] == sides(tmp_path / "out")
    for path in (tmp_path / "out").rglob("*.mp4"):
        assert not path.is_symlink() and os.path.samefile(path, scenes / "v" / path.name)
    assert not split(scenes, tmp_path / "out").written
    lost = next((tmp_path / "out/val").rglob("*.mp4"))
    lost.unlink()  # as an interruption leaves it
    split(scenes, tmp_path / "out")
    assert lost.is_file()
    (tmp_path / "out/val/v/other.mp4").write_bytes(b"of somebody else")
    with pytest.raises(ProblemError, match="OUTPUT_EXISTS"):
        split(scenes, tmp_path / "out")


def test_where_links_are_refused_the_parts_are_used_with_the_media_path(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(linking.os, "link", refuse)
    made = split(scenes, tmp_path / "out")
    assert not made.is_rooted and [p.code for p in made.warnings] == ["DATATOOLS_SPLIT"]
    assert len(load_records(tmp_path / "out/val/annotations.json", made.media_path)) > 0


def test_stems_stay_together(clips: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    names = ["a/door.mp4", "b/Door.avi", "a/1.mp4", "b/1.mp4", "c/7.mp4", "c/7.avi", "d/x.mp4"]
    names += [f"many{n}/video.mp4" for n in range(9)]
    for at, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(f"no video {at}".encode())
    made = split(dataset(root, names), tmp_path / "out")
    said = json.loads((tmp_path / "out/together.json").read_text())
    assert sorted(map(sorted, said["same_stem"])) == [["a/door.mp4", "b/Door.avi"], ["c/7.avi", "c/7.mp4"]]
    assert made.facts["together"]["not_seen"] == len(names)
    assert any("cannot be decoded" in line for line in made.groups.text())


@pytest.mark.parametrize("by", ["camera", r"([a-z]+)_\d+"])
def test_recordings_stay_together(tmp_path: Path, by: str) -> None:
    root = tmp_path / "data"
    names = [f"v/{camera}_{n}.mp4" for camera in ("yard", "hall", "roof") for n in range(4)]
    (root / "v").mkdir(parents=True)
    for name in names:
        (root / name).write_bytes(name.encode())
    (root / "v/lone.mp4").write_bytes(b"lone")
    cameras = [name[2:6] for name in names]
    dataset(root, [*names, "v/lone.mp4"], camera=[*cameras, ""])
    for seed in range(4):
        made = split(root, tmp_path / f"out{seed}", 0.3, seed, group_by=by)
        train, val = ({name[2:6] for name in side} for side in sides(tmp_path / f"out{seed}"))
        assert not train & val and val
    together = made.facts["together"]
    assert together["group"] == {"groups": 3, "members": 12} and together["without_group"] == 1
    lists = json.loads((tmp_path / "out0/together.json").read_text())["group"]
    assert {len(ids) for ids in lists.values()} == {4} and len(lists) == 3
    assert not made.warnings
    for wrong in ("place", "(unclosed"):
        with pytest.raises(ProblemError, match="--group-by"):
            split(root, tmp_path / "no", group_by=wrong)


def test_clips_of_one_recording_on_both_sides_are_said_with_the_pattern_that_helps(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "v").mkdir(parents=True)
    names = [f"v/2024-01-0{day}_{n:03}.mp4" for day in range(1, 4) for n in range(4)] + ["v/7.mp4"]
    for name in names:
        (root / name).write_bytes(name.encode())
    made = split(dataset(root, names), tmp_path / "out", 0.5)
    (warning,) = [each for each in made.warnings if each.code == "DATATOOLS_SPLIT"]
    assert warning.severity == "warning" and "of 3 groups" in warning.message and "v/2024-01-0" in warning.message
    pattern = warning.remedy.split("'")[1]
    again = split(root, tmp_path / "again", 0.5, group_by=pattern)
    train, val = ({name[:13] for name in side} for side in sides(tmp_path / "again"))
    assert not train & val and not again.warnings
    single = tmp_path / "single"
    (single / "v").mkdir(parents=True)
    for n in range(6):
        (single / f"v/clip_{n}.mp4").write_bytes(b"%d" % n)
    assert not split(dataset(single, [f"v/clip_{n}.mp4" for n in range(6)]), tmp_path / "one", 0.5).warnings


def test_the_script_says_what_it_kept_together(scenes: Path, tmp_path: Path) -> None:
    script = [sys.executable, str(SKILL_ROOT / "scripts/split_dataset.py"), "--annotations", str(scenes)]
    done = run_here([*script, "--out", "out", "--share", "0.4"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "10 files that look alike, in 5 groups, 5 pairs" in done.stdout and "out/together.json" in done.stdout
    one = dataset(scenes, ["v/1.mp4", "v/copy-of-1.avi"])
    words = ["--out", "two", "--share", "0.5", "--json"]
    refused = run_here([*script[:-1], str(one), *words], cwd=tmp_path)
    (problem,) = json.loads(refused.stdout)["problems"]
    assert problem["code"] == "DATA_SPLIT" and "--skip-near-duplicates" in problem["remedy"]
    again = run_here([*script, *words, "--skip-near-duplicates"], cwd=tmp_path)
    assert again.returncode == 0
