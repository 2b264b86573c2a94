"""Doubtful labels: planted errors come first, a model's weakness is no error, a person's answers count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from vidqa.core.problem import ProblemError
from vidqa.gaps.analysis.analyze import analyze
from vidqa.gaps.analysis.label_errors import add_answers, audit_page, neighbour_labels, read_answers, suspects_of
from vidqa.gaps.analysis.scored_answers import Answered, ScoredAnswer

KINDS = {"door": ("yes", "no"), "color": ("red", "green", "blue", "yellow"), "count": ("1", "2", "3")}
RIGHT = {"door": 0.93, "color": 0.9, "count": 0.6}  # of each model; counting is a weakness of all


def judged(at: int, kind: str, label: str, said: str, video: str = "", question: str = "") -> ScoredAnswer:
    error = "" if said == label else "wrong"
    place = (at, video or f"{at}.mp4", question or f"{kind}?", label, f"s{at}", kind, error, said, label, "text")
    return ScoredAnswer(*place)


def answered(truths: Sequence[tuple[str, str]], random: np.random.Generator) -> list[str]:
    """What a model says that is as often right as RIGHT says, whatever the labels are."""
    said = []
    for kind, truth in truths:
        others = [each for each in KINDS[kind] if each != truth]
        said.append(truth if random.random() < RIGHT[kind] else str(random.choice(others)))
    return said


def planted(seed: int, models: int, with_videos: bool, count: int = 1200) -> float:
    """The share of 5 % planted label errors among the first 10 % of the queue."""
    random = np.random.default_rng(seed)
    kinds = [str(random.choice(list(KINDS))) for _ in range(count)]
    truths = [(kind, str(random.choice(KINDS[kind]))) for kind in kinds]
    wrong = set(random.choice(count, count // 20, replace=False).tolist())
    labels = [
        str(random.choice([each for each in KINDS[kind] if each != truth])) if at in wrong else truth
        for at, (kind, truth) in enumerate(truths)
    ]
    said = [answered(truths, random) for _ in range(models)]
    rows = [judged(at, truths[at][0], labels[at], said[0][at]) for at in range(count)]
    witnesses = {f"model {n}": dict(enumerate(each)) for n, each in enumerate(said)}
    neighbours = {}
    if with_videos:
        centres = {truth: random.normal(size=24) for truth in dict.fromkeys(truths)}
        vectors = [centres[truth] + 0.6 * random.normal(size=24) for truth in truths]
        media = {f"s{at}": (vector / np.linalg.norm(vector)).astype(np.float32) for at, vector in enumerate(vectors)}
        neighbours = neighbour_labels(rows, media)
    first = suspects_of(rows, witnesses, neighbours)[: count // 10]
    return len(wrong & {each.at for each in first}) / len(wrong)


@pytest.mark.parametrize(("models", "with_videos"), [(1, True), (3, False), (3, True)])
def test_planted_label_errors_come_first(models: int, with_videos: bool) -> None:
    """5 % of the labels are wrong: at least 80 % of them are in the first 10 % of the queue."""
    found = [planted(seed, models, with_videos) for seed in range(5)]
    assert np.mean(found) >= 0.8 and min(found) >= 0.7, found


def test_a_weakness_of_the_models_is_no_label_error() -> None:
    """All models fail at one kind, in the same way: its labels are not asked about. A lone one of another kind is."""
    rows = [judged(at, "count", "2", "1") for at in range(40)]
    rows += [judged(at, "door", "yes" if at < 99 else "no", "yes") for at in range(40, 100)]
    said = {"a": {at: each.parsed for at, each in enumerate(rows)}}
    found = suspects_of(rows, {**said, "b": said["a"], "c": said["a"]}, {})
    assert found[0].at == 99 and found[0].probability > 0.5 and found[0].suggested == "yes"
    assert all(each.probability < 0.1 for each in found[1:])


def test_one_model_alone_outweighs_no_label() -> None:
    rows = [judged(at, "door", "yes" if at else "no", "yes") for at in range(500)]
    (found,) = suspects_of(rows, {"a": {at: each.parsed for at, each in enumerate(rows)}}, {})
    assert found.at == 0 and 0.2 < found.probability < 0.5


def test_twins_that_contradict_are_both_doubtful_and_a_model_tells_which() -> None:
    rows = [judged(at, "door", "yes", "yes") for at in range(60)]
    rows += [judged(60, "door", "yes", "yes", "x.mp4"), judged(61, "door", "no", "yes", "x.mp4", "DOOR ?")]
    found = suspects_of(rows, {"a": {at: each.parsed for at, each in enumerate(rows)}}, {})
    assert [each.at for each in found] == [61, 60] and found[0].probability > 0.7 > found[1].probability
    assert "same video" in " ".join(found[1].reasons)


TURNS = ("Is the door open?", "yes")


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    turns = [{"from": "human", "value": f"<video>\n{TURNS[0]}"}, {"from": "gpt", "value": TURNS[1]}]
    notes = [{"id": name, "video": f"{name}.mp4", "conversations": turns} for name in "abc"]
    (tmp_path / "annotations.json").write_text(json.dumps(notes))
    results = [{"sample_id": n, "video_id": n, "question": TURNS[0], "gt": TURNS[1], "response": "no"} for n in "abc"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    return tmp_path


def test_answers_of_a_person_take_the_place_of_labels(evaluated: Path) -> None:
    """A wrong label is no gap any more; an unclear one is left out; a right one stays."""
    said = {"a": {"verdict": "wrong", "answer": "no"}, "b": {"verdict": "unclear"}, "c": {"verdict": "right"}}
    saved = evaluated / "saved.json"
    saved.write_text(json.dumps({"schema": "vidqa.audit_answers.v1", "answers": said}))
    places = [str(evaluated / name) for name in ("results.json", "gaps.parquet", "annotations.json")]
    found = analyze(*places, audited=read_answers(saved))
    assert (found.count, found.correct, found.excluded) == (1, 1, 1)
    assert [row["sample_id"] for row in pq.read_table(places[1]).to_pylist()] == ["c"]


def test_answers_are_kept_over_rounds_and_bad_ones_are_refused(tmp_path: Path) -> None:
    saved, store = tmp_path / "saved.json", tmp_path / "store.json"
    for name, verdict in (("a", "right"), ("b", "unclear"), ("a", "wrong")):
        saved.write_text(json.dumps({"schema": "vidqa.audit_answers.v1", "answers": {name: {"verdict": verdict}}}))
        add_answers(saved, store)
    assert read_answers(store) == {"a": Answered("wrong"), "b": Answered("unclear")}
    before = store.read_bytes()
    for text in ("no json", "[]", '{"schema": "vidqa.audit_answers.v1"}', json.dumps({"answers": {}})):
        saved.write_text(text)
        with pytest.raises(ProblemError, match="CURATION_INPUT"):
            add_answers(saved, store)
    saved.write_text(json.dumps({"schema": "vidqa.audit_answers.v1", "answers": {"a": {"verdict": "maybe"}}}))
    with pytest.raises(ProblemError, match="right, wrong, unclear"):
        add_answers(saved, store)
    assert store.read_bytes() == before
    store.write_bytes(before[:-9])
    saved.write_text(json.dumps({"schema": "vidqa.audit_answers.v1", "answers": {"c": {"verdict": "right"}}}))
    with pytest.raises(ProblemError, match="CURATION_INPUT"):
        add_answers(saved, store)
    assert store.read_bytes() == before[:-9], "answers that cannot be read are not replaced in silence"


def test_the_page_asks_and_shows_everything_as_text() -> None:
    item = {"sample_id": "<b>", "video_id": "", "question": "\n<script>x</script>", "kind": "k", "label": "yes"}
    more = {"suggested": "no", "probability": 0.9, "score": 1.0, "reasons": ["a & b"], "verdict": "", "answer": ""}
    html = audit_page([{**item, **more}])
    assert (
        "<script>x" not in html
        and '<div class="q">&lt;script' in html
        and "a &amp; b" in html
        and html.count('type="radio"') == 3
    )
    assert "label is wrong: 90\N{NO-BREAK SPACE}%; a &amp; b" in html, (
        "a queue that begins at 5 % has no doubtful label"
    )
    assert "vidqa.audit_answers.v1" in html and "script-src 'sha256-" in html
