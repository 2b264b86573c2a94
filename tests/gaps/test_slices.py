"""Where a model fails more than elsewhere: counts, shares, lifts and intervals, from results and real clips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from clips import write_clip

from vidqa.core.problem import ProblemError
from vidqa.evaluation.accuracy import accuracy_interval
from vidqa.gaps.analysis.analyze import analyze
from vidqa.gaps.analysis.breakdowns import slices_text, write_slices
from vidqa.gaps.analysis.scored_answers import ScoredAnswers
from vidqa.gaps.curation.embeddings import VECTORS, schema, table_of, unit_vectors

Row = dict[str, Any]


def note(name: str, video: str, answer: str, question: str = "Is the door open?", **more: Any) -> Row:
    turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": answer}]
    return {"id": name, "video": video, "conversations": turns, **more}


def slices(folder: Path, notes: list[Row], said: dict[str, Any], embeddings: Path | None = None) -> Row:
    """slices.json of an evaluation in which each sample was answered as `said` says: a text, or (text, finish)."""
    (folder / "kpi").mkdir(exist_ok=True)
    (folder / "kpi/annotations.json").write_text(json.dumps(notes))
    results = []
    for row in notes:
        given = said[row["id"]]
        text, finish = given if isinstance(given, tuple) else (given, "stop")
        question, answer = (turn["value"].removeprefix("<video>\n") for turn in row["conversations"])
        result = {"video_id": row["id"], "sample_id": row["id"], "question": question, "gt": answer}
        results.append({**result, "response": text, "finish_reason": finish})
    (folder / "results.json").write_text(json.dumps(results))
    scored = ScoredAnswers()
    places = (str(folder / "results.json"), str(folder / "gaps.parquet"), str(folder / "kpi/annotations.json"))
    analyze(*places, str(folder / "kpi"), scored=scored)
    vectors = unit_vectors(embeddings, {answer.sample_id for answer in scored.answers})
    return write_slices(folder / "slices.json", scored, vectors)


def by_name(table: Row, dimension: str) -> dict[str, Row]:
    return {each["name"]: each for each in table["slices"] if each["dimension"] == dimension}


@pytest.fixture
def doors(tmp_path: Path) -> Row:
    """20 questions by day, all right; 10 by night, 6 wrong; 4 without a readable answer."""
    notes = [note(f"d{n}", f"d{n}.mp4", "yes", kind="door", tags=["day"]) for n in range(20)]
    notes += [note(f"n{n}", f"n{n}.mp4", "no", kind="door", tags={"light": "night", "odd": []}) for n in range(10)]
    notes += [note(f"u{n}", f"u{n}.mp4", "yes", kind="door") for n in range(4)]
    said = {f"d{n}": "yes" for n in range(20)} | {f"n{n}": "yes" if n < 6 else "no" for n in range(10)}
    said |= {"u0": ("well, I", "length"), "u1": ("the sky, per", "length"), "u2": "yes and no", "u3": ""}
    return slices(tmp_path, notes, said)


def test_a_slice_has_its_count_rate_lift_and_interval(doors: Row) -> None:
    night = by_name(doors, "tag light")["night"]
    limits = accuracy_interval([True] * 6 + [False] * 4, [f"n{n}" for n in range(10)])
    assert (night["n"], night["videos"], night["wrong"], night["rate"]) == (10, 10, 6, 0.6)
    assert night["lift"] == 3.0 and limits and night["ci95"] == [limits.low, limits.high]
    assert by_name(doors, "tag")["day"]["lift"] == 0.0 and doors["slices"][0] == night
    assert "tag light night: 6 of 10 wrong" in slices_text(doors)


def test_answers_that_cannot_be_read_are_counted_apart(doors: Row) -> None:
    assert doors["unanswered"] == {"truncated": {"door": 2}, "unparsed": {"door": 1}, "empty": {"door": 1}}
    door = by_name(doors, "kind")["door"]
    assert (doors["n"], doors["wrong"], door["n"], door["unanswered"]) == (30, 6, 30, 4)


def test_yes_no_has_false_positives_and_negatives(doors: Row) -> None:
    found = doors["yes_no"]
    assert (found["false_positives"]["n"], found["false_positives"]["wrong"]) == (10, 6)
    assert (found["false_negatives"]["n"], found["false_negatives"]["wrong"]) == (20, 0)
    assert found["by_kind"]["door"]["false_positives"]["rate"] == 0.6
    low, high = found["false_positives"]["ci95"]
    assert low < 0.6 < high


def test_choices_are_mixed_up_by_their_texts(tmp_path: Path) -> None:
    """The letters are others in each question; the pair is the same."""
    asked = ("What is it? A. car B. bus C. tram", "What is it? A. bus B. tram C. car")
    notes = [note(f"{n}", f"{n}.mp4", "AC"[n % 2], asked[n % 2], kind="thing") for n in range(12)]
    table = slices(tmp_path, notes, {f"{n}": "BA"[n % 2] if n < 6 else "AC"[n % 2] for n in range(12)})
    (pair,) = table["confusions"]
    assert (pair["kind"], pair["expected"], pair["predicted"]) == ("thing", "car", "bus")
    assert (pair["count"], pair["of"], pair["rate"], pair["reverse"]) == (6, 12, 0.5, 0)


def test_length_brightness_motion_and_place_are_seen_in_the_clips(tmp_path: Path) -> None:
    """Long clips are answered wrong, and events in the last third."""
    notes, said = [], {}
    for number in range(18):
        frames = 8 + 4 * (number % 3)
        write_clip(tmp_path / f"kpi/{number}.mp4", frames=frames, fps=4, width=64, height=64, first_number=number)
        third = frames / 4 / 3
        span = [third * (number // 6), third * (number // 6 + 1)]
        notes.append(note(f"{number}", f"{number}.mp4", "yes", span=span))
        said[f"{number}"] = "no" if number % 3 == 2 else "yes"
    table = slices(tmp_path, notes, said)
    lengths = by_name(table, "length")
    assert table["videos_looked_at"] == 18
    longest = max(lengths.values(), key=lambda each: each["rate"])
    assert longest["name"].startswith("over") and (longest["n"], longest["wrong"], longest["lift"]) == (6, 6, 3.0)
    assert {name: each["n"] for name, each in by_name(table, "place of the event").items()} == {
        "first third": 6,
        "middle third": 6,
        "last third": 6,
    }


def write_embeddings(path: Path, media: dict[str, np.ndarray], text: np.ndarray) -> Path:
    widths = {"media": len(next(iter(media.values()))), "text": len(text)}
    columns = schema({"widths": widths})
    texts = {name: list(media) for name in columns.names if name not in VECTORS}
    pq.write_table(table_of(texts, list(media.values()), [text] * len(media), columns), path)
    return path


def test_similar_failures_gather_in_a_cluster(tmp_path: Path) -> None:
    """Foggy clips lie together in the embedding space, and are answered wrong."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, 16))
    media = {f"{n}": centres[n % 4] + 0.1 * random.normal(size=16) for n in range(120)}
    notes = [note(f"{n}", f"{n}.mp4", "yes", kind="door") for n in range(120)]
    said = {f"{n}": "no" if n % 4 == 2 else "yes" for n in range(120)}
    table = slices(tmp_path, notes, said, write_embeddings(tmp_path / "e.parquet", media, np.ones(4)))
    found = by_name(table, "cluster")
    assert sorted((each["n"], each["wrong"]) for each in found.values()) == [(30, 0), (30, 0), (30, 0), (30, 30)]
    assert {name.partition(": ")[2] for name in found} == {"100% door, “Is the door open?”"}
    assert table["slices"][0]["dimension"] == "cluster" and table["slices"][0]["lift"] == 4.0


def test_a_broken_table_of_embeddings_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "e.parquet").write_text("no parquet")
    with pytest.raises(ProblemError, match="CURATION_INPUT"):
        slices(tmp_path, [note("a", "a.mp4", "yes")], {"a": "yes"}, tmp_path / "e.parquet")
