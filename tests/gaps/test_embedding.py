"""The pool and the selection set are embedded by one job of the engine, and stay two sets."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from table_jobs import Jobs, write_sets
from test_outcomes import begun, lacks_diagonals
from tiny_world import run_engine

from demo.clips import pool_clips, selection_clips, train_clips
from vidqa.gaps.curation.embeddings import Table
from vidqa.gaps.deft import runner
from vidqa.gaps.deft.loop import Loop, PendingStage
from vidqa.gaps.deft.state import Cost, Where
from vidqa.spec import dump, load
from vidqa.spec.keys import with_values

TEXTS = ("sample_id", "media", "question", "answer", "kind", "problem")
NO_QUERIES = {"dataset.query_annotation_path": "", "dataset.query_media_dir": ""}


class Engine(Jobs):
    """Embeds with the engine itself."""

    def __call__(self, action: str, spec_path: Path, where: Where) -> tuple[Path, dict[str, Any], Cost]:
        if action != "embed":
            return super().__call__(action, spec_path, where)
        self.launched.append(action)
        run_engine("embed", spec_path, run := spec_path.parent / "runs/embedded")
        return run, {}, Cost()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool in an archive that holds clips and ids of the selection set, too."""
    folder = tmp_path_factory.mktemp("world")
    write_sets(folder, train=train_clips(4, 0), selection=selection_clips(0)[:12], pool=pool_clips(16, 0))
    pool, selection = folder / "pool", folder / "selection"
    with tarfile.open(pool / "videos.tar", "w") as archive:
        archive.add(pool / "videos", "videos")
    for clip in (pool / "videos").iterdir():
        clip.unlink()
    own, asked = (json.loads((place / "annotations.json").read_text()) for place in (pool, selection))
    shared = [{**row, "video": str(selection / row["video"])} for row in asked[:20]]
    (pool / "annotations.json").write_text(json.dumps([*shared, *own]))
    return folder


def mined(monkeypatch: pytest.MonkeyPatch, loop: Loop) -> Engine:
    jobs = Engine(lacks_diagonals)
    monkeypatch.setattr(runner, "job", jobs)
    while isinstance(step := loop.next(), PendingStage) and step.stage.name != "mine":
        pass
    assert isinstance(step, PendingStage)
    return jobs


@pytest.mark.slow
def test_one_job_embeds_as_two_do_and_nothing_of_the_selection_set_is_mined(
    monkeypatch: pytest.MonkeyPatch, world: Path, tmp_path: Path
) -> None:
    loop = begun(world, tmp_path, "audit=report", "words.mine=--per-gap 20 --threshold=-1 --duplicate-threshold 2")
    assert mined(monkeypatch, loop).launched == ["evaluate", "embed"]
    done = loop.state.rounds[1].stages["embed"].outputs
    both = load(loop.folder / "embed.toml", "embed")
    for name in ("pool", "selection"):
        place = {"annotation_path": str(world / name / "annotations.json"), "media_dir": str(world / name)}
        alone = with_values(both, {**NO_QUERIES, **{f"dataset.{key}": value for key, value in place.items()}})
        (tmp_path / f"{name}.toml").write_text(dump(alone))
        run_engine("embed", tmp_path / f"{name}.toml", run := tmp_path / name / "run")
        one, other = (Table(each).whole(TEXTS) for each in (Path(done[f"{name} embeddings"].path), run))
        assert one.columns == other.columns and not any(one.columns["problem"])
        np.testing.assert_allclose(one.media, other.media, atol=1e-6)
        assert (one.text == other.text).all() and one.media.any(axis=1).all() and one.text.any(axis=1).all()
    finds = pq.read_table(loop.folder / "round_1/mined/mined.parquet").to_pylist()
    assert finds and not [row for row in finds if row["media"].startswith(str(world / "selection"))]
    rows = json.loads((loop.folder / "round_1/mined/mined.json").read_text())
    asked = {row["id"] for row in json.loads((world / "selection/annotations.json").read_text())}
    assert rows and not {row["id"] for row in rows} & asked
    assert json.loads((loop.folder / "round_1/mined/summary.json").read_text())["left_out"]["in the KPI set"]
