"""Scores against figures worked out by hand and against brute force."""

import json

import pytest

from vidqa.evaluation.metrics import metric_problems, score, task_problems
from vidqa.evaluation.results import judged


def item(gt, response, video="v", question="q", reason="stop", **more):
    task = more.pop("task", "")
    base = {"video_id": video, "question": question, "gt": gt, "response": response, "finish_reason": reason}
    return judged({**base, "sample_id": f"{video}{question}", **more}, task)


def yes_no_items():
    """3 TP, 1 FN, 1 unparsed of yes; 2 TN, 2 FP, 1 truncated of no."""
    said = [("yes", "Yes.")] * 3 + [("yes", "no"), ("yes", "hard to say")]
    said += [("no", "No")] * 2 + [("no", "Yes, it does")] * 2
    return [item(gt, text, f"v{at}") for at, (gt, text) in enumerate(said)] + [
        item("no", "<think>so", "v9", reason="length")
    ]


def test_yes_no_figures():
    found = score(yes_no_items(), text_metrics=())
    table = found["yes_no"]
    assert (table["tp"], table["fn"], table["tn"], table["fp"]) == (3, 1, 2, 2)
    assert (table["unanswered_yes"], table["unanswered_no"]) == (1, 1)
    assert found["accuracy"] == table["accuracy"] == 0.5  # 5 of 10, unanswered in the denominator
    assert table["precision"] == pytest.approx(3 / 5)
    assert table["recall"] == pytest.approx(3 / 5)
    assert table["balanced_accuracy"] == pytest.approx((3 / 5 + 2 / 5) / 2)
    assert table["f1"] == pytest.approx(2 * 3 / (5 + 5))
    assert found["accuracy_of_parsed"] == pytest.approx(5 / 8)
    assert found["parse_status"] == {"parsed": 8, "truncated": 1, "unparsed": 1, "empty": 0}
    assert found["finish_reason"] == {"length": 1, "stop": 9}


def test_confusion_has_columns_for_what_is_no_class():
    question = "Where?\nA. left\nB. right\nC. up"
    said = ["A", "B", "A or B", "E"], ["B", "B", "", "A"]
    items = [
        item(gt, text, f"{gt}{n}", question) for gt, row in zip("AB", said, strict=True) for n, text in enumerate(row)
    ]
    table = score(items, text_metrics=())["confusion"]["letter"]
    assert table["columns"] == ["A", "B", "other", "unparsed", "truncated", "empty"]
    assert table["matrix"] == [[1, 1, 1, 1, 0, 0], [1, 2, 0, 0, 0, 1]]
    assert table["per_class"]["B"] == {
        "n": 4,
        "precision": pytest.approx(2 / 3, abs=1e-6),
        "recall": 0.5,
        "f1": pytest.approx(4 / 7, abs=1e-6),
    }
    assert table["macro_f1"] == pytest.approx((2 / 6 + 4 / 7) / 2, abs=1e-6)


def test_a_class_with_the_name_of_a_further_column_is_another_one():
    said = {"empty": ["empty", "", "full of cups"], "full": ["full", "full", "empty"], "other": ["other", "", "boxes"]}
    items = [item(gt, text, f"{gt}{n}", kind="shelf") for gt, texts in said.items() for n, text in enumerate(texts)]
    table = score(items, text_metrics=())["confusion"]["shelf"]
    assert table["columns"] == ["empty", "full", "other", "other", "unparsed", "truncated", "empty"]
    assert table["matrix"] == [[1, 0, 0, 1, 0, 0, 1], [1, 2, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 1]]
    assert table["accuracy"] == pytest.approx(4 / 9, abs=1e-6)
    assert [table["per_class"][name]["recall"] for name in said] == pytest.approx([1 / 3, 2 / 3, 1 / 3], abs=1e-6)


def test_directions_of_the_its_task():
    task = "its_directionality"
    items = [
        item(gt, text, str(n), task=task)
        for n, (gt, text) in enumerate([("left", "Left."), ("right", "it turns right"), ("straight", "left or right")])
    ]
    found = score(items, task, text_metrics=())
    assert found["its_directionality"]["classes"] == ["left", "right", "straight"]
    assert found["its_directionality"]["matrix"][2] == [0, 0, 0, 0, 1, 0, 0]
    assert found["accuracy"] == pytest.approx(2 / 3, abs=1e-6)


def test_free_text_metrics():
    sacrebleu = pytest.importorskip("sacrebleu")
    truth = "the red car turns left at the crossing"
    said = ["The red car turns left at the crossing.", "the red car turns left at the big crossing", "a dog"]
    items = [item(truth, text, str(n)) for n, text in enumerate(said)]
    found = score(items, soft_f1_threshold=0.8)
    assert found["text"]["exact_match"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["text"]["soft_accuracy"] == found["soft_accuracy"] == pytest.approx(2 / 3, abs=1e-6)
    assert found["text"]["bleu"] == pytest.approx(sacrebleu.corpus_bleu(said, [[truth] * 3]).score, abs=1e-3)
    assert 0 < found["text"]["rouge_l"] < 1


@pytest.mark.parametrize(
    "gt",
    [
        "<think>There is a car, and it moves.</think><answer>the red car turns left at once</answer>",
        "It moves, I think.</think>\n\nthe red car turns left at once",
        "<answer>The answer is: the red car turns left at once</answer>",
        "**the red car turns left at once**",
    ],
)
def test_both_sides_are_read_alike(gt):
    """A right answer scores full marks whatever stands around it in the annotation; a near one scores what it is."""
    pytest.importorskip("sacrebleu")
    right = "<think>Hm.</think><answer>the red car turns left at once</answer>"
    found = score([item(gt, right, str(n)) for n in range(3)])
    table = found["text"]
    assert found["accuracy"] == table["exact_match"] == table["token_f1"] == table["rouge_l"] == 1.0
    assert table["bleu"] == pytest.approx(100)
    near = score([item(gt, "the red car turns left at")], soft_f1_threshold=0.8)
    assert near["accuracy"] == 0 and near["soft_accuracy"] == 1  # 5 of 5 and of 6 tokens


def test_a_truncated_text_earns_nothing():
    truth = "the red car turns left"
    found = score([item(truth, truth, reason="length")], text_metrics=("rouge",))
    assert found["accuracy"] == 0 and found["text"]["rouge_l"] == 0 and found["soft_accuracy"] == 0


def test_kinds_of_the_user_group_the_table():
    items = [item("yes", "yes", str(n), kind="stops") for n in range(3)] + [item("3", "4", "x", kind="count")]
    table = score(items, text_metrics=())["by_kind"]
    assert (table["stops"]["accuracy"], table["count"]["accuracy"], table["count"]["n"]) == (1.0, 0.0, 1)


def always_no():
    """Says No to everything: 20 of 23 are right."""
    return [item("no", "No.", f"v{n}") for n in range(20)] + [item("yes", "No, it does not", f"w{n}") for n in range(3)]


def test_the_majority_baseline_stands_beside_every_accuracy():
    letters = [item(gt, "B", f"l{n}", "Which? A. car B. bus", kind="vehicle") for n, gt in enumerate("ABB")]
    found = score([*always_no(), *letters], text_metrics=())
    assert found["majority_accuracy"] == pytest.approx((20 + 2) / 26, abs=1e-6)
    assert found["majority_answers"] == {"letter": "B", "yes_no": "no"}
    rows = found["by_kind"]
    assert rows["yes_no"]["majority_accuracy"] == rows["yes_no"]["accuracy"] == pytest.approx(20 / 23, abs=1e-6)
    assert rows["vehicle"]["majority_answers"] == {"letter": "B"}
    assert "95 % interval" in found["headline"] and "majority-class baseline 84.6 %" in found["headline"]


def test_a_model_that_gives_one_answer_only_is_named():
    found = score(always_no())
    assert found["one_answer"] == [
        {"kind": "yes_no", "answer": "no", "answers": 23, "expected": {"no": 20, "yes": 3}},
    ]
    (problem,) = found["problems"]
    assert (problem["code"], problem["where"], problem["severity"]) == ("METRIC_ONE_ANSWER", "yes_no", "warning")
    assert "'no' to every yes_no question" in found["headline"]
    # A kind of the user is named where the answer kind as a whole is not.
    mixed = [{**each, "kind": "doors"} for each in always_no()] + [item("yes", "Yes", "x", kind="cars")]
    assert [row["kind"] for row in score(mixed)["one_answer"]] == ["doors"]
    # One answer is right where only one is expected, and few answers say little.
    for fine in ([item("no", "No", f"v{n}") for n in range(9)], always_no()[18:22], yes_no_items()):
        assert score(fine)["one_answer"] == [] == score(fine)["problems"]


def test_metrics_that_are_not_available_are_said():
    assert [p.severity for p in metric_problems(("bertscore", "similarity"))] == ["warning", "warning"]
    problems = score([], text_metrics=("bertscore",))["problems"]
    assert [p["code"] for p in problems] == ["METRIC_UNAVAILABLE"]


def test_a_second_models_scores_are_averaged_over_free_text():
    asked = []

    def measure(answers, expected):
        asked.append((list(answers), list(expected)))
        return {"similarity": [0.25, 0.75]}

    items = [item("a red car", "the answer is a car"), item("a man", "a man"), item("yes", "yes")]
    found = score(items, text_metrics=("similarity",), measures={"similarity": measure})
    assert found["text"]["similarity"] == 0.5 and found["problems"] == []
    assert asked == [(["a car", "a man"], ["a red car", "a man"])]


@pytest.mark.parametrize("items", [[], [item("", "x")], yes_no_items(), [item(None, None)], [item("yes", None)]])
def test_every_score_is_json_and_repeatable(items):
    first, second = (json.dumps(score(items), allow_nan=False) for _ in range(2))
    assert first == second


def test_a_hundred_thousand_answers_score_in_seconds():
    import time

    items = yes_no_items() * 10_000
    start = time.process_time()
    score(items, text_metrics=())
    assert time.process_time() - start < 60  # seconds; a quadratic score takes many minutes


def test_the_task_of_directions_is_not_for_collisions():
    collisions = [("Yes", "Is there a collision?"), ("No", "Is there a collision?"), ("left", "Where?")]
    (problem,) = task_problems("task.type", "its_directionality", collisions)
    assert (problem.code, problem.severity) == ("METRIC_OTHER_KIND", "warning")
    assert "2 of 3" in problem.message and "'Yes'" in problem.message
    assert task_problems("task.type", "its_directionality", collisions[2:]) == []
    assert task_problems("task.type", "", collisions) == []
