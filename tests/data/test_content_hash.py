"""Hashes that name content: of whole files, kept until a file changes, whatever its size and times are set to."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from vidqa.core import files
from vidqa.core.environment import cache_folder
from vidqa.core.files import content_hash
from vidqa.gaps.deft.state import fingerprint
from vidqa.planning.resume_compat import _earlier_weights_hash, compare, same_weights, weights_hash

MIB = 1 << 20


def change_the_middle(path: Path) -> None:
    """Another byte; size and times of the file stay as they were."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        (byte,) = file.read(1)
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def model(folder: Path) -> Path:
    folder.mkdir()
    save_file({"first": np.zeros(MIB, np.float32), "last": np.zeros(MIB, np.float32)}, folder / "model.safetensors")
    return folder


def test_two_fine_tunes_that_differ_in_the_middle_are_told_apart(tmp_path: Path) -> None:
    folder, base = model(tmp_path / "model"), model(tmp_path / "base")
    before, on_base = weights_hash(folder), weights_hash(folder, base)
    assert before == weights_hash(base) and before != on_base
    change_the_middle(folder / "model.safetensors")
    assert weights_hash(folder) != before and _earlier_weights_hash(folder, None) == _earlier_weights_hash(base, None)
    change_the_middle(base / "model.safetensors")
    assert weights_hash(folder, base) != on_base and weights_hash(folder) == weights_hash(base)


def test_records_of_earlier_versions_still_name_their_weights(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    earlier = {"base_model": _earlier_weights_hash(folder, None), "lora": None}
    assert same_weights(earlier["base_model"], folder) and not same_weights("0" * 64, folder)
    now = {"weights": {"base_model": weights_hash(folder), "lora": None}, "spec": {}}
    for facts, is_other in ((earlier, False), ({**earlier, "base_model": "0" * 64}, True), ({"lora": None}, True)):
        refused, _ = compare(tmp_path, {"weights": facts, "spec": {}}, now, folder, [])
        assert bool(refused) is is_other


def test_the_hash_of_a_large_file_is_kept_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SETTLED_NS", 10**7)
    read: list[Path] = []
    digest = files._digest
    monkeypatch.setattr(files, "_digest", lambda path: (read.append(path), digest(path))[1])
    path = tmp_path / "large"
    path.write_bytes(bytes(17 * MIB))
    time.sleep(0.05)
    assert content_hash(path) == content_hash(path) == hashlib.sha256(bytes(17 * MIB)).hexdigest()
    assert read == [path]
    change_the_middle(path)
    time.sleep(0.05)
    assert content_hash(path) == digest(path) != hashlib.sha256(bytes(17 * MIB)).hexdigest() and len(read) == 2
    (kept,) = (cache_folder() / "hashes").iterdir()
    for damaged in ("no JSON", "[]", '{"stamp": 5, "sha256": 6}'):
        kept.write_text(damaged)
        assert content_hash(path) == digest(path)


def test_a_file_that_has_just_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(17 * MIB))
    content_hash(path)
    assert not (cache_folder() / "hashes").exists()


def test_a_fingerprint_of_the_loop_changes_with_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "a.mp4").write_bytes(b"first")
    path = tmp_path / "large.json"
    with path.open("wb") as large:
        large.truncate(300 * MIB)  # without taking room
    before, of_file = fingerprint(folder), fingerprint(path)
    assert before == fingerprint(folder)
    (folder / "a.mp4").write_bytes(b"other")
    os.utime(folder / "a.mp4", ns=(0, 10**15))
    assert fingerprint(folder) != before
    change_the_middle(path)
    assert fingerprint(path) != of_file
