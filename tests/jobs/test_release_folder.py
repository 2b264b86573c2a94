"""scripts/export.py: what it makes of real runs, what its card says, and what it refuses."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import torch
from engine.in_process import one_rank, train_here
from huggingface_hub import ModelCard
from programs import run_here
from safetensors.torch import load_file, save_file
from tiny_world import tiny_data, tiny_model, tiny_spec

from vidqa.core import cli
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.environment import PARENT
from vidqa.core.files import now, read_object, write_json
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.actions import export as export_program
from vidqa.engine.actions.evaluate import evaluate
from vidqa.engine.export import load_export
from vidqa.engine.rl.train import train as refine
from vidqa.jobs import records, release
from vidqa.jobs.exports import ExportSource, find, origin_of
from vidqa.jobs.platforms.processes import this_process
from vidqa.jobs.records import JobRecord
from vidqa.jobs.release import for_others, write_release
from vidqa.planning.resume_compat import weights_hash
from vidqa.spec import Layer, dump, load, resolve
from vidqa.spec.build import Request, build
from vidqa.spec.models import EvaluateSpec, TrainSpec
from vidqa.spec.parent_layers import model_layer, view_of

pytestmark = pytest.mark.filterwarnings("ignore:.*tie_word_embeddings")
CPU = torch.device("cpu")
BASE = "nvidia/Cosmos-Reason2-2B"
LORA = {
    "policy.lora.r": 4,
    "policy.lora.target_modules": ["q_proj", "v_proj", "attn.qkv", "embed_tokens"],
    "policy.lora.r_pattern": {"v_proj": 2},
    "policy.lora.use_rslora": True,
    "policy.lora.modules_to_save": ["merger.norm"],
    "train.param_dtype": "bfloat16",
}
SHORT = {"train.max_num_steps": 2, "train.epoch": 5, "train.optm_lr": 2e-2, "custom.system_prompt": "Look | closely."}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A LoRA training in bfloat16 of a model whose head is its embeddings, and a full one."""
    folder = tmp_path_factory.mktemp("handing-on")
    model, root = tiny_model(folder, tie=True), tiny_data(folder, clips=2)

    def train(name: str, options: dict[str, Any]) -> Path:
        run = folder / "outputs/train" / name
        run.mkdir(parents=True)
        spec = tiny_spec(run, model, root, {**SHORT, **options, "engine.frame_cache_dir": str(folder / "cache")})
        write_json(run / "run.json", {"schema_version": 1, "models": {"policy.model_name_or_path": str(model)}})
        return train_here(spec, run)

    card = f"---\nlicense: other\nlicense_name: nvidia-open-model-license\nbase_model: {BASE}\n---\n\n# Of the base\n"
    (model / "README.md").write_text(card)
    return SimpleNamespace(folder=folder, model=model, root=root, lora=train("lora", LORA), full=train("full", {}))


@pytest.fixture(autouse=True)
def engine_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's program runs in this process, which has imported its libraries."""

    def run(program: list[str], **_: Any) -> Any:
        return run_here([sys.executable, export_program.__file__, *program[4:]], cwd=Path.cwd())

    monkeypatch.setattr(release.subprocess, "run", run)


@pytest.fixture
def engine_process(monkeypatch: pytest.MonkeyPatch, engine_here: None) -> None:
    """The engine's process is real; it forks from one that has imported its libraries."""

    def run(program: list[str], *, env: dict[str, str], **_: Any) -> Any:
        # The parent of a fork is not this process, with which the engine's would end.
        return forked.run(program, timeout=120, env={name: env[name] for name in env.keys() - {PARENT}})

    monkeypatch.setattr(release.subprocess, "run", run)


@pytest.fixture
def copy_of(runs: SimpleNamespace, tmp_path: Path) -> Iterator[ExportSource]:
    """The LoRA run once more, to be damaged."""
    yield find(str(shutil.copytree(runs.lora, tmp_path / "outputs/train/lora", symlinks=True)))


def codes(refused: pytest.ExceptionInfo[ProblemError]) -> list[str]:
    return [problem.code for problem in refused.value.problems]


def evaluated(runs: SimpleNamespace, name: str, **model: Any) -> Path:
    """A real evaluation in a folder beside those of the trainings."""
    folder = runs.folder / "outputs/evaluate" / name
    table = {
        "dataset.annotation_path": str(runs.root / "annotations.json"),
        "dataset.media_dir": str(runs.root),
        "results_dir": str(folder),
        "vision.nframes": 4,
        "model.dtype": "float32",
        "model.max_length": 4096,
        "generation.max_tokens": 2,
        "engine.frame_cache_dir": str(runs.folder / "cache"),
        **{f"model.{key}": value for key, value in model.items()},
    }
    folder.mkdir(parents=True)
    (folder / "spec.toml").write_text(dump(resolve("evaluate", [Layer("test", table)]).spec), encoding="utf-8")
    with one_rank():
        assert evaluate(load(folder / "spec.toml", "evaluate"), RunFolder(folder)) == 0
    return folder


def test_a_merged_export_is_what_peft_merges_and_its_card_gets_the_scores_that_come(runs: SimpleNamespace) -> None:
    source, out = find(str(runs.lora)), runs.folder / "models/doors"
    made = write_release(source, out, merge=True)
    assert (made.how, made.format, made.scores) == ("written", "merged", [])
    assert made.proof["reloaded_loss"] == pytest.approx(source.facts["trainer_loss"], rel=5e-2)
    ours = load_file(out / "model.safetensors")
    theirs = load_export(source.export, runs.model, torch.bfloat16, CPU).state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    again = load_export(out, None, torch.bfloat16, CPU).state_dict()
    assert all(torch.equal(again[name], theirs[name]) for name in theirs)
    card = ModelCard.load(out / "README.md")
    assert card.data.library_name == "transformers" and card.data.pipeline_tag == "image-text-to-text"
    assert "Not evaluated" in card.text and f"{made.proof['reloaded_loss']:.6f}" in card.text
    assert read_object(runs.lora / "run.json")["data_fingerprint"] in card.text
    assert "| steps | 2 |\n| epochs | 2 |" in card.text, "max_num_steps ended the training before the spec's 5 epochs"
    assert "LoRA, r 4" in card.text and "Look | closely." in card.text and "4 frames" in card.text
    texts = [path.read_text() for path in out.iterdir() if path.suffix in (".md", ".json", ".jinja")]
    assert not any(str(runs.folder) in text for text in texts), "a path of this machine would be published"

    adapter = {"model_name": str(source.export), "enable_lora": True, "base_model_path": str(runs.model)}
    of_adapter = evaluated(runs, "after", **adapter)
    evaluated(runs, "before", model_name=str(runs.model))
    weights = (out / "model.safetensors").stat().st_mtime_ns
    found = write_release(source, out, merge=True)
    assert found.how == "unchanged" and found.proof == made.proof
    assert (out / "model.safetensors").stat().st_mtime_ns == weights
    metrics = read_object(of_adapter / "metrics.json")
    (scores,) = found.scores
    assert scores.export.metrics == metrics and scores.base is not None and scores.export.name == "data"
    low, high = (f"{100 * each:.1f}" for each in metrics["accuracy_ci95"])
    text = (out / "README.md").read_text()
    assert f"| data | {metrics['n']} | {100 * metrics['accuracy']:.1f} % [{low}, {high}] |" in text
    assert "Not evaluated" not in text


@pytest.mark.parametrize("merge", [True, False])
def test_specs_for_a_folder_for_others_see_what_its_training_saw(runs: SimpleNamespace, merge: bool) -> None:
    out = runs.folder / f"models/seen-{merge}"
    trained = write_release(find(str(runs.lora)), out, merge=merge) and find(str(runs.lora)).spec
    data = f"dataset.annotation_path={runs.folder}/data.json"
    asked = build(Request("evaluate", model=str(out), sets=(data,))).spec
    assert isinstance(asked, EvaluateSpec) and asked.vision == trained.custom.vision
    assert asked.dataset.system_prompt == trained.custom.system_prompt == "Look | closely."
    assert model_layer("inference", str(out)).table["vision.nframes"] == trained.custom.vision.nframes == 4
    other = build(Request("evaluate", model=str(out), sets=(data, "vision.fps=2"))).spec
    assert isinstance(other, EvaluateSpec) and (other.vision.nframes, other.vision.fps) == (None, 2.0)
    data = f"custom.train_dataset.annotation_path={runs.folder}/data.json"
    action = "grpo" if merge else "train"  # begins with the adapter
    refined = build(Request(action, model=str(out), sets=(data,))).spec
    assert isinstance(refined, TrainSpec) and view_of(refined) == view_of(trained)
    fresh = build(Request("train", model=str(runs.model), sets=(data,))).spec
    assert isinstance(fresh, TrainSpec) and fresh.custom.vision.nframes == 8


def test_a_full_export_is_taken_as_it_is(runs: SimpleNamespace, tmp_path: Path) -> None:
    source = find(str(runs.full / "best"))
    made = write_release(source, tmp_path / "m", merge=True)
    assert made.format == "weights" and not (tmp_path / "m/merged.json").exists()
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "m", source.export))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "trained in full" in (tmp_path / "m/README.md").read_text()


def test_a_card_says_reinforcement_learning_its_parent_and_its_rewards(runs: SimpleNamespace, tmp_path: Path) -> None:
    """A GRPO run of adapters that starts from the best export of a training, built, run and exported as a user does."""
    run = tmp_path / "outputs/grpo/refined"
    (tmp_path / "own.py").write_text("def odd(text, record, token_ids, finish_reason):\n    return token_ids[0] % 2\n")
    keys = {
        "train.train_policy.reward_function": {"single_choice": 1.0, f"{tmp_path / 'own.py'}:odd": 0.25},
        "train.train_policy.temperature": 0.9,
        "train.train_batch_per_replica": 8,
        "train.max_num_steps": 1,
        "train.param_dtype": "float32",
        "rollout.n_generation": 2,
        "rollout.max_response_length": 4,
        "engine.frame_cache_dir": str(runs.folder / "cache"),
    }
    (tmp_path / "more.json").write_text(json.dumps(keys))
    asked = Request(
        "grpo",
        profile="lora",
        parent_run=runs.full,
        roots=(("train", str(runs.root)),),
        overrides=(tmp_path / "more.json",),
    )
    run.mkdir(parents=True)
    (run / "spec.toml").write_text(dump(build(asked).spec))
    write_json(run / "run.json", {"schema_version": 1})
    with one_rank():
        assert refine(load(run / "spec.toml", "grpo"), RunFolder(run)) == 0
    origin = origin_of(source := find(str(run)))
    assert (origin.parent, origin.repository, origin.ancestor) == ("full, epoch_2", "", BASE)
    text = write_release(source, tmp_path / "m", merge=True) and (tmp_path / "m/README.md").read_text()
    card = ModelCard(text)
    assert {"reinforcement-learning", "grpo"} <= set(card.data.tags)
    assert "refined by reinforcement learning (GRPO) from the local model `epoch_2` (run full, epoch_2)" in text
    for row in (
        "method | reinforcement learning, GRPO",
        "rewards | single_choice x 1, own.py:odd x 0.25",
        "questions per step | 4",
        "completions per question | 2",
        "sampling temperature | 0.9",
        "started from | full, epoch_2",
    ):
        assert f"| {row} |" in text, row
    assert str(tmp_path) not in text and card.data.base_model == [BASE] and card.data.license == "other"
    assert read_object(source.export / "export.json")["spec"]["train.train_policy.type"] == "grpo"


def test_an_adapter_that_stays_one_names_its_base_as_the_hub_does(copy_of: ExportSource, tmp_path: Path) -> None:
    write_json(
        copy_of.run.path / "run.json", {"models": {"policy.model_name_or_path": "hf_model://nvidia/Cosmos-Reason2-8B"}}
    )
    made = write_release(copy_of, tmp_path / "m", merge=False)
    assert made.format == "adapter"
    assert read_object(made.folder / "adapter_config.json")["base_model_name_or_path"] == "nvidia/Cosmos-Reason2-8B"
    data = ModelCard.load(made.folder / "README.md").data
    assert data.base_model == ["nvidia/Cosmos-Reason2-8B"] and data["base_model_relation"] == "adapter"
    assert (data.library_name, data.license, data["license_name"]) == ("peft", "other", "nvidia-open-model-license")
    assert write_release(copy_of, tmp_path / "m", merge=False).how == "unchanged"
    with pytest.raises(ProblemError) as refused:
        write_release(copy_of, tmp_path / "m", merge=True)
    assert codes(refused) == ["OUTPUT_EXISTS"] and "as it is" in refused.value.problems[0].message


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_hub_gets_an_export_of_a_run_with_its_own_card_and_no_path(runs: SimpleNamespace, kind: str) -> None:
    run: Path = getattr(runs, kind)
    before = {path: path.read_bytes() for path in (run / "best").iterdir()}
    with for_others(run / "best", "organisation/doors") as folder:
        data = ModelCard.load(folder / "README.md").data
        texts = {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".md", ".json", ".jinja")}
        assert {path.name for path in folder.iterdir()} == {path.name for path in before}
    assert data["license_name"] == "nvidia-open-model-license"
    assert data.library_name == ("peft" if kind == "lora" else "transformers")
    assert "# organisation/doors" in texts["README.md"] and "Of the base" not in texts["README.md"]
    assert not [name for name, text in texts.items() if str(runs.folder) in text]
    if kind == "lora":  # a bare folder name would be looked up on the hub, and an adapter of BASE it is not
        assert json.loads(texts["adapter_config.json"])["base_model_name_or_path"] is None
        assert data.base_model is None and "It is not on the hub" in texts["README.md"]
    facts = json.loads(texts["export.json"])
    assert facts["made_of"]["run"] == kind and facts["weights"]["base_model"] == weights_hash(runs.model)
    assert {path: path.read_bytes() for path in (run / "best").iterdir()} == before


@pytest.mark.parametrize("there", ["file", "folder", "run"])
def test_a_folder_with_something_else_is_left_alone(runs: SimpleNamespace, tmp_path: Path, there: str) -> None:
    out = tmp_path / "out"
    if there == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / ("notes.txt" if there == "folder" else "export.json")).write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ProblemError) as refused:
        write_release(find(str(runs.lora)), out, merge=True)
    assert codes(refused) == ["OUTPUT_EXISTS"] and sorted(tmp_path.rglob("*")) == before


def test_what_a_kill_left_and_what_was_cut_off_is_made_again(runs: SimpleNamespace, tmp_path: Path) -> None:
    source, out = find(str(runs.lora)), tmp_path / "out"
    (tmp_path / ".unfinished-out").mkdir()
    (tmp_path / ".unfinished-out/model.safetensors").write_bytes(b"half")
    assert write_release(source, out, merge=True).how == "written"
    whole = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(whole[:-1000])
    assert write_release(source, out, merge=True).how == "written"
    assert (out / "model.safetensors").read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True], ids=["nothing was there", "in place of a damaged one"])
def test_a_merge_that_is_killed_leaves_nothing_under_its_name_and_nobody_at_work(
    runs: SimpleNamespace, tmp_path: Path, there: bool
) -> None:
    source, out = find(str(runs.lora)), tmp_path / "out"
    if there:
        write_release(source, out, merge=True)
        (out / "model.safetensors").write_bytes(b"damaged")
    program = [sys.executable, str(SKILL_ROOT / "scripts/export.py"), str(runs.lora), "--merge", "--out", str(out)]
    script = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while not (tmp_path / ".unfinished-out").exists():
            assert script.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        script.kill()
        script.wait()
    deadline = time.monotonic() + 30
    while workers := processes_with(str(out)):
        assert time.monotonic() < deadline, workers
        time.sleep(0.05)
    assert out.exists() == there
    assert write_release(source, out, merge=True).how == "written"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def processes_with(word: str) -> list[str]:
    """The command lines of live processes that have this word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            found += [line] * (word in line)
    return found


def _cut_off(source: ExportSource) -> None:
    path = source.export / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _lacks_one(source: ExportSource) -> None:
    path = source.export / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors.pop(next(name for name in tensors if "lora_B" in name))
    save_file(tensors, path)


def _noise(source: ExportSource) -> None:
    path = source.export / "adapter_model.safetensors"
    tensors = load_file(path)
    noise = torch.Generator().manual_seed(0)
    save_file({name: torch.randn(each.shape, generator=noise).to(each.dtype) for name, each in tensors.items()}, path)


def _facts(source: ExportSource, **changes: Any) -> None:
    write_json(source.export / "export.json", {**source.facts, **changes})


BROKEN = {
    "cut off": (_cut_off, "MODEL_BROKEN"),
    "a tensor is missing": (_lacks_one, "MODEL_BROKEN"),
    "other values": (_noise, "ENGINE_UNPROVEN"),
    "never proved": (lambda source: _facts(source, trainer_loss=None), "EXPORT_UNPROVED"),
    "unprovable": (lambda source: _facts(source, unproved="no sample could be decoded"), "EXPORT_UNPROVED"),
    "no facts": (lambda source: (source.export / "export.json").unlink(), "EXPORT_UNPROVED"),
    "no sample": (lambda source: _facts(source, proof_sample="gone"), "ENGINE_PROOF_SAMPLE"),
    "another base": (lambda source: _facts(source, weights={"base_model": "0" * 64}), "MODEL_BROKEN"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_broken_or_unproved_adapter_ends_with_its_problem(copy_of: ExportSource, tmp_path: Path, damage: str) -> None:
    break_it, code = BROKEN[damage]
    break_it(copy_of)
    with pytest.raises(ProblemError) as refused:
        write_release(find(str(copy_of.run.path)), tmp_path / "m", merge=True)
    assert codes(refused) == [code] and [path.name for path in tmp_path.iterdir()] == ["outputs"]


def test_an_export_is_found_by_run_name_and_latest(
    runs: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = find(str(runs.lora)).export
    assert export == (runs.lora / "best").resolve()
    assert find(str(export)).export == find(str(runs.lora), export.name).export == export
    monkeypatch.chdir(tmp_path)
    for name, sequence in (("full", 1), ("lora", 2)):
        facts = {"job_id": name, "run_dir": str(runs.folder / "outputs/train" / name), "sequence": sequence}
        records.write(_record(folder=str(tmp_path), **facts))
    records.write(_record(job_id="scores", run_dir=str(tmp_path), sequence=3, folder=str(tmp_path)))
    assert find("latest").export == export
    elsewhere = shutil.copytree(export, tmp_path / "alone")
    for named, which, code in (
        (str(tmp_path / "absent"), None, "EXPORT_NOT_FOUND"),
        (str(elsewhere), None, "EXPORT_NOT_FOUND"),
        (str(export), "best", "USAGE"),
        (str(runs.lora), "step_77", "SPEC_PARENT_RUN"),
    ):
        with pytest.raises(ProblemError) as refused:
            find(named, which)
        assert codes(refused) == [code]


def _record(**facts: Any) -> JobRecord:
    texts = dict.fromkeys(("action", "spec", "spec_fingerprint", "inputs_fingerprint", "model"), "a")
    launcher = this_process()
    place = {"platform": "local", "processes": 1, "created": now(), "launcher": launcher, "output_dir": "/outputs"}
    return JobRecord(**place, **texts, **facts)


def test_the_script_says_the_proof_and_what_to_do_next(
    runs: SimpleNamespace, engine_process: None, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    script = runpy.run_path(str(SKILL_ROOT / "scripts/export.py"))
    words = [str(runs.lora), "--merge", "--out", str(tmp_path / "m"), "--json"]
    assert cli.run(script["parser"], script["main"], words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["data"]["proof"].keys() == {"sample_id", "trainer_loss", "reloaded_loss"}
    assert f"upload.py {tmp_path / 'm'} --hub" in said["next"][-1]
    assert cli.run(script["parser"], script["main"], words[:-1]) == 0
    shown = capsys.readouterr().out
    assert f"trainer's loss {said['data']['proof']['trainer_loss']:.6f}" in shown and shown.startswith("unchanged")
