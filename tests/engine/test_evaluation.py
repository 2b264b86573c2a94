"""Evaluation: the processor's own inputs, answers that batching does not change, and kills that lose nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from clips import decode_frames
from forked import Started
from in_process import run_here
from logged_metrics import OF_ANSWERING
from text_encoder import write_encoder
from tiny_world import engine_command, run_engine, tiny_data, tiny_model, tiny_spec
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration
from transformers.video_utils import VideoMetadata

from vidqa.automl.goals import OF_FUNCTIONS, score_names
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import read_metrics
from vidqa.data import load_records
from vidqa.engine.answering.answers import Answer, SavedAnswers
from vidqa.engine.data.collate import stock_inputs
from vidqa.engine.data.pixels import resize_frames
from vidqa.evaluation.metrics import numbers_of
from vidqa.planning.samples import Planner, Prompting, evaluation_planner, training_planner
from vidqa.spec import Layer, dump, load, resolve
from vidqa.video.image import decode_image
from vidqa.video.probe import probe

SYSTEM = "You are a helpful assistant."


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("evaluation")
    model, root = tiny_model(folder), tiny_data(folder, images=2, texts=2)
    planner = Planner(
        model, SimpleNamespace(fps=None, nframes=5, total_pixels=None), Prompting(SYSTEM, for_generation=True)
    )
    samples, problems = planner.plan(load_records(root / "annotations.json", root))
    assert not problems
    frames = [[_frames(ref, plan) for ref, plan in zip(s.record.media, s.plans, strict=True)] for s in samples]
    (model.parent / "mine.py").write_text("def words(item):\n    return len((item['response'] or '').split())\n")
    return SimpleNamespace(folder=folder, model=model, root=root, planner=planner, samples=samples, frames=frames)


def _frames(ref: Any, plan: Any) -> np.ndarray:
    whole = decode_image(ref.path) if ref.kind == "image" else decode_frames(ref.path, None, plan.indices)
    return resize_frames(whole, plan.height, plan.width)


def test_inputs_are_those_of_the_models_own_processor(world: SimpleNamespace) -> None:
    processor = AutoProcessor.from_pretrained(world.model)
    for sample, frames in zip(world.samples, world.frames, strict=True):
        question = sample.record.question
        media = [{"type": ref.kind} for ref in sample.record.media]
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": [*media, {"type": "text", "text": question}]},
        ]
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        seen: dict[str, Any] = {}
        for ref, plan in zip(sample.record.media, sample.plans, strict=True):
            if ref.kind == "image":
                seen["images"] = [torch.from_numpy(decode_image(ref.path)[0]).permute(2, 0, 1)]
            else:
                meta = probe(ref.path)
                seen["videos"] = [torch.from_numpy(decode_frames(ref.path, None, plan.indices)).permute(0, 3, 1, 2)]
                seen["video_metadata"] = [
                    VideoMetadata(
                        total_num_frames=meta.frame_count,
                        fps=meta.source_fps,
                        frames_indices=np.array(plan.indices),
                    )
                ]
                seen["do_sample_frames"] = False
        theirs = processor(text=[text], return_tensors="pt", **seen)
        token_ids = world.planner.encode(sample).token_ids
        ours = stock_inputs(world.planner, [token_ids], [sample.plans], [frames], torch.device("cpu"))
        assert set(ours) == set(theirs.keys())
        for name in ours:
            torch.testing.assert_close(ours[name].float(), theirs[name].float(), rtol=0, atol=1e-5)


def _spec(folder: Path, world: SimpleNamespace, **over: Any) -> Path:
    table = {
        "dataset.annotation_path": str(world.root / "annotations.json"),
        "dataset.media_dir": str(world.root),
        "dataset.system_prompt": SYSTEM,
        "model.model_name": str(world.model),
        "model.dtype": "float32",
        "metrics.functions": f"{world.model.parent}/mine.py:words",
        "vision.nframes": 5,
        "generation.max_tokens": 6,
        "evaluation.batch_size": 4,
        "engine.frame_cache_dir": str(world.folder / "cache"),
        **{key.replace("__", "."): value for key, value in over.items()},
    }
    path = folder / "spec.toml"
    path.write_text(dump(resolve("evaluate", [Layer("test", table)]).spec), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(world: SimpleNamespace) -> Path:
    (encoder := world.folder / "encoder").mkdir()
    write_encoder(encoder)
    over = {f"metrics__{key}_model": str(encoder) for key in ("bertscore", "similarity")}
    spec = _spec(world.folder, world, metrics__names=["rouge", "bertscore", "similarity"], **over)
    run_engine("evaluate", spec, world.folder / "one")
    return world.folder / "one"


def _answers(run_dir: Path) -> list[dict[str, Any]]:
    return json.loads((run_dir / "results.json").read_text())


def test_results_hold_every_record_in_order(world: SimpleNamespace, finished: Path) -> None:
    items = _answers(finished)
    assert [item["sample_id"] for item in items] == [sample.record.id for sample in world.samples]
    assert all({"video_id", "response", "question", "gt", "parse_status", "finish_reason"} <= set(i) for i in items)
    metrics = json.loads((finished / "metrics.json").read_text())
    # What a goal of a search may be is known before a job: the names here, and those of the user's own scores.
    known = score_names(load(world.folder / "spec.toml", "evaluate"))
    assert {name for name in numbers_of(metrics) if not name.startswith(OF_FUNCTIONS)} < known and OF_FUNCTIONS in known
    logged = {name for row in read_metrics(finished / "metrics.jsonl") for name in row}
    assert logged - {"step", "time"} == set(OF_ANSWERING)
    assert metrics["n"] == len(items) and metrics["correct"] == sum(bool(item["correct"]) for item in items)
    assert metrics["majority_accuracy"] > 0 and "majority-class baseline" in metrics["headline"]
    text = metrics["text"]
    assert all(
        0 <= text[name] <= 1 for name in ("bertscore_precision", "bertscore_recall", "bertscore_f1", "similarity")
    )
    assert text["models"]["similarity"].endswith("encoder") and metrics["problems"] == []
    words = [item["scores"]["words"] for item in items]
    assert words == [len(item["response"].split()) for item in items]
    own = metrics["functions"]["scores"]["words"]
    assert own["n"] == len(items) and own["mean"] == pytest.approx(sum(words) / len(words), abs=1e-6)
    assert "answers scored by" in (finished / "report.html").read_text()
    scoring = json.loads((finished / "recipe.json").read_text())["scoring"]
    assert scoring["function"] == "mine.py:words" and len(scoring["sha256"]) == 64
    recipe = json.loads((finished / "recipe.json").read_text())
    assert recipe["frames"]["nframes"] == 5 and recipe["prompt"]["system_prompt"] == SYSTEM
    page = (finished / "report.html").read_text()
    assert f"takes it: {finished}</p>" in page and re.search(r" · \d+ answers in [\d.]+ s<br>", page)
    assert "BERTScore" in page and "Semantic similarity" in page
    assert "data:image/jpeg;base64" in page and "http://" not in page and "https://" not in page


def test_two_ranks_give_the_results_of_one(world: SimpleNamespace, finished: Path, tmp_path: Path) -> None:
    run_engine("evaluate", _spec(tmp_path, world, num_gpus=2), tmp_path / "run", ranks=2)
    assert _answers(tmp_path / "run") == _answers(finished)


def test_a_killed_evaluation_continues_without_losing_or_repeating(
    world: SimpleNamespace, finished: Path, tmp_path: Path
) -> None:
    spec = _spec(tmp_path, world, evaluation__batch_size=1, evaluation__skip_saved=True)
    run_dir = tmp_path / "run"
    process = _started(spec, run_dir, answers=3)
    for pid in [process.pid, *map(int, _children(process.pid))]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    before = _saved(run_dir)
    with next((run_dir / "answers").glob("*/rank-0.jsonl")).open("ab") as file:
        file.write('{"sample_id": "r9", "text": "é'.encode()[:-1])  # what a kill in the middle of a write leaves
    run_here("evaluate", spec, run_dir)
    after = [line["sample_id"] for line in _saved(run_dir)]
    assert after[: len(before)] == [line["sample_id"] for line in before]
    assert sorted(after) == sorted(sample.record.id for sample in world.samples)  # each once
    assert _answers(run_dir) == _answers(finished)


def test_answers_that_got_lost_end_an_evaluation_that_can_go_on(
    world: SimpleNamespace, finished: Path, tmp_path: Path
) -> None:
    spec = _spec(tmp_path, world, evaluation__batch_size=1, evaluation__skip_saved=True)
    run_dir = tmp_path / "run"
    process = _started(spec, run_dir, answers=2)
    os.truncate(next((run_dir / "answers").glob("*/rank-0.jsonl")), 0)
    assert process.wait(120) == 0  # torchrun's: it stopped in order
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("STOPPED", 6)
    (problem,) = json.loads((run_dir / "problems.json").read_text())
    lost = len(world.samples) - len(_saved(run_dir))
    assert problem["code"] == "ENGINE_ANSWERS_MISSING"
    assert problem["message"].startswith(f"{lost} of {len(world.samples)} answers are missing: r")
    assert not (run_dir / "metrics.json").exists()
    run_here("evaluate", spec, run_dir)
    assert _answers(run_dir) == _answers(finished)


def _started(spec: Path, run_dir: Path, answers: int, action: str = "evaluate") -> Started:
    """An evaluation, or an inference, that has given so many answers and goes on."""
    with open(os.devnull, "wb") as nowhere:
        command = engine_command(action, spec, run_dir)
        process = Started(command, stdout=nowhere, stderr=nowhere, start_new_session=True)
    deadline = time.monotonic() + 600
    while len(_saved(run_dir)) < answers:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return process


SAVED = [Answer("a", "Yes", "scored", 0, {"Yes": -0.25, "No": -1.5}), Answer("b", "naïve — 是", "length", 6)]
SAVED_BY_ID = {answer.sample_id: answer for answer in SAVED}


def test_an_answer_that_was_torn_anywhere_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = SavedAnswers(tmp_path, {"samples": 2}, 0)
    saved.append(SAVED)
    whole = saved.path.read_bytes()
    for end in range(whole.index(b"\n") + 2, len(whole)):
        saved.path.write_bytes(whole[:end])
        assert saved.read() == {"a": SAVED[0]}
        assert "rank-0.jsonl: the last line is truncated" in capsys.readouterr().err
        saved.append(SAVED[1:])
        assert saved.path.read_bytes() == whole and saved.read() == SAVED_BY_ID
    saved.path.write_bytes(b"\0" * 30 + b"\n" + whole + b"\0" * 512)  # blocks that a power cut left empty
    assert saved.read() == SAVED_BY_ID
    assert "1 lines cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"logprob": -1.0}, "unknown field `logprob`"),
        ({"tokens": None}, "Expected `int`, got `null` - at `$.tokens`"),
        ({"text": 5}, "Expected `str`, got `int` - at `$.text`"),
        ({"finish_reason": ...}, "missing required field `finish_reason`"),
        ({"sample_id": ...}, "missing required field `sample_id`"),
        ({"finish_reason": "scored"}, "`logprobs`"),
        ({"logprobs": {"Yes": -1.0}}, "`logprobs`"),
    ],
)
def test_saved_answers_with_other_fields_are_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    saved = SavedAnswers(tmp_path, {"samples": 2}, 0)
    saved.append(SAVED)
    item = {"sample_id": "c", "text": "No", "finish_reason": "stop", "tokens": 1, **change}
    with saved.path.open("a") as file:
        file.write(json.dumps({name: value for name, value in item.items() if value is not ...}) + "\n")
    with pytest.raises(ProblemError) as stopped:
        saved.read()
    (problem,) = stopped.value.problems
    assert problem.code == "RESUME_MISMATCH" and problem.where == f"{saved.path}:3" and named in problem.message


def _saved(run_dir: Path) -> list[dict[str, Any]]:
    found = []
    for path in run_dir.glob("answers/*/rank-0.jsonl"):
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def _children(parent: int) -> list[str]:
    return Path(f"/proc/{parent}/task/{parent}/children").read_text().split()


def test_a_broken_clip_is_quarantined_and_counts_as_not_answered(
    world: SimpleNamespace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tiny_data(tmp_path, clips=2, images=0, texts=0)
    (root / "videos/1.mp4").write_bytes(b"not a video")
    broken = SimpleNamespace(**{**vars(world), "root": root, "folder": tmp_path})
    spec = _spec(tmp_path, broken, engine__on_bad_sample="quarantine")
    run_here("evaluate", spec, tmp_path / "run")
    assert "left out: MEDIA_UNREADABLE at annotations.json[2]" in capfd.readouterr().err
    assert [item["response"] is None for item in _answers(tmp_path / "run")] == [False, False, True, True]
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["n"] == 4 and {p["code"] for p in metrics["quarantined"]} == {"MEDIA_UNREADABLE"}
    (warning,) = metrics["problems"]
    assert (warning["code"], warning["severity"]) == ("ENGINE_BAD_SAMPLE", "warning")
    assert warning["message"] == "2 of 4 samples were not answered: r2, r3"
    assert "set engine.on_bad_sample" not in warning["remedy"]  # which has this value already
    run_engine("evaluate", _spec(tmp_path, broken), tmp_path / "strict", check=False)
    problems = json.loads((tmp_path / "strict/problems.json").read_text())
    assert {p["code"] for p in problems} == {"MEDIA_UNREADABLE"}
    assert json.loads((tmp_path / "strict/status.json").read_text())["exit_code"] == 3


@pytest.mark.parametrize("action", ["train", "evaluate"])
def test_a_quantized_model_is_a_problem_before_anything_is_loaded(
    world: SimpleNamespace, tmp_path: Path, action: str
) -> None:
    model = shutil.copytree(world.model, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    if action == "train":
        spec, make = tiny_spec(tmp_path, model, world.root), training_planner
    else:
        spec, make = _spec(tmp_path, world, model__model_name=str(model)), evaluation_planner
    with pytest.raises(ProblemError, match="MODEL_QUANTIZED"):
        make(load(spec, action), model)


def test_validation_samples_keep_their_own_response_mode(world: SimpleNamespace) -> None:
    thought = "<think>I look at the bits.</think> Yes."
    record = load_records(world.root / "annotations.json", world.root)[0]
    record = replace(record, turns=(*record.turns[:-1], replace(record.turns[-1], parts=(thought,))))
    planner = Planner(world.model, SimpleNamespace(fps=None, nframes=4, total_pixels=None), Prompting())
    (answer,), (reasoned,) = (planner.plan([record], mode)[0] for mode in (None, "think"))
    assert reasoned.length > answer.length
    for sample in (answer, reasoned):
        assert len(planner.encode(sample).token_ids) == sample.length
    assert "bits" not in planner.chat.decode(planner.encode(answer).token_ids)
    assert "bits" in planner.chat.decode(planner.encode(reasoned).token_ids)


def test_the_native_generator_gives_the_results_of_the_reference(
    world: SimpleNamespace, finished: Path, tmp_path: Path
) -> None:
    run_here("evaluate", _spec(tmp_path, world, evaluation__generator="transformers"), tmp_path / "run")
    assert _answers(tmp_path / "run") == _answers(finished)
    stock, native = (json.loads((run / "recipe.json").read_text()) for run in (tmp_path / "run", finished))
    assert native["generation"] == {**stock["generation"], "generator": "native"}


def test_scoring_takes_the_likeliest_of_the_answers_a_question_allows(
    world: SimpleNamespace, finished: Path, tmp_path: Path
) -> None:
    run_here("evaluate", _spec(tmp_path, world, evaluation__method="score"), tmp_path / "run")
    model = Qwen3VLForConditionalGeneration.from_pretrained(world.model, dtype=torch.float32).eval()
    kinds: set[str] = set()
    for sample, frames, item, free in zip(
        world.samples, world.frames, _answers(tmp_path / "run"), _answers(finished), strict=True
    ):
        kinds.add(item["answer_kind"])
        if item["answer_kind"] == "text":
            assert item == free
            continue
        forms = {"yes_no": ["Yes yes True true", "No no False false"], "letter": ["A (A", "B (B"]}[item["answer_kind"]]
        for answer, found in zip(forms, item["answer_logprobs"].values(), strict=True):
            expected = [_logprob(model, world.planner, sample, frames, form) for form in answer.split()]
            assert found == pytest.approx(np.logaddexp.reduce(expected), abs=1e-4)
        assert list(item["answer_logprobs"]) == [answer.split()[0] for answer in forms]
        assert item["response"] == max(item["answer_logprobs"], key=item["answer_logprobs"].get)
        assert (item["parse_status"], item["finish_reason"]) == ("parsed", "scored")
    assert kinds == {"yes_no", "letter", "text"}
    scored, stock = (json.loads((run / "recipe.json").read_text()) for run in (tmp_path / "run", finished))
    assert scored["scoring"] == {**stock["scoring"], "method": "score"}


@torch.no_grad()
def _logprob(model: Any, planner: Planner, sample: Any, frames: Any, text: str) -> float:
    """Of a text as the beginning of the response, by a stock forward."""
    answer = planner.chat.tokens.core.encode(text, add_special_tokens=False).ids
    token_ids = np.concatenate([planner.encode(sample).token_ids, np.array(answer, np.int32)])
    inputs = stock_inputs(planner, [token_ids], [sample.plans], [frames], torch.device("cpu"))
    rows = model(**inputs).logits[0, -len(answer) - 1 : -1].float().log_softmax(-1)
    return rows.gather(1, torch.tensor(answer)[:, None]).sum().item()
