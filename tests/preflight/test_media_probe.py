"""media_probe.parquet: one row for each file and plan, reused while the file is the same, kept across interruptions."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from clips import decode_frames

from tests.clips import draw, write_clip
from tests.preflight.corpus import Case
from vidqa.data import near_duplicates
from vidqa.data.near_duplicates import near_duplicate_pairs
from vidqa.preflight import media_checks, media_probe
from vidqa.video.pool import DecodePool
from vidqa.video.probe import probe


@pytest.fixture
def case(tmp_path: Path, clips: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Case(tmp_path, clips, tiny_model, monkeypatch)


def test_rows_say_what_is_in_the_files(case: Case) -> None:
    (case.media / "3.mp4").write_bytes(b"no video")
    shutil.copy(write_clip(case.folder / "turned.mp4", width=96, height=64, rotation=90), case.media / "2.mp4")
    facts = case.report("media").facts
    assert facts["media_decoded"] == 5 and facts["media_reused"] == 0 and facts["media_files"] == 6
    table = pandas.read_parquet(facts["media_probe"]).set_index("path")
    assert Path(facts["media_probe"]).parent == case.folder
    row, meta = table.loc[str(case.media / "2.mp4")], probe(case.media / "2.mp4")
    assert (row.fps, row.frames, row.width, row.height) == (meta.source_fps, meta.frame_count, 96, 64)
    assert row.rotation == meta.rotation == 90 and row.duration_s == pytest.approx(meta.duration_s)
    assert row.frames_decoded == 4 and 0 < row.decode_s < 60 and row.code == "" and len(row.content_key) == 32


def test_an_unchanged_file_is_not_decoded_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.report("media")
    with monkeypatch.context() as patch:
        patch.setattr(DecodePool, "submit", None)
        again = case.report("media")
    assert again.facts["media_reused"] == again.facts["media_decoded"] == 6
    shutil.copy(write_clip(case.folder / "new.mp4", frames=20, fps=8, first_number=500), case.media / "0.mp4")
    changed = case.report("media")
    assert changed.facts["media_reused"] == 0  # the case's own folder: other paths
    write_clip(case.media / "1.mp4", frames=21, fps=8, first_number=700)
    assert case.report("media").facts["media_reused"] == 5
    case.spec["custom.vision.nframes"] = 6  # other frames of the same files
    assert case.report("media").facts["media_reused"] == 0


def test_a_broken_file_stays_known_and_a_slow_one_is_tried_again(case: Case) -> None:
    whole = bytearray(write_clip(case.media / "1.mp4", frames=48, fps=8, width=320, height=240).read_bytes())
    middle = (whole.index(b"mdat") + whole.rindex(b"moov")) // 2
    whole[middle : whole.rindex(b"moov") - 4] = bytes(whole.rindex(b"moov") - 4 - middle)
    (case.media / "1.mp4").write_bytes(whole)
    first, second = case.report("media"), case.report("media")
    assert second.facts["media_reused"] == 6
    assert [str(p) for p in first.problems] == [str(p) for p in second.problems] and first.problems
    case.media.joinpath("1.mp4").unlink()
    shutil.copy(case.shared_media / "1.mp4", case.media / "1.mp4")
    case.spec["engine.decode_timeout_s"] = 1e-4
    assert {p.code for p in case.report("media").problems} == {"VIDEO_DECODE_TIMEOUT"}
    case.spec["engine.decode_timeout_s"] = 60
    assert case.report("media").problems == []


def test_a_file_whose_decoder_was_killed_is_no_broken_file(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills what needs too much memory: bad luck, which is neither remembered nor taken for a bad sample."""
    case.spec["engine.on_bad_sample"] = "quarantine"
    write_clip(case.media / "1.mp4", frames=20, fps=8, first_number=200)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "video"))
    with monkeypatch.context() as patch:
        patch.setattr(media_checks, "THUMBNAILS", "slow_transform:thumbnails")
        (killed,) = case.report("media").problems
    assert (killed.code, killed.severity) == ("MEDIA_DECODER_KILLED", "error") and "1.mp4" in killed.where
    again = case.report("media")
    assert again.problems == [] and again.facts["media_reused"] == 5


def test_an_interrupted_preflight_keeps_what_it_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = media_checks._decode

    def interrupted(requests: list, timeout_s: float):
        for at, row in enumerate(decode(requests, timeout_s)):
            if at == 3:
                raise KeyboardInterrupt
            yield row

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(media_checks, "_decode", interrupted)
        case.report("media")
    assert case.report("media").facts["media_reused"] == 3


def test_a_damaged_file_of_rows_is_made_anew(case: Case) -> None:
    case.report("media")
    (case.folder / media_probe.NAME).write_bytes(b"PAR1 not really PAR1")
    assert case.report("media").facts["media_reused"] == 0
    assert case.report("media").facts["media_reused"] == 6
    table = pandas.read_parquet(case.folder / media_probe.NAME)
    table.assign(exit_code="none").to_parquet(case.folder / media_probe.NAME)
    assert case.report("media").facts["media_reused"] == 0


def test_where_nobody_may_write_rows_go_to_the_cache(tmp_path: Path) -> None:
    assert media_probe.place_for(tmp_path / "spec.toml") == tmp_path / media_probe.NAME
    assert "probes" in str(media_probe.place_for(Path("/nowhere/spec.toml")))


def test_signatures_tell_the_same_scene_from_another(tmp_path: Path) -> None:
    def seen(path: Path) -> bytes:
        meta = probe(path)
        wanted = [0, meta.frame_count // 2, meta.frame_count - 1]
        return near_duplicates.signature(near_duplicates.thumbnails(decode_frames(path, None, wanted), 0, 0))

    original = seen(write_clip(tmp_path / "a.mp4", frames=16, width=128, height=96))
    smaller = seen(write_clip(tmp_path / "b.mp4", frames=16, width=64, height=48, codec="mpeg4"))
    other = seen(write_clip(tmp_path / "c.mp4", frames=16, width=128, height=96, first_number=0b0101010101010101))
    assert near_duplicate_pairs([other, original], [smaller]) == [(1, 0)]
    assert near_duplicate_pairs([other], [original]) == [] and near_duplicate_pairs([], [original]) == []
    many = [np.random.default_rng(seed).integers(0, 255, 192, np.uint8).tobytes() for seed in range(600)]
    assert near_duplicate_pairs(many, many) == [(at, at) for at in range(600)]
    assert near_duplicates.thumbnails(draw(5, 3, 2)[None], 0, 0).shape == (1, 64)


def test_a_scene_of_even_greys_is_the_same_after_another_encoding() -> None:
    """Many cells are as grey as the mean there, and which of them are brighter changes with every encoding."""
    rng = np.random.default_rng(4)
    scenes = np.rint(rng.normal(110, 9, (40, 3, 64))).astype(np.uint8)
    again = (scenes + rng.integers(-1, 2, scenes.shape)).astype(np.uint8)
    flips = [((a > a.mean(-1, keepdims=True)) != (b > b.mean(-1, keepdims=True))).sum(-1).max()
             for a, b in zip(scenes, again, strict=True)]  # fmt: skip
    assert max(flips) > 4  # what counting the bits alone would lose
    found = near_duplicate_pairs([each.tobytes() for each in scenes], [each.tobytes() for each in again])
    assert found == [(at, at) for at in range(40)]
