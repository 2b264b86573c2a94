"""Mining: what is like the gaps is found, once each, with both answers, and never what the KPI set holds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from simulated import unit, write_gaps, write_pool, write_table

from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import EMBEDDINGS, QUERY_EMBEDDINGS
from vidqa.data import load_records
from vidqa.gaps.curation.embeddings import FACTS, Table
from vidqa.gaps.curation.mining import Mining, mine
from vidqa.gaps.curation.search import nearest, pool_mean

ASKED, OTHER = "Is a person falling?", "Which color is it?"
WIDTH = 32


class World:
    """A pool of 200 rows: 20 like the gaps (half yes, half no), the others about something else."""

    def __init__(self, root: Path, answered: bool = True) -> None:
        draw = np.random.default_rng(0)
        self.root, self.like = root, unit(draw.standard_normal(WIDTH))
        texts = {ASKED: unit(draw.standard_normal(16)), OTHER: unit(draw.standard_normal(16))}
        shared = 2 * unit(draw.standard_normal(WIDTH))  # what all vectors of a model have in common
        self.rows: list[dict[str, Any]] = []
        for at in range(200):
            is_like = at % 10 == 3
            question = ASKED if is_like else OTHER
            media = (3 * self.like if is_like else 0) + shared + 0.3 * draw.standard_normal(WIDTH)
            answer = ("yes" if at % 20 == 3 else "no") if is_like else "red"
            row = {"sample_id": f"p{at}", "media": str(root / f"pool/p{at}.mp4"), "media_embedding": unit(media)}
            asked = {"question": question, "answer": answer, "text_embedding": texts[question]} if answered else {}
            self.rows.append({**row, **asked})
        kpi = [
            {
                "sample_id": f"k{at}",
                "media": str(root / f"kpi/k{at}.mp4"),
                "question": ASKED,
                "answer": "yes",
                "kind": "fall",
                "media_embedding": unit(3 * self.like + shared + 0.3 * draw.standard_normal(WIDTH)),
                "text_embedding": texts[ASKED],
            }
            for at in range(4)
        ]
        self.query = write_table(root / "query", kpi)
        self.gaps = write_gaps(
            root / "gaps.parquet",
            [
                {"sample_id": f"k{at}", "video_id": kpi[at]["media"], "question": ASKED, "ground_truth": "yes"}
                for at in range(3)
            ],
        )
        records = [
            {"id": row["sample_id"], "question": row.get("question"), "answer": row.get("answer")} for row in self.rows
        ]
        self.annotations = str(write_pool(root / "pool", records)) if answered else ""

    def mine(self, name: str = "out", **options: Any) -> Any:
        pool, out = write_table(self.root / f"tables/{name}", self.rows), self.root / name
        places = {"gaps": self.gaps, "pool": pool, "query": self.query, "pool_annotations": self.annotations}
        return mine(Mining(**{**places, "out": out, "per_gap": 5, **options}))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_like_the_gaps_is_found_with_both_answers(world: World) -> None:
    found = world.mine()
    assert [row["conversations"][0]["value"] for row in found.annotations] == [f"<video>\n{ASKED}"] * 15
    answers = Counter(row["conversations"][1]["value"] for row in found.annotations)
    assert abs(answers["yes"] - answers["no"]) <= 1
    assert len({row["id"] for row in found.annotations}) == 15
    records = load_records(world.root / "out/mined.json")
    assert {record.provenance.origin for record in records if record.provenance} == {"mined"}
    assert {record.provenance.gap for record in records if record.provenance} == {"k0", "k1", "k2"}
    rows = json.loads((world.root / "out/mined.json").read_text())
    assert all(0.5 <= row["curation"]["similarity"] <= 1.0001 and row["camera"] == "north" for row in rows)
    table = pq.read_table(world.root / "out/mined.parquet").to_pylist()
    assert [row["sample_id"] for row in table] == [row["id"] for row in rows]
    page = (world.root / "out/mined.html").read_text()
    assert (
        ASKED in page
        and "data:image/jpeg" in page
        and "5 mined</p>" in page
        and "No frames: " in page
        and "similarity 0.9" in page
    )
    control = load_records(world.root / "out/control.json")
    assert len(control) == 15 and {record.id for record in control} != {record.id for record in records}


def test_the_same_seed_gives_the_same_files(world: World) -> None:
    world.mine(name="one")
    world.mine(name="two")
    for name in ("mined.json", "control.json", "summary.json"):
        assert (world.root / "one" / name).read_bytes() == (world.root / "two" / name).read_bytes()


def test_one_run_of_pool_and_queries_gives_the_same(world: World) -> None:
    world.mine(name="apart")
    both = write_table(world.root / "tables/together", world.rows)
    (both / QUERY_EMBEDDINGS).hardlink_to(world.query / EMBEDDINGS)
    world.query = both
    world.mine(name="together")
    for name in ("mined.json", "control.json", "summary.json"):
        assert (world.root / "apart" / name).read_bytes() == (world.root / "together" / name).read_bytes()


def test_limits_hold(world: World) -> None:
    assert len(world.mine(per_gap=2).annotations) == 6
    assert len(world.mine(name="most", per_gap=20, max_rows=7).annotations) == 7
    with pytest.raises(ProblemError, match=r"(?s)CURATION_NOTHING_NEW.*not similar enough"):
        world.mine(name="none", threshold=1.01)


def test_what_an_earlier_round_has_tried_is_not_taken_again(world: World) -> None:
    first = world.mine(name="first", per_gap=2)
    second = world.mine(name="second", per_gap=2, tried=(world.root / "first/mined.parquet",))
    assert len(second.annotations) == 6
    assert not {row["id"] for row in first.annotations} & {row["id"] for row in second.annotations}


def test_near_copies_are_taken_once(world: World) -> None:
    copy = next(row for row in world.rows if row["question"] == ASKED)
    for row in world.rows[:60:10]:  # six of them, under the question of the gaps
        row |= {key: copy[key] for key in ("media_embedding", "text_embedding", "question", "answer")}
    found = world.mine(per_gap=20)
    copies = {row["sample_id"] for row in world.rows if np.array_equal(row["media_embedding"], copy["media_embedding"])}
    assert len(copies) == 7 and len(copies & {row["id"] for row in found.annotations}) == 1
    assert found.left_out["near copies"] >= 6


def test_clips_of_the_kpi_set_and_broken_ones_are_left_out(world: World) -> None:
    like = [row for row in world.rows if row["question"] == ASKED]
    like[0]["media"] = str(world.root / "kpi/k3.mp4")
    like[1]["problem"] = "MEDIA_UNREADABLE"
    found = world.mine(per_gap=20)
    ids = {row["id"] for row in found.annotations}
    assert not ids & {like[0]["sample_id"], like[1]["sample_id"]} and len(ids) == 18
    assert found.left_out["in the KPI set"] and found.left_out["cannot be decoded"]


def test_clips_without_an_answer_become_a_task(tmp_path: Path) -> None:
    world = World(tmp_path, answered=False)
    found = world.mine(per_gap=4)
    assert found.annotations == [] and len(found.tasks) == 12
    assert {task["id"] for task in found.tasks} <= {row["sample_id"] for row in world.rows[3::10]}
    assert found.tasks[0]["question"] == ASKED and found.tasks[0]["choices"] == ["yes", "no"]
    assert not (tmp_path / "out/control.json").exists() and (tmp_path / "out/annotate.html").is_file()


def test_a_second_mining_in_a_folder_leaves_nothing_of_the_first(world: World) -> None:
    answered, out = [dict(row) for row in world.rows], world.root / "out"
    world.rows = [row | {"answer": None} for row in answered]
    world.mine()
    (out / "labelled.json").write_text("[]")
    world.mine()  # the same tasks, to which the labels belong
    world.rows = answered
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ProblemError, match="OUTPUT_EXISTS"):
        world.mine()
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (out / "labelled.json").unlink()
    world.mine()
    left = {path.name for path in out.rglob("*") if path.is_file()}
    assert left == {"mined.json", "mined.parquet", "mined.html", "control.json", "summary.json"}


def test_a_control_is_drawn_also_where_what_was_mined_has_no_answers(world: World) -> None:
    for row in world.rows:
        row["answer"] = None if row["question"] == ASKED else row["answer"]
    found = world.mine()
    control = load_records(world.root / "out/control.json")
    assert found.annotations == [] and len(found.tasks) == len(control) == 15
    assert {record.question for record in control} == {OTHER}
    found = world.mine("without", pool_annotations="")
    assert len(found.tasks) == 15 and (world.root / "without/annotate.html").is_file()


def test_what_cannot_be_mined_is_a_problem_of_its_own(world: World) -> None:
    empty = write_table(world.root / "empty", [])
    asked = {"query": world.query, "out": world.root / "x", "pool_annotations": world.annotations}
    with pytest.raises(ProblemError, match=r"(?s)CURATION_NOTHING_NEW.*none with a vector"):
        mine(Mining(gaps=world.gaps, pool=empty, **asked))
    none = write_gaps(world.root / "none.parquet", [])
    pool = write_table(world.root / "pool-table", world.rows)
    with pytest.raises(ProblemError, match="CURATION_NOTHING_NEW"):
        mine(Mining(gaps=none, pool=pool, **asked))
    other = write_table(world.root / "other", world.rows, model="another")
    with pytest.raises(ProblemError, match=r"(?s)CURATION_INPUT.*model"):
        mine(Mining(gaps=world.gaps, pool=other, **asked))
    with pytest.raises(ProblemError, match=r"(?s)CURATION_INPUT.*chosen rows"):
        mine(Mining(**{**asked, "gaps": world.gaps, "pool": pool, "pool_annotations": ""}))
    (world.root / "no-table.parquet").write_text("no table")
    with pytest.raises(ProblemError, match=r"(?s)CURATION_INPUT.*not a table with sample_id"):
        mine(Mining(gaps=world.gaps, pool=pool, tried=(world.root / "no-table.parquet",), **asked))
    without_widths = pa.table({"media_embedding": [[1.0]]}).replace_schema_metadata({FACTS: "{}"})
    pq.write_table(without_widths, world.root / "other.parquet")
    with pytest.raises(ProblemError, match=r"(?s)CURATION_INPUT.*widths"):
        mine(Mining(gaps=world.gaps, pool=world.root / "other.parquet", **asked))


def test_search_in_parts_is_search_in_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, query = Table(write_table(world.root / "t", world.rows, group=7)), Table(world.query)
    mean = pool_mean(pool, 0.3)
    asked = mean.queries(query.whole(()))
    whole = nearest(pool, asked, 9, mean)
    similarity = asked @ mean.rows(pool.whole(())).T
    assert (whole.row == np.argsort(-similarity, axis=1, kind="stable")[:, :9]).all()
    for name, rows in (("embeddings.READ", 5), ("search.BLOCK_ROWS", 13)):
        monkeypatch.setattr(f"vidqa.gaps.curation.{name}", rows)
    parts = nearest(pool, asked, 9, mean)
    assert (parts.row == whole.row).all()
    np.testing.assert_allclose(parts.similarity, whole.similarity, atol=1e-5)
    assert parts.projections.keys() == whole.projections.keys() == set(whole.row.ravel().tolist())
