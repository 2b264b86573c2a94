"""Gap tables from results as the field has them, each fault of the original script included."""

import json
from collections import Counter
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.evaluation.answers import RULES
from vidqa.evaluation.results import judged
from vidqa.gaps.analysis.analyze import NO_VIDEO, OTHER_TRUTH, SAME_ID, analyze
from vidqa.gaps.analysis.annotations import AMBIGUOUS, BY_NAME, OTHER_QUESTION, UNKNOWN
from vidqa.gaps.analysis.report import summary_text
from vidqa.gaps.analysis.scored_answers import Answered
from vidqa.gaps.analysis.storage import GAP_COLUMNS, SCHEMA


def annotation(name, video, question, answer, **more):
    turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": answer}]
    return {"id": name, "video": video, "conversations": turns, **more}


def result(name, response, gt="yes", question="Does it stop?", **more):
    return {"video_id": name, "response": response, "question": question, "gt": gt, **more}


@pytest.fixture
def place(tmp_path):
    """A folder with kpi/annotations.json and eval/results.json; `run` analyzes them and gives (gaps, rows)."""

    def run(annotations, results, **options):
        (tmp_path / "kpi").mkdir(exist_ok=True)
        (tmp_path / "kpi/annotations.json").write_text(json.dumps(annotations))
        files = results if isinstance(results, dict) and "results" not in results else {"eval/results.json": results}
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        found = analyze(
            str(tmp_path / options.pop("folder", "eval")),
            str(tmp_path / "gaps.parquet"),
            str(tmp_path / "kpi/annotations.json"),
            options.pop("media", str(tmp_path / "kpi")),
            **options,
        )
        return found, pq.read_table(tmp_path / "gaps.parquet").to_pylist()

    return SimpleNamespace(run=run, path=tmp_path)


def test_own_results_keep_their_verdict_as_long_as_their_ground_truth_holds(place):
    """A verdict that differs from the judge's shows whose it is."""
    item = {**judged(result("a", "No.")), "correct": True}
    metrics = {"answer_rules": RULES}
    files = {"eval/results.json": [item], "eval/metrics.json": metrics}
    assert place.run(ONE, files)[0].correct == 1
    assert place.run(ONE, files, mode="exact")[0].count == 1
    assert place.run(ONE, files, audited={"a": Answered("wrong", "yes, always")})[0].count == 1
    assert place.run(ONE, {**files, "eval/metrics.json": {}})[0].count == 1


def codes(found):
    """Codes, and of joins what the message says of them."""
    return [
        problem.message.partition(": ")[2] if problem.code == "GAPS_ANNOTATIONS" else problem.code
        for problem in found.problems
    ]


ONE = [annotation("a", "clips/a.mp4", "Does it stop?", "yes")]


def test_a_gap_has_the_prediction_and_the_full_path(place):
    found, rows = place.run(ONE, [result("a", "<think>hm</think> No, it goes on.")])
    assert rows == [
        {
            "video_id": str(place.path / "kpi/clips/a.mp4"),
            "question": "Does it stop?",
            "ground_truth": "yes",
            "sample_id": "a",
            "kind": "yes_no",
            "response": "<think>hm</think> No, it goes on.",
            "parsed_response": "no",
            "parsed_ground_truth": "yes",
            "error_type": "wrong",
            "match_mode": "normalized",
            "source_results": str(place.path / "eval/results.json"),
            "row_index": 0,
        }
    ]
    assert found.as_dict()["by_kind"] == {"yes_no": {"n": 1, "gaps": 1, "wrong": 1}}


def test_another_media_folder_than_the_evaluations_is_named(place):
    clip = place.path / "clips/a.mp4"
    clip.parent.mkdir()
    clip.touch()
    item = result(str(clip), "No.", sample_id="a")
    assert codes(place.run(ONE, [item])[0]) == [NO_VIDEO]
    assert codes(place.run(ONE, [item], media=str(place.path))[0]) == []


def test_no_gaps_gives_the_same_columns_and_types(place):
    found, rows = place.run(ONE, [result("a", "Yes.")])
    assert rows == [] and found.count == 0 and found.correct == 1
    schema = pq.read_schema(place.path / "gaps.parquet")
    assert schema.equals(SCHEMA) and tuple(schema.names) == GAP_COLUMNS
    assert GAP_COLUMNS[:3] == ("video_id", "question", "ground_truth")
    assert schema.field("kind").type == "string"


def test_every_gap_has_its_kind(place):
    """The annotation's own, else the result's, else that of the answer; in the table and in the lines beside it."""
    notes = [annotation("a", "a.mp4", "Does it stop?", "yes", kind="stops")]
    notes += [annotation(n, f"{n}.mp4", "Does it stop?", "yes") for n in "bcd"]
    lines = place.path / "gaps.jsonl"
    results = [result("a", "no"), result("b", "no", kind="turns"), result("c", "no")]
    found, rows = place.run(notes, results, jsonl=str(lines))
    assert [(row["sample_id"], row["kind"]) for row in rows] == [
        ("a", "stops"),
        ("b", "turns"),
        ("c", "yes_no"),
        ("d", "yes_no"),
    ]
    assert [json.loads(line)["kind"] for line in lines.read_text().splitlines()] == [row["kind"] for row in rows]
    assert set(found.by_kind) == {"stops", "turns", "yes_no"}


@pytest.mark.parametrize(
    ("mode", "response", "gt", "question", "error"),
    [
        ("exact", "Yes.", "yes", "q", "wrong"),
        ("exact", " YES ", "yes", "q", None),
        ("normalized", "Yes.", "yes", "q", None),
        ("normalized", "The answer is (B).", "B", "q", None),
        ("bcq", "Yes, it does", "yes", "Is it? A. yes B. no", None),
        ("bcq", "B", "yes", "Is it? A. yes B. no", "unparsed"),
        ("mcq", "the bus", "B", "Which? A. the car B. the bus", None),
        ("mcq", "A", "B", "Which? A. the car B. the bus", "wrong"),
    ],
)
def test_modes(place, mode, response, gt, question, error):
    _, rows = place.run([annotation("a", "a.mp4", question, gt)], [result("a", response, gt, question)], mode=mode)
    assert [row["error_type"] for row in rows] == ([] if error is None else [error])
    assert all(row["match_mode"] == mode for row in rows)


def test_a_ground_truth_that_is_not_of_the_mode_is_said(place):
    truth = annotation("a", "a.mp4", "What?", "a red car")
    found, rows = place.run([truth], [result("a", "The red car", "a red car", "What?")], mode="mcq")
    assert rows == [] and codes(found) == ["METRIC_OTHER_KIND"]


def test_null_responses_and_a_wrapped_list(place):
    found, rows = place.run(ONE, {"results": [result("a", None)]})
    assert [(row["error_type"], row["response"]) for row in rows] == [("empty", None)]
    assert found.as_dict()["by_error_type"]["empty"] == 1
    assert list(found.as_dict()["error_types"]) == ["empty"]
    assert "empty: nothing was generated, or the video could not be decoded" in summary_text(found, "gaps.parquet")


def test_error_types(place):
    notes = [annotation(n, f"{n}.mp4", "Does it stop?", "yes") for n in "abcde"]
    results = [
        result("a", "no"),
        result("b", "<think>The car", finish_reason="length"),
        result("c", "who knows"),
        result("d", ""),
    ]
    found, rows = place.run(notes, results)
    assert [row["error_type"] for row in rows] == ["wrong", "truncated", "unparsed", "empty", "missing"]
    assert rows[4]["response"] is None and rows[4]["row_index"] is None and rows[4]["parsed_ground_truth"] == "yes"
    assert rows[4]["video_id"].endswith("/kpi/e.mp4") and "GAPS_NO_RESULT" in codes(found)


def test_two_annotations_with_one_id_are_told_apart(place):
    notes = [annotation("a", "x.mp4", "Does it stop?", "yes"), annotation("a", "y.mp4", "Does it turn?", "no")]
    results = [result("a", "no"), result("a", "yes", "no", "Does it turn?")]
    found, rows = place.run(notes, results)
    assert [row["video_id"].rsplit("/")[-1] for row in rows] == ["x.mp4", "y.mp4"]
    assert SAME_ID in codes(found)


def test_one_id_and_one_question_about_two_videos(place):
    notes = [annotation("a", "x.mp4", "Does it stop?", "yes"), annotation("a", "y.mp4", "Does it stop?", "yes")]
    found, rows = place.run(notes, [result("a", "no"), result("a", "no")])  # nothing says which is about which video
    assert Counter(row["error_type"] for row in rows) == {"wrong": 2, "missing": 2}
    assert AMBIGUOUS in codes(found) and "2 in all" in found.problems[1].message
    full = [
        result(str(place.path / "kpi/y.mp4"), "no", sample_id="a"),
        result(str(place.path / "kpi/x.mp4"), "no", sample_id="a"),
    ]
    _, rows = place.run(notes, full)
    assert [row["video_id"].rsplit("/")[-1] for row in rows] == ["y.mp4", "x.mp4"]


@pytest.mark.parametrize("video_id", ["clips/a.mp4", "a.mp4", "a", "/elsewhere/kpi/clips/a.mp4", "./clips/a.mp4"])
def test_results_that_name_a_video_instead_of_an_id(place, video_id):
    notes = [
        annotation("one", "clips/a.mp4", "Does it stop?", "yes"),
        annotation("two", "clips/a.mp4", "Other?", "yes"),
    ]
    _, rows = place.run(notes, [result(video_id, "no")])
    assert rows[0]["sample_id"] == "one" and rows[0]["video_id"] == str(place.path / "kpi/clips/a.mp4")


CAMERAS = [
    annotation("one", "cam1/0001.mp4", "Does it stop?", "yes", kind="k1"),
    annotation("two", "cam2/0001.mp4", "Does it stop?", "no", kind="k2"),
]


def test_a_file_name_that_two_folders_hold_joins_nothing(place):
    """Rows of another program are joined where they fit one annotation, and never by their order."""
    rows_of = [result("0001.mp4", "no", "yes?"), result("/elsewhere/cam3/0001.mp4", "no", "yes?")]
    found, rows = place.run(CAMERAS, rows_of)
    assert codes(found) == [AMBIGUOUS, "GAPS_NO_RESULT"]
    assert Counter(row["error_type"] for row in rows) == {"wrong": 2, "missing": 2}
    found, rows = place.run(CAMERAS, [result("cam2/0001.mp4", "yes", "no"), result("/mnt/kpi/cam1/0001.mp4", "no")])
    assert codes(found) == [] and [row["sample_id"] for row in rows] == ["two", "one"]


def test_a_join_by_file_name_is_said_and_is_of_one_video(place):
    found, rows = place.run(CAMERAS[:1], [result("/elsewhere/0001.mp4", "no")])
    assert codes(found) == [BY_NAME] and rows[0]["sample_id"] == "one"
    both = [result("/elsewhere/a/0001.mp4", "no"), result("/elsewhere/b/0001.mp4", "no")]
    found, rows = place.run(CAMERAS[:1], both)
    assert codes(found) == [BY_NAME, AMBIGUOUS]
    assert [row["sample_id"] for row in rows] == ["one", ""]
    flat = [annotation("one", "0001.mp4", "Does it stop?", "yes")]
    assert codes(place.run(flat, both)[0]) == [BY_NAME, AMBIGUOUS]


def test_an_id_with_another_question_is_said(place):
    """Another program may number its results in another order than the annotations."""
    notes = [
        annotation("0", "a.mp4", "Does it stop?", "yes"),
        annotation("1", "b.mp4", "Does it turn?", "yes"),
        annotation("2", "c.mp4", "Does it go?", "yes"),
        annotation("3", "c.mp4", "Does it go?", "no"),
    ]
    twice = [result("c.mp4", "?", "no", "Does it go?"), result("c.mp4", "?", "yes", "Does it go?")]
    assert [row["sample_id"] for row in place.run(notes, twice)[1][:2]] == ["3", "2"]  # by their ground truth
    notes = notes[:2]
    swapped = [
        result("b.mp4", "no", question="Does it turn?", sample_id="0"),
        result("a.mp4", "no", question="Does it stop?", sample_id="1"),
    ]
    found, rows = place.run(notes, swapped)
    assert [row["video_id"].rsplit("/")[-1] for row in rows] == ["b.mp4", "a.mp4"] and codes(found) == []
    found, rows = place.run(notes, [result("x.mp4", "no", question="Is it red?", sample_id="0"), swapped[0]])
    assert rows[0]["video_id"].endswith("kpi/a.mp4") and OTHER_QUESTION in codes(found)


@pytest.mark.parametrize(
    ("response", "gt", "kind"),
    [
        ("...", "...", "text"),
        ("-", "-", "text"),
        ("B", "B", "letter"),
        ("No cars", "No cars", "text"),
        ("½", "½", "number"),
    ],
)
def test_gaps_and_scores_are_judged_alike(place, response, gt, kind):
    items = [result("a", response, gt, "What?"), result("a", "who knows", gt, "What?")]
    found, rows = place.run([annotation("a", "a.mp4", "What?", gt)], items)
    scored = [judged(item) for item in items]
    assert [item["correct"] for item in scored] == [True, False] and scored[0]["answer_kind"] == kind
    assert found.correct == sum(item["correct"] for item in scored)
    assert [(row["parsed_response"], row["parsed_ground_truth"]) for row in rows] == [
        (item["parsed_response"], item["parsed_gt"]) for item in scored if not item["correct"]
    ]


def test_a_question_around_its_medium_is_found_as_an_evaluation_writes_it(place):
    asked = ["Left:\n<video>\nIs it?", "Right <video> Is it?", "<video>Up\n Is it?", "Down Is it?\n<video>"]
    parts = [{"type": "text", "text": "In"}, {"type": "video", "video": "a.mp4"}, {"type": "text", "text": "is it?"}]
    turns = [[{"from": "human", "value": value}, {"from": "gpt", "value": "yes"}] for value in [*asked, parts]]
    notes = [{"id": str(at), "video": "a.mp4", "conversations": said} for at, said in enumerate(turns)]
    (place.path / "kpi").mkdir()
    (place.path / "kpi/a.mp4").write_bytes(b"x")
    (place.path / "kpi/annotations.json").write_text(json.dumps(notes))
    written = [record.question for record in load_records(place.path / "kpi")]
    assert written[:2] == ["Left:\nIs it?", "Right \n Is it?"]
    found, rows = place.run(notes, [result("a.mp4", "no", question=question) for question in reversed(written)])
    assert [row["sample_id"] for row in rows] == ["4", "3", "2", "1", "0"] and not codes(found)


def test_results_without_annotation_are_kept_and_said(place):
    found, rows = place.run(ONE, [result("a", "yes"), result("other.mp4", "no")])
    assert [row["video_id"] for row in rows] == [str(place.path / "kpi/other.mp4")]
    assert codes(found) == [UNKNOWN]


def test_ground_truth_comes_from_the_annotation_where_the_result_has_none(place):
    found, rows = place.run(ONE, [{"video_id": "a", "response": "no", "question": "Does it stop?"}])
    assert rows[0]["ground_truth"] == "yes"
    found, rows = place.run([annotation("a", "a.mp4", "q", "")], [result("a", "x", "", "q")])
    assert rows == [] and codes(found) == ["GAPS_NO_GROUND_TRUTH"]
    found, _ = place.run(ONE, [result("a", "no", "no")])
    assert codes(found) == [OTHER_TRUTH]


def test_several_results_files(place):
    both = {"runs/a/results.json": [result("a", "no")], "runs/b/results.json": [result("a", "yes")]}
    with pytest.raises(ProblemError) as error:
        place.run(ONE, both, folder="runs")
    assert error.value.problems[0].code == "RESULTS_FOLDER"
    assert "runs/a/results.json" in error.value.problems[0].message and "runs/b/" in error.value.problems[0].message
    found, rows = place.run(ONE, {"runs/results.json": [result("a", "no")]}, folder="runs")  # one directly in it
    assert len(rows) == 1 and found.sources == [str(place.path / "runs/results.json")]
    found, rows = place.run(ONE, both, folder="runs/b")
    assert rows == []


def test_shards_are_one_evaluation_and_repeated_samples_count_once(place):
    notes = [annotation(n, f"{n}.mp4", "Does it stop?", "yes") for n in "abc"]
    shards = {
        "runs/shard_0/results.json": [result("a", "no"), result("b", "yes")],
        "runs/shard_1/results.json": [result("c", "no"), result("a", "no"), result("b", "no")],
    }
    found, rows = place.run(notes, shards, folder="runs")
    assert [(row["sample_id"], row["source_results"][-21:], row["row_index"]) for row in rows] == [
        ("a", "/shard_0/results.json", 0),
        ("c", "/shard_1/results.json", 0),
        ("b", "/shard_1/results.json", 2),  # a second, different answer is kept
    ]
    assert codes(found) == ["RESULTS_TWICE"] and found.results == 4


def test_json_lines_beside_the_table(place):
    lines = place.path / "gaps.jsonl"
    _, rows = place.run(ONE, [result("a", "no \ud83d 速い")], jsonl=str(lines))
    assert [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()] == rows
    assert rows[0]["response"] == "no ? 速い"


def test_direct_paths_archives_and_role_content_annotations(place):
    content = [{"type": "video", "video": "/data/b.mp4"}, {"type": "text", "text": "Does it stop?"}]
    roles = [{"role": "user", "content": content}, {"role": "assistant", "content": "yes"}]
    notes = [annotation("a", "c/a.mp4", "Does it stop?", "yes"), {"id": 7, "messages": roles}]
    _, rows = place.run(notes, [result("a", "no"), result("7", "no")], media="/m/videos.tar.gz")
    assert [row["video_id"] for row in rows] == ["/m/videos.tar.gz!c/a.mp4", "/data/b.mp4"]


def test_a_root_folder_and_json_lines_annotations(place):
    (place.path / "kpi").mkdir()
    (place.path / "kpi/annotations.jsonl").write_text(json.dumps(ONE[0]) + "\n")
    (place.path / "results.json").write_text(json.dumps([result("a", "no")]))
    found = analyze(str(place.path), str(place.path / "g.parquet"), str(place.path / "kpi"))
    assert found.count == 1
    assert pq.read_table(place.path / "g.parquet")["video_id"][0].as_py() == str(place.path / "kpi/clips/a.mp4")


@pytest.mark.parametrize("part", ["", "#train[1:]"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.csv", "video,question,answer\na.mp4,Does it stop?,yes\nb.mp4,Does it stop?,yes\n"),
        ("q.jsonl", "".join(f'{{"video": "{n}.mp4", "question": "Does it stop?", "answer": "yes"}}\n' for n in "ab")),
    ],
)
def test_annotations_are_of_any_source_that_an_evaluation_reads(place, name, content, part):
    annotated = f"{place.path / name}{part}"
    for written, text in (("a.mp4", ""), ("b.mp4", ""), (name, content)):
        (place.path / written).write_text(text)
    (place.path / "results.json").write_text(json.dumps([result(load_records(annotated)[-1].id, "no")]))
    found = analyze(str(place.path), str(place.path / "g.parquet"), annotated)
    gap, *missing = pq.read_table(place.path / "g.parquet").to_pylist()
    assert (gap["video_id"], len(missing)) == (str(place.path / "b.mp4"), not part)
    assert {problem.code for problem in found.problems} <= {"GAPS_NO_RESULT"}


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ("", "RESULTS_FORMAT"),
        ("[{", "RESULTS_FORMAT"),
        ([result("a", "no"), 3], "RESULTS_FORMAT"),
        ([{"response": "x"}], "RESULTS_FORMAT"),
        ([result("a", "no", question={})], "RESULTS_FORMAT"),
    ],
)
def test_broken_results_write_nothing(place, results, code):
    with pytest.raises(ProblemError) as error:
        place.run(ONE, results)
    assert code in [problem.code for problem in error.value.problems]
    assert not (place.path / "gaps.parquet").exists()
    assert not list(place.path.glob(".gaps*"))


@pytest.mark.parametrize("annotations", [3, {"a": {}, "b": 1}, [1, 2]])
def test_broken_annotations(place, annotations):
    with pytest.raises(ProblemError) as error:
        place.run(annotations, [result("a", "no")])
    assert {problem.code for problem in error.value.problems} == {"GAPS_ANNOTATIONS"}


def test_annotations_of_another_set_are_refused(place):
    with pytest.raises(ProblemError, match="none of the 2 results belongs to an annotation"):
        place.run(ONE, [result("another", "no"), result("other", "no")])
    assert not (place.path / "gaps.parquet").exists()


def test_missing_places(place):
    (place.path / "empty").mkdir()
    for arguments, code in [
        ((str(place.path / "empty"), "g", "k"), "RESULTS_FOLDER"),
        ((str(place.path / "absent"), "g", "k"), "RESULTS_FOLDER"),
    ]:
        with pytest.raises(ProblemError) as error:
            analyze(*arguments)
        assert error.value.problems[0].code == code
    with pytest.raises(ProblemError) as error:
        place.run(ONE, {"x/results.json": []}, folder="x", jsonl="/proc/nowhere/g.jsonl")
    assert error.value.problems[0].code == "ENV_FILE_REFUSED"
    (place.path / "results.json").write_text("[]")
    with pytest.raises(ProblemError) as error:
        analyze(str(place.path / "results.json"), str(place.path / "g.parquet"), str(place.path / "none.json"))
    assert error.value.problems[0].code == "GAPS_ANNOTATIONS" and error.value.exit_code == 3


@pytest.mark.parametrize(
    ("parquet", "jsonl"),
    [
        ("results.json", None),
        ("annotations.json", None),
        ("gaps.parquet", "gaps.parquet"),
        ("gaps.parquet", "results.json"),
        ("link.json", None),
    ],
)
def test_nothing_that_was_read_or_written_is_written_over(place, parquet, jsonl):
    (place.path / "annotations.json").write_text(json.dumps(ONE))
    (place.path / "results.json").write_text(json.dumps([result("a", "no")]))
    (place.path / "link.json").symlink_to("results.json")
    before = {path: path.read_bytes() for path in place.path.iterdir()}
    lines = jsonl and str(place.path / jsonl)
    with pytest.raises(ProblemError) as error:
        analyze(str(place.path / "results.json"), str(place.path / "." / parquet), str(place.path), jsonl=lines)
    assert [problem.code for problem in error.value.problems] == ["USAGE"]
    assert {path: path.read_bytes() for path in place.path.iterdir()} == before


@pytest.mark.parametrize("address", ["moon://lake/x", "s3://"])
def test_addresses_that_nobody_can_read(place, address):
    (place.path / "results.json").write_text("[]")
    (place.path / "annotations.json").write_text("[]")
    sound = [str(place.path / name) for name in ("results.json", "gaps.parquet", "annotations.json")]
    for at in range(3):
        with pytest.raises(ProblemError) as error:
            analyze(*sound[:at], address, *sound[at + 1 :])
        assert [(p.code, p.where) for p in error.value.problems] == [("ENV_FILE_REFUSED", address)]


def test_twenty_thousand_rows_in_a_bounded_time(place):
    import time

    notes = [annotation(f"k{n}", f"c/{n // 10}.mp4", f"Does car {n} stop?", "yes") for n in range(20_000)]
    results = [result(f"k{n}", "No." if n % 3 else "Yes.", question=f"Does car {n} stop?") for n in range(20_000)]
    (place.path / "kpi").mkdir()
    start = time.process_time()
    found, _ = place.run(notes, results)
    assert found.count == 13_333
    assert time.process_time() - start < 60  # seconds; a quadratic comparison takes many minutes
