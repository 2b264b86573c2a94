"""Embedding: the vectors are those of the stock model, nothing is computed twice, a broken file is one problem."""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from clips import decode_frames
from forked import Started
from in_process import run_here
from test_evaluation import _children
from text_encoder import write_sentence_model
from tiny_world import engine_command, run_engine, tiny_data, tiny_model

from vidqa.core.problem import ProblemError
from vidqa.engine.actions.embed import Vectors
from vidqa.engine.actions.embedder import _pooled
from vidqa.engine.data.pixels import patchify, resize_frames
from vidqa.engine.export import load_export
from vidqa.gaps.curation.embeddings import Table, queries_in
from vidqa.planning.samples import evaluation_planner
from vidqa.spec import Layer, dump, load, resolve
from vidqa.spec.models import EmbedSpec
from vidqa.spec.rules import embed_rules

TEXTS = ("sample_id", "media", "question", "answer", "kind", "problem")


def write_spec(folder: Path, world: SimpleNamespace, name: str = "embed", **over: Any) -> Path:
    table = {
        "dataset.annotation_path": str(world.root / "annotations.json"),
        "dataset.media_dir": str(world.root),
        "model.model_name": str(world.model),
        "model.dtype": "float32",
        "vision.nframes": 4,
        "embed.batch_size": 2,
        "engine.frame_cache_gb": 0.0,
        **{key.replace("__", "."): value for key, value in over.items()},
    }
    path = folder / f"{name}.toml"
    path.write_text(dump(resolve("embed", [Layer("test", table)]).spec), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("embed")
    model, root = tiny_model(folder), tiny_data(folder, clips=4)
    (root / "videos/broken.mp4").write_bytes(b"no video")
    path = root / "annotations.json"
    broken = {"id": "broken", "video": "videos/broken.mp4", "question": "Why?"}
    (root / "with_broken.json").write_text(json.dumps([*json.loads(path.read_text()), broken]))
    return SimpleNamespace(folder=folder, model=model, root=root)


@pytest.fixture(scope="module")
def finished(world: SimpleNamespace) -> Path:
    spec = write_spec(world.folder, world, dataset__annotation_path=str(world.root / "with_broken.json"))
    return run_here("embed", spec, world.folder / "runs/one")


def rows_in(place: Path) -> list[bytes]:
    """The keys of the vectors of media that are kept beside runs."""
    found = []
    for folder in place.glob(".embeddings/*/media"):
        (width,) = {Table(run).widths[0] for run in place.iterdir() if (run / "embeddings.parquet").is_file()} or {128}
        store = Vectors(folder, width, "reader")
        store.look()
        found += list(store._places)
    return found


def test_vectors_are_those_of_the_stock_model(world: SimpleNamespace, finished: Path) -> None:
    spec = load(world.folder / "embed.toml", "embed")
    planner = evaluation_planner(spec, world.model)
    table = Table(finished).whole(TEXTS)
    model = load_export(world.model, None, torch.float32, torch.device("cpu"))
    from vidqa.data import load_records

    samples, _ = planner.plan(load_records(world.root / "annotations.json", world.root))
    for at, sample in enumerate(samples[:6]):
        (ref,), (plan,) = sample.record.media, sample.plans
        pixels = resize_frames(decode_frames(ref.path, ref.member, plan.indices), plan.height, plan.width)
        rules = planner.geometry.video
        patches = patchify(torch.from_numpy(pixels), rules, torch.tensor(rules.mean), torch.tensor(rules.std))
        with torch.no_grad():
            features = model.model.visual(patches, torch.tensor([plan.grid])).pooler_output
        expected = torch.nn.functional.normalize(_pooled(features, plan.grid[0]), dim=0).numpy()
        np.testing.assert_allclose(table.media[at], expected, atol=1e-5)
        ids = torch.tensor(planner.chat.text_ids(sample.record.question))
        words = model.get_input_embeddings()(ids).mean(0).detach().numpy()
        np.testing.assert_allclose(table.text[at], words / np.linalg.norm(words), atol=1e-6)


def test_a_broken_video_is_one_problem_and_the_others_are_embedded(finished: Path) -> None:
    table = Table(finished).whole(TEXTS)
    assert table.columns["problem"] == [*[None] * (len(table) - 1), "MEDIA_UNREADABLE"]
    lengths = np.linalg.norm(table.media, axis=1)
    assert lengths[-1] == 0 and table.columns["sample_id"][-1] == "broken"
    texts_alone = [not media for media in table.columns["media"]]
    assert [length == 0 for length in lengths[:-1]] == texts_alone[:-1] and any(texts_alone)
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["counts"] == {"embedded": len(table) - 1, "error": 1}
    assert "broken.mp4" in summary["problems"][0]["where"]


def test_two_processes_give_what_one_gives_and_use_what_is_kept(world: SimpleNamespace, finished: Path) -> None:
    spec = write_spec(world.folder, world, "two", num_gpus=2)
    before = rows_in(finished.parent)
    run_engine("embed", spec, finished.parent / "two", ranks=2)
    assert rows_in(finished.parent) == before
    elsewhere = world.folder / "elsewhere"
    run_engine("embed", spec, elsewhere / "two", ranks=2)
    assert sorted(rows_in(elsewhere)) == sorted(before)
    one, *others = (Table(place).whole(TEXTS) for place in (finished, finished.parent / "two", elsewhere / "two"))
    for other in others:
        assert {name: found[:-1] for name, found in one.columns.items()} == other.columns
        np.testing.assert_allclose(one.media[:-1], other.media, atol=1e-6)
        assert (one.text[:-1] == other.text).all()


def test_two_sets_of_one_run_are_two_tables_also_where_their_ids_are_the_same(
    world: SimpleNamespace, finished: Path
) -> None:
    queries = {"query_annotation_path": str(world.root / "with_broken.json"), "query_media_dir": str(world.root)}
    spec = write_spec(world.folder, world, "both", **{f"dataset__{key}": value for key, value in queries.items()})
    run = run_here("embed", spec, finished.parent / "both")
    one, alone = Table(run).whole(TEXTS), Table(finished).whole(TEXTS)
    asked = queries_in(run).whole(TEXTS)
    assert asked.columns == alone.columns and (asked.media == alone.media).all() and (asked.text == alone.text).all()
    assert one.columns == {name: found[:-1] for name, found in alone.columns.items()}
    assert (one.media == alone.media[:-1]).all() and (one.text == alone.text[:-1]).all()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["counts"] == {"embedded": 2 * len(one), "error": 1} and len(summary["problems"]) == 1


def test_media_of_queries_without_queries_are_a_problem() -> None:
    (found,) = [each for each in embed_rules(EmbedSpec(dataset={"query_media_dir": "kpi"})) if "query" in each.where]
    assert (found.code, found.where) == ("SPEC_VALUE", "dataset.query_annotation_path")


def test_a_killed_embedding_goes_on_without_repeating(world: SimpleNamespace, finished: Path, tmp_path: Path) -> None:
    spec, run = write_spec(tmp_path, world, embed__batch_size=1), tmp_path / "runs/killed"
    with open(os.devnull, "wb") as nowhere:
        process = Started(engine_command("embed", spec, run), stdout=nowhere, stderr=nowhere, start_new_session=True)
    deadline = time.monotonic() + 600
    while len(rows_in(run.parent)) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    for pid in [process.pid, *map(int, _children(process.pid))]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    (kept,) = run.parent.glob(".embeddings/*/media/*-0.rows")
    with kept.open("ab") as file:
        file.write(b"half of a row")
    before = rows_in(run.parent)
    run_here("embed", spec, run)
    after = rows_in(run.parent)
    assert after[: len(before)] == before and len(set(after)) == len(after)
    width = Table(run).widths[0]
    assert kept.stat().st_size == len(after) * (16 + 4 * width + 4)
    np.testing.assert_allclose(Table(run).whole(TEXTS).media, Table(finished).whole(TEXTS).media[:-1], atol=1e-6)


def test_a_damaged_row_counts_as_absent(tmp_path: Path) -> None:
    store = Vectors(tmp_path, 3, "a")
    store.append({b"k" * 16: np.arange(3, dtype=np.float32), b"l" * 16: np.ones(3, np.float32)})
    content = bytearray(store.path.read_bytes())
    content[17] ^= 1
    store.path.write_bytes(content)
    store.look()
    assert store.get(b"k" * 16) is None and store.get(b"l" * 16).tolist() == [1, 1, 1]


def test_a_row_is_checked_once_whoever_writes_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (Vectors(tmp_path, 3, name) for name in "ba")
    checked: list[bytes] = []
    monkeypatch.setattr(zlib, "crc32", lambda data, crc=zlib.crc32: (checked.append(bytes(data)), crc(data))[1])
    for number in range(4):
        (ours, theirs)[number % 2].append({bytes([number]) * 16: np.full(3, number, np.float32)})
        checked.clear()
        ours.look()
        assert len(checked) == 1
    assert [ours.get(bytes([number]) * 16)[0] for number in range(4)] == [0, 1, 2, 3]  # type: ignore[index]


def test_a_sentence_model_and_fewer_dimensions(world: SimpleNamespace, finished: Path, tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path / "sentences", {"pooling_mode_mean_tokens": True})
    media = world.root / "videos"
    over = {"dataset__annotation_path": str(media), "dataset__media_dir": "", "embed__dimensions": 16}
    spec = write_spec(tmp_path, world, embed__text_model=str(folder), **over)
    table = Table(run_here("embed", spec, tmp_path / "runs/media"))
    found = table.whole(TEXTS)
    assert table.widths == (16, 16) and set(found.columns["question"]) == {""} and not found.text.any()
    assert found.columns["media"][0] == str(media / "0.mp4") and np.linalg.norm(found.media[0]) == pytest.approx(1)
    with pytest.raises(ProblemError, match="CURATION_INPUT"):
        table.require_like(Table(finished))


def test_what_is_no_table_of_embeddings_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "embeddings.parquet").write_bytes(b"nothing")
    with pytest.raises(ProblemError, match="CURATION_INPUT"):
        Table(tmp_path)
