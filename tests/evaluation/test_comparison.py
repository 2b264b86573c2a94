"""Two evaluations are compared question by question; what cannot be compared is refused with what differs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from programs import run_here

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.evaluation.comparison import bootstrap, compare, corrected, difference, mcnemar_p, sign_flip_p
from vidqa.evaluation.cosmos_protocol import protocol_scores
from vidqa.evaluation.metrics import score
from vidqa.evaluation.pages import comparison_page, comparison_text
from vidqa.evaluation.results import Item, judged, read_dataset, read_evaluation

RECIPE = {"model": {"folder": "a"}, "samples": 60, "frames": {"nframes": 8}, "versions": {"torch": "2"}}


def items(right: list[int], *, videos: int = 0, kinds: int = 1, video: str = "v{}.mp4") -> list[Item]:
    """Judged yes/no results, those of `right` right; each about a video of its own unless `videos` says otherwise."""
    return [
        judged(
            {
                "sample_id": f"q{at}",
                "video_id": video.format(at % (videos or len(right))),
                "question": "\nIs it open? yes or no",
                "gt": "yes",
                "response": "Yes" if value else "No",
                "kind": f"k{at % kinds}",
            }
        )
        for at, value in enumerate(right)
    ]


def folder(place: Path, results: list[Item], recipe: dict[str, Any] | None = None) -> Path:
    place.mkdir(parents=True)
    (place / "results.json").write_text(json.dumps(results))
    if recipe is not None:
        (place / "recipe.json").write_text(json.dumps(recipe))
    return place


def pairs(before: list[int], after: list[int], **how: Any) -> list[tuple[Item, Item]]:
    return list(zip(items(before, **how), items(after, **how), strict=True))


def test_what_changed_is_counted_and_tested() -> None:
    found = difference(pairs([1] * 30 + [0] * 30, [1] * 28 + [0] * 2 + [1] * 20 + [0] * 10))
    assert (found.before, found.after, found.difference) == (0.5, 0.8, 0.3)
    assert (found.fixed, found.broken, found.verdict) == (20, 2, "better")
    assert 0.1 < found.ci95[0] < 0.2 and 0.4 < found.ci95[1] < 0.5 and found.p_value < 0.001
    turned = difference(pairs([1] * 28 + [0] * 2 + [1] * 20 + [0] * 10, [1] * 30 + [0] * 30))
    assert turned.verdict == "worse" and turned.ci95 == (-found.ci95[1], -found.ci95[0])


def test_mcnemars_test_is_the_exact_binomial_one() -> None:
    assert mcnemar_p(10, 2) == pytest.approx(0.038574, abs=1e-6)
    assert mcnemar_p(5, 5) == mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(0, 10) == pytest.approx(2 / 2**10, abs=1e-6)
    assert mcnemar_p(5200, 4800) == pytest.approx(6.6e-5, rel=0.05)


def test_one_question_a_video_tests_like_mcnemar() -> None:
    found = difference(pairs([0] * 10 + [1] * 2 + [1] * 20, [1] * 10 + [0] * 2 + [1] * 20))
    assert found.p_value == pytest.approx(found.mcnemar_p, abs=0.01)


def test_questions_about_one_video_count_together() -> None:
    """Twelve questions about two videos show no more than two videos can."""
    found = difference(pairs([0] * 12, [1] * 12, videos=2))
    assert found.mcnemar_p < 0.001 and found.p_value > 0.4 and found.verdict == "no significant difference"


def test_questions_without_media_are_independent() -> None:
    """Forty of a hundred fixed and none broken; each question without media is a cluster of its own."""
    found = difference(pairs([0] * 40 + [1] * 60, [1] * 100, video=""))
    assert (found.n_videos, found.fixed, found.broken, found.verdict) == (100, 40, 0, "better")
    assert found.p_value < 0.001 and found.mcnemar_p < 0.001
    before, after = items([0] * 40 + [1] * 60, video=""), items([1] * 100, video="")
    for side in (before, after):
        scores, protocol = score(side), protocol_scores(side)
        assert (scores["n_videos"], scores["n_effective"]) == (100, 100.0)
        assert scores["accuracy_ci95"] == protocol["accuracy_ci95"]


def test_models_that_are_alike_are_rarely_told_apart() -> None:
    random = np.random.default_rng(0)
    told = 0
    for _ in range(200):
        tendency = np.repeat(random.random((2, 40)), 3, axis=1)  # three questions about each of 40 videos, alike
        before, after = (random.random((2, 120)) < tendency).astype(int)
        at = np.repeat(np.arange(40), 3)
        sums = np.bincount(at, after - before, 40)
        low, high = bootstrap(sums, np.full(40, 3))
        told += bool(sign_flip_p(sums) < 0.05 and not low <= 0 <= high)
    assert told <= 18  # 10 are expected at a level of 0.05


def test_many_slices_are_corrected() -> None:
    slices = [difference(pairs([0] * 8 + [1] * 20, [1] * 8 + [1] * 20)) for _ in range(4)]
    found = corrected(slices)
    assert slices[0].p_value < 0.01 and found[0].p_corrected == pytest.approx(4 * slices[0].p_value)
    assert slices[0].verdict == "better" and corrected(slices * 5)[0].verdict == "no significant difference"


CUT = "I look at the first frame and"


def counted(right: list[str], truth: str = "1") -> list[Item]:
    """Judged counts of cars, each about a video of its own; a response of CUT ran into the limit."""
    return [
        judged(
            {"sample_id": f"q{at}", "video_id": f"v{at}.mp4", "question": "How many?", "gt": truth, "response": said}
            | {"finish_reason": "length" if said == CUT else "stop"}
        )
        for at, said in enumerate(right)
    ]


def test_a_gain_of_answers_that_end_is_called_so(tmp_path: Path) -> None:
    """46 of 46 were truncated before, and always saying "1" is right."""
    a, b = folder(tmp_path / "a", counted([CUT] * 46)), folder(tmp_path / "b", counted(["1"] * 46))
    found = compare(a, b)
    data, text, page = found.as_dict(), comparison_text(found), comparison_page(found)
    assert data["verdict"] == "better" and data["sides"]["before"]["truncated"] == 46
    assert data["sides"]["after"] == {"n": 46, "majority_accuracy": 1.0, "truncated": 0, "unparsed": 0, "empty": 0}
    assert len(data["reservations"]) == 2
    assert "of 46 fixed questions 46 had no answer before (46 truncated)" in data["reservations"][0]
    assert "always '1' to every number question scores 100.0 %" in data["reservations"][1]
    sentence = "better, but only because more answers can be read and no higher than the majority-class baseline"
    assert data["sentence"] == sentence and text.startswith(f"{sentence}: 0.0 % -> 100.0 %") and sentence in page
    assert "before: 46 truncated, 0 unparsed, 0 empty; the majority-class baseline scores 100.0 %" in text
    back = compare(b, a)
    assert back.sentence == "worse, but only because fewer answers can be read"


def test_a_gain_of_right_answers_has_no_reservation(tmp_path: Path) -> None:
    truth = ["1", "2"] * 20
    before, after = counted(["2", "1"] * 20), counted(truth)
    for items_of in (before, after):
        items_of[:] = [judged({**item, "gt": gt}) for item, gt in zip(items_of, truth, strict=True)]
    before[0] = judged({**before[0], "response": CUT, "finish_reason": "length"})
    found = compare(folder(tmp_path / "a", before), folder(tmp_path / "b", after))
    assert (found.sentence, found.reservations, found.sides[0]["truncated"]) == ("better", [], 1)


def test_a_model_that_always_says_one_thing_is_called_so(tmp_path: Path) -> None:
    truth = ["1"] * 30 + ["2"] * 10
    before = [judged({**item, "gt": gt}) for item, gt in zip(counted(["3", "2"] * 20), truth, strict=True)]
    after = [judged({**item, "gt": gt}) for item, gt in zip(counted(["1"] * 40), truth, strict=True)]
    found = compare(folder(tmp_path / "a", before), folder(tmp_path / "b", after))
    assert found.whole.verdict == "better" and "'1' to every number question" in found.reservations[-1]
    assert "the second model always gives one answer" in found.sentence


def test_no_change_is_no_significant_difference() -> None:
    found = difference(pairs([1, 0, 1], [1, 0, 1]))
    assert (found.verdict, found.p_value, found.difference) == ("no significant difference", 1.0, 0.0)


def test_scores_that_were_made_differently_are_refused(tmp_path: Path) -> None:
    a = folder(tmp_path / "a", items([1, 0]), RECIPE)
    b = folder(tmp_path / "b", items([1, 1]), {**RECIPE, "model": {"folder": "b"}, "frames": {"nframes": 16}})
    with pytest.raises(ProblemError, match="it is compared with itself"):
        compare(a, a)
    with pytest.raises(ProblemError) as refused:
        compare(a, b)
    (problem,) = refused.value.problems
    assert problem.code == "COMPARISON_UNEQUAL" and "frames.nframes: 8 -> 16" in problem.message
    with pytest.raises(ProblemError, match="COMPARISON_UNEQUAL"):
        compare(a, folder(tmp_path / "c", items([1, 1])))
    neither = compare(folder(tmp_path / "d", items([1, 1])), tmp_path / "c")
    assert [each.code for each in neither.problems] == ["COMPARISON_UNEQUAL"]


def test_a_folder_that_is_not_there_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    item = {"video_id": "a", "question": "?", "gt": "yes", "response": "no"}
    (tmp_path / "before/results.json").write_text(json.dumps([item]))
    (tmp_path / "before/recipe.json").write_text('{"frames": {"nframes": 8}}')
    with pytest.raises(ProblemError, match="RESULTS_FOLDER"):
        compare(tmp_path / "before", tmp_path / "after")


def test_other_questions_are_refused(tmp_path: Path) -> None:
    a = folder(tmp_path / "a", items([1, 0, 1]))
    other = items([1, 0, 1])
    for name, changed in {"fewer": other[:2], "gt": [*other[:2], judged({**other[2], "gt": "no"})]}.items():
        with pytest.raises(ProblemError, match="COMPARISON_UNEQUAL"):
            compare(a, folder(tmp_path / name, changed))
    with pytest.raises(ProblemError, match="COMPARISON_UNEQUAL"):
        compare(a, folder(tmp_path / "twice", [*other, other[0]]))


def test_results_without_ids_are_paired_by_video_and_question(tmp_path: Path) -> None:
    plain = [
        [{key: item[key] for key in ("video_id", "question", "gt", "response")} for item in items(right)]
        for right in ([1, 0, 0], [1, 1, 0])
    ]
    found = compare(folder(tmp_path / "a", plain[0]), folder(tmp_path / "b", list(reversed(plain[1]))))
    assert (found.whole.fixed, found.whole.broken) == (1, 0)


def test_answers_of_cosmos_reason1_are_scored_by_the_same_rules(tmp_path: Path) -> None:
    def answered(letter: str, said: str) -> dict[str, Any]:
        prompt = f"Which? (A) red (B) blue {letter}"
        return {
            "datasource": "robovqa",
            "video_id": "v1",
            "prompt": prompt,
            "correct_answer": letter,
            "answer": said,
        } | {
            "full_response": f"<think>hm</think><answer>{said}</answer>",
            "is_correct": False,
        }

    place = tmp_path / "results/model/reasoning/robovqa"
    place.mkdir(parents=True)
    (place / "v1.json").write_text(json.dumps([answered("A", "A"), answered("B", "A"), answered("B", "(B)")]))
    (place / "v2.json").write_text(json.dumps([answered("A", "none")]))
    command = [sys.executable, str(SKILL_ROOT / "scripts/score_results.py"), str(tmp_path / "results"), "--json"]
    done = run_here([*command, "--out", str(tmp_path / "out")], cwd=tmp_path)
    found = json.loads(done.stdout)
    metrics = found["data"]["metrics"]
    assert (metrics["n"], metrics["correct"], metrics["parse_status"]["unparsed"]) == (3, 2, 1)
    assert [problem["code"] for problem in found["problems"]] == ["RESULTS_TWICE"]
    assert json.loads((tmp_path / "out/metrics.json").read_text()) == metrics
    again = run_here([*command, "--out", str(tmp_path / "out")], cwd=tmp_path)
    assert again.returncode == 3 and "OUTPUT_EXISTS" in again.stdout
    same = compare(tmp_path / "results", tmp_path / "out")
    assert (same.whole.fixed, same.whole.broken, same.whole.n) == (0, 0, 3)


def test_results_below_a_subfolder_are_found_with_their_recipe(tmp_path: Path) -> None:
    """Four videos with one question are four samples, wherever their results.json lies."""
    one = [{**item, "sample_id": "", "question": "Is it open? yes or no"} for item in items([1, 0, 1, 1])]
    folder(tmp_path / "a/run1", one, RECIPE)
    folder(tmp_path / "b/run2/shard_0", one[:2], RECIPE)
    folder(tmp_path / "b/run2/shard_1", one[2:], RECIPE)
    for place in (tmp_path / "a", tmp_path / "b"):
        assert score(read_evaluation(place)[0])["correct"] == 3 and len(read_evaluation(place)[0]) == 4
        assert len(read_dataset(place, "k0")[0]) == 4
    same = compare(tmp_path / "a", tmp_path / "b")
    assert (same.whole.n, same.whole.n_videos, same.whole.fixed, same.problems) == (4, 4, 0, [])
    (tmp_path / "b/run2/shard_1/recipe.json").write_text(json.dumps({**RECIPE, "frames": {"nframes": 9}}))
    with pytest.raises(ProblemError, match="COMPARISON_UNEQUAL"):
        compare(tmp_path / "a", tmp_path / "b")
    folder(tmp_path / "a/run3", one, RECIPE)
    with pytest.raises(ProblemError, match="RESULTS_FOLDER"):
        read_evaluation(tmp_path / "a")


def test_answers_in_a_file_of_several_videos_are_told_apart(tmp_path: Path) -> None:
    answers = [
        {"video_id": f"v{at}", "prompt": "Open?", "correct_answer": "yes", "full_response": "yes"} for at in "1234"
    ]
    (tmp_path / "model").mkdir()
    (tmp_path / "model/answers.json").write_text(json.dumps([*answers, answers[0]]))
    (tmp_path / "model/folder.json").mkdir()
    found, problems = read_evaluation(tmp_path)
    assert [item["video_id"] for item in found] == ["v1", "v2", "v3", "v4"]
    assert len({item["sample_id"] for item in found}) == 4 and [each.code for each in problems] == ["RESULTS_TWICE"]
    assert [item["correct"] for item in read_evaluation(tmp_path / "model/answers.json")[0]] == [True] * 5


def test_answers_of_one_question_in_two_shards_are_told(tmp_path: Path) -> None:
    for shard in ("shard_0", "shard_1"):
        folder(tmp_path / shard, items([1, 0]))
    found, problems = read_evaluation(tmp_path)
    assert len(found) == 4 and [problem.code for problem in problems] == ["RESULTS_TWICE"]
    assert "2 of 4 answers" in problems[0].message and read_evaluation(tmp_path / "shard_0")[1] == []


@pytest.mark.parametrize("name", ["report.html", "metrics.json", "recipe.json", "metrics.jsonl"])
def test_another_file_of_an_evaluation_names_its_run_folder(tmp_path: Path, name: str) -> None:
    run = folder(tmp_path / "run", items([1, 0]), RECIPE)
    (run / name).write_text((run / name).read_text() if (run / name).is_file() else "<html></html>")
    command = [sys.executable, str(SKILL_ROOT / "scripts/compare.py"), str(run), str(run / name)]
    refused = run_here(command, cwd=tmp_path)
    assert refused.returncode == 3 and f"give the run folder: {run}" in refused.stderr


def test_scores_by_other_rules_for_answers_compare(tmp_path: Path) -> None:
    """Both sides are judged again, by the present rules."""
    recipes = [{**RECIPE, "scoring": {"answer_rules": rules, "task_type": ""}} for rules in ("v1", "v2")]
    a, b = (folder(tmp_path / name, items([1, 0]), recipe) for name, recipe in zip("ab", recipes, strict=True))
    assert compare(a, b).whole.n == 2


def test_directions_are_compared_as_directions(tmp_path: Path) -> None:
    raw = {"sample_id": "a", "video_id": "v", "question": "Where?", "gt": "left", "response": "It turns left."}
    place = folder(tmp_path / "a", [judged(raw, "its_directionality")])
    assert [item["correct"] for item in read_evaluation(place)[0]] == [True]


def test_annotations_are_no_results(tmp_path: Path) -> None:
    """A folder of any JSON lists looks like cosmos-reason1's answers by video."""
    (tmp_path / "annotations.json").write_text(json.dumps([{"id": "a", "video": "a.mp4", "conversations": []}] * 3))
    with pytest.raises(ProblemError, match="none of its 3 elements has a response or a gt"):
        read_evaluation(tmp_path)


def test_the_script_writes_a_page_with_the_frames_of_what_changed(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", frames=24)
    video = str(clip).replace("clip", "cli{}")
    before, after = items([1, 0] * 20, kinds=2, video=video), items([0, 1] * 20, kinds=2, video=video)
    for item in (*before, *after):
        item["video_id"] = str(clip) if item["sample_id"] in ("q0", "q1") else item["video_id"]
    after[1]["response"] = "<script>alert(1)</script> Yes"
    a, b = folder(tmp_path / "a", before, RECIPE), folder(tmp_path / "b", after, RECIPE)
    command = [
        sys.executable,
        str(SKILL_ROOT / "scripts/compare.py"),
        str(a),
        str(b),
        "--html",
        str(tmp_path / "c.html"),
    ]
    done = run_here([*command, "--json"], cwd=tmp_path)
    data = json.loads(done.stdout)["data"]
    assert done.returncode == 0, done.stderr
    assert data["verdict"] == "no significant difference"
    assert [each["verdict"] for each in data["slices"]] == ["worse", "better"]
    assert data["samples"]["broken"][0] == "q0" and len(data["samples"]["fixed"]) == 20
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert text.count("data:image/jpeg;base64") == 8 and "<script>alert" not in text
    assert '<div class="q">Is it open?' in text, "no empty line where the video's tag was"
    broken, fixed = text.split("Broken (20)")[1].split("Fixed (20)")
    assert broken.split("after</span>")[1].startswith('<div class="wrong">')
    assert fixed.split("after</span>")[1].startswith('<div class="truth">')
    assert "worse" in comparison_text(compare(a, b)) and "POSTER" not in comparison_page(compare(a, b))
    only = [item for item in after if item["kind"] == "k0"], [item for item in before if item["kind"] == "k0"]
    better, worse = (folder(tmp_path / name, found) for name, found in zip("xy", reversed(only), strict=True))
    command[2:] = [str(better), str(worse), "--fail-if-worse"]
    failed = run_here(command, cwd=tmp_path)
    assert failed.returncode == 3 and "COMPARISON_WORSE" in failed.stderr and failed.stdout.startswith("worse: 100.0 %")
