"""Data sets of the hub become data set folders, or a problem that says why not; against a real local HTTP server."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from tiny_world import tiny_model

from tests.hub_server import COMMIT, Hub, serving
from vidqa.core.files import remove
from vidqa.core.problem import ProblemError
from vidqa.data import check_records, load_records, open_source
from vidqa.data.foreign_rows import ASK_LETTER
from vidqa.data.storage import expected_set, hub, hub_dataset, stage_set
from vidqa.evaluation.rewards import label_of, question_problems
from vidqa.jobs.job_spec import load_job_spec
from vidqa.planning.rollouts import prompt_planner
from vidqa.spec import Layer, dump, resolve

NAME = "hf_dataset://org/set"


def turns(answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Is it open?"}, {"role": "assistant", "content": answer}]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = tmp_path / "served"
    for subset in ("av", "robovqa"):
        (folder / subset / "clips").mkdir(parents=True)
        write_clip(folder / subset / "clips/one.mp4", frames=4, first_number=len(subset))
        rows = [{"video": "x/one.mp4", "conversations": turns(f"{subset} {number}")} for number in range(3)]
        (folder / f"{subset}/{subset}_understanding.json").write_text(json.dumps(rows))
    (folder / "README.md").write_text("# A set\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "PAUSES_S", (0.01,))
    monkeypatch.setattr(hub, "TIMEOUT_S", 1.0)
    with serving(folder, "dataset", "org/set") as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        yield found


def code_of(name: str) -> str:
    with pytest.raises(ProblemError) as refused:
        stage_set(name, "")
    (problem,) = refused.value.problems
    return problem.code


def test_a_subset_is_fetched_once_and_read(server: Hub) -> None:
    written = f"{NAME}#robovqa:understanding[1:]"
    before = expected_set(written, "")
    assert not [request for request in server.requests if "/resolve/" in request]
    path, media = stage_set(written, "")
    assert (path, media) == before and path.endswith(f"{COMMIT}#robovqa:understanding[1:]")
    records = load_records(path, media)
    assert [record.answer for record in records] == ["robovqa 1", "robovqa 2"]
    assert not [request for request in server.requests if "/resolve/" in request and "/av/" in request]
    fetched = len([request for request in server.requests if "/resolve/" in request and "GET" in request])
    assert stage_set(written, "") == (path, media)
    assert len([request for request in server.requests if "/resolve/" in request and "GET" in request]) == fetched
    server.refuse = 503
    assert stage_set(written, "") == (path, media)  # what is here serves when the hub does not answer
    assert code_of(f"{NAME}@{'0' * 40}#robovqa:understanding") == "STORAGE_UNREACHABLE"  # another commit does not
    assert expected_set(written, "") == before


def test_what_cannot_be_had_is_a_problem_before_anything_is_written(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code_of("hf_dataset://org/other") in ("STORAGE_DENIED", "STORAGE_NOT_FOUND")
    assert code_of("hf_dataset://nothing") == "STORAGE_NOT_FOUND" and code_of(f"{NAME}#a[") == "DATA_SPLIT"
    server.gated_to = "hf_of_another"
    assert code_of(NAME) == "STORAGE_DENIED"
    server.gated_to = None
    monkeypatch.setattr(hub_dataset, "SPARE", 1 << 60)
    assert code_of(NAME) == "ENV_DISK_SPACE"
    server.refuse = 503
    assert code_of(NAME) == "STORAGE_UNREACHABLE"
    assert not (tmp_path / "cache/datasets--org--set/snapshots").exists()


def test_a_spec_names_a_set_as_cosmos_rl_does_and_a_launch_fetches_it(server: Hub, tmp_path: Path) -> None:
    named = {"name": "org/set", "subset": "av", "split": ["understanding[:2]", "understanding[2:]"]}
    keys = {f"train.train_policy.dataset.{name}": value for name, value in named.items()}
    keys |= {"policy.model_name_or_path": str(tiny_model(tmp_path)), "custom.vision.nframes": 4}
    resolved = resolve("train", [Layer("test", {**keys, "train.output_dir": str(tmp_path / "out")})])
    address = f"{NAME}#av:understanding[:2]+understanding[2:]"
    assert resolved.spec.custom.train_dataset.annotation_path == address
    assert "SPEC_NO_EFFECT" not in {warning.code for warning in resolved.warnings}
    (tmp_path / "spec.toml").write_text(dump(resolved.spec))
    waiting = load_job_spec("train", tmp_path / "spec.toml", fetch=False)
    assert waiting.to_come and "STORAGE_TO_FETCH" in {warning.code for warning in waiting.warnings}
    fetched = load_job_spec("train", tmp_path / "spec.toml", fetch=True)
    path = fetched.resolved.custom.train_dataset.annotation_path
    assert waiting.resolved.custom.train_dataset.annotation_path == path and len(load_records(path)) == 3
    snapshot = Path(open_source(path).path)
    assert {snapshot, snapshot.parents[1] / "blobs"} <= set(fetched.reads)


RL_CARD = """---
configs:
- config_name: robovqa
  data_files:
  - split: rl
    path: robovqa/robovqa_rl_qa_pairs.json
- config_name: agibot
  data_files:
  - split: rl
    path: agibot/agibot_rl_qa_pairs.json
---
"""


def write_rl_set(folder: Path) -> None:
    """The set of Cosmos-Reason1 for reinforcement learning as it is published: clips of one subset lie in an archive,
    those of the other in a folder."""
    for name, answers in (("robovqa", "BA"), ("agibot", "AC")):
        (folder / name / "clips").mkdir(parents=True)
        rows = []
        for number, answer in enumerate(answers):
            write_clip(folder / f"{name}/clips/{number}.mp4", frames=4, first_number=number)
            choices = {"A": "pick up the cup", "B": "pour the milk", "C": "close the door"}
            pair = {"question": f"What comes next in {name}?", "index2ans": choices, "answer": answer}
            rows.append({"video": f"clips/{number}.mp4", "qa_pairs": pair if number else [pair]})
        (folder / f"{name}/{name}_rl_qa_pairs.json").write_text(json.dumps(rows))
    (folder / "README.md").write_text(RL_CARD)
    with tarfile.open(folder / "robovqa/clips.tar.gz", "w:gz") as archive:
        archive.add(folder / "robovqa/clips", "clips")
    remove(folder / "robovqa/clips", owner=folder)


@pytest.mark.parametrize(("subset", "letters"), [("robovqa", ["B", "A"]), ("agibot", ["A", "C"])])
def test_both_kinds_of_rl_subsets_become_prompts_with_label_and_reference(
    server: Hub, tmp_path: Path, subset: str, letters: list[str]
) -> None:
    """Named as Cosmos-Reason1's rl.toml does, fetched from the hub, up to what a rollout is given."""
    remove(server.folder, owner=tmp_path)
    write_rl_set(server.folder)
    keys = {"train.train_policy.dataset.name": "org/set", "train.train_policy.dataset.subset": subset}
    keys |= {"train.train_policy.dataset.split": "", "policy.model_name_or_path": str(tiny_model(tmp_path))}
    keys |= {"train.output_dir": str(tmp_path / "out"), "custom.vision.fps": 1.0}
    (tmp_path / "rl.toml").write_text(dump(resolve("grpo", [Layer("test", keys)]).spec))
    spec: Any = load_job_spec("grpo", tmp_path / "rl.toml", fetch=True).resolved
    data = spec.custom.train_dataset
    records, problems = check_records(data.annotation_path, data.media_path)
    planner = prompt_planner(spec, Path(spec.policy.model_name_or_path))
    questions, unplanned = planner.plan(records)
    assert not problems and not unplanned and not question_problems(records, ["single_choice"], balanced=True)
    assert [question.record.answer for question in questions] == [label_of(record) for record in records] == letters
    for question in questions:
        (plan,) = question.plans
        text = planner.chat.decode(planner.encode(question).token_ids)
        assert plan.tokens > 0 and text.index("What comes next") < text.index("(A) pick up the cup\n(B) pour the milk")
        assert ASK_LETTER in text and text.rstrip().endswith("assistant")  # where the answer begins
    assert not [request for request in server.requests if "/resolve/" in request and f"/{OTHER[subset]}/" in request]


OTHER = {"robovqa": "agibot", "agibot": "robovqa"}
