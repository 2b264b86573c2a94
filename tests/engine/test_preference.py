"""Training on pairs: loss and gradient against float64, packs, ranks, resuming, validation, exports, bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from clips import undecodable, write_clip
from in_process import events, one_rank, train_here
from pair_world import pair_spec, pair_world
from tiny_world import run_engine
from transformers import Qwen3VLForConditionalGeneration

from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.engine import distributed
from vidqa.engine.data.collate import PairCollator, stock_inputs
from vidqa.engine.data.frames import open_frames
from vidqa.engine.distributed import local_part
from vidqa.engine.loading.freeze import base_name
from vidqa.engine.loading.load import load_sharded
from vidqa.engine.training import reference
from vidqa.engine.training.objectives import Preference
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE
from vidqa.planning.pairs import PairSample, plan_pairs, rejecting
from vidqa.planning.samples import Sample, training_planner
from vidqa.spec import load


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return pair_world(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def plain(world: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one rank, of two epochs of two steps."""
    folder = tmp_path_factory.mktemp("plain")
    held = {"validation.enable": True, "custom.val_dataset.annotation_path": str(world[1] / "annotations.json")}
    held |= {"custom.val_dataset.media_path": str(world[1]), "validation.val_before_train": True}
    held |= {"train.ckpt.export_safetensors": True}
    return train_here(pair_spec(folder, world, **held), folder / "run")


def answer_sums(model: Any, planner: Any, pairs: list[PairSample], frames: list[Any]) -> torch.Tensor:
    """Sums of log-probabilities float64 [pairs, 2] and means [pairs, 2] by transformers, one answer at a time."""
    sums = []
    for pair, arrays in zip(pairs, frames, strict=True):
        for record in (pair.record, rejecting(pair.record)):
            encoded = planner.encode(Sample(record, pair.plans, pair.prompting, 0, 0))
            inputs = stock_inputs(planner, [encoded.token_ids], [pair.plans], [arrays], torch.device("cpu"))
            inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
            logits = model(**inputs).logits[0].double()
            at = torch.from_numpy(np.flatnonzero(encoded.supervised))
            logprobs = logits[at - 1].log_softmax(-1).gather(1, inputs["input_ids"][0, at, None])
            sums += [logprobs.sum(), logprobs.mean()]
    return torch.stack(sums).view(-1, 2, 2)


def written_out(sums: torch.Tensor, reference: torch.Tensor, beta: float, smoothing: float, weight: float) -> Any:
    """The loss of DPO in its own words: a mean over pairs."""
    total, mean = sums[..., 0], sums[..., 1]
    ratio = (total - reference).diff(dim=1).neg()[:, 0]  # right minus wrong
    right = torch.log(1 / (1 + torch.exp(-beta * ratio)))
    wrong = torch.log(1 - 1 / (1 + torch.exp(-beta * ratio)))
    return (-(1 - smoothing) * right - smoothing * wrong - weight * mean[:, 0]).mean()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("options", [(0.1, 0.0, 0.0), (0.7, 0.2, 0.3)])
def test_loss_and_gradient_are_those_of_float64(
    world: tuple[Path, Path], tmp_path: Path, share: bool, options: tuple[float, float, float]
) -> None:
    beta, smoothing, weight = options
    keys = {"engine.dpo_beta": beta, "engine.dpo_label_smoothing": smoothing, "engine.dpo_sft_weight": weight}
    spec = load(pair_spec(tmp_path, world, **keys), "train")
    planner = training_planner(spec, world[0])
    pairs, problems = plan_pairs(planner, load_records(world[1] / "annotations.json", world[1]))
    assert not problems and len(pairs) == 14
    chosen = [0, 1, 4, 12, 13]  # two about one clip, one of another, an image, text alone
    pairs = [pairs[number] for number in chosen]
    with open_frames(spec.engine, 1) as source:
        frames, _ = source.collect(source.request(pairs))
    numbers = torch.Generator().manual_seed(1)

    stock = Qwen3VLForConditionalGeneration.from_pretrained(world[0], dtype=torch.float64)
    answers = answer_sums(stock, planner, pairs, frames)
    ref = answers[..., 0].detach() + torch.randn((len(pairs), 2), generator=numbers, dtype=torch.float64)
    expected = written_out(answers, ref, *options)
    expected.backward()
    with one_rank():
        place = distributed.start(1, 1, 60.0)
        with load_sharded(world[0], spec.policy, spec.train, place, NO_RECOMPUTE) as model:
            pass
        sizes = planner.family.sizes_of(world[0]).vision
        batch = PairCollator(planner, sizes, "cpu", share=share)(range(len(pairs)), pairs, frames)
        objective = Preference(spec.engine)
        objective.reference = ref.float().flatten()
        sums = objective(model, batch)
        assert int(sums.count) == len(pairs)
        loss = sums.sum / sums.count
        loss.backward()
        assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
        theirs = {name: parameter.grad for name, parameter in stock.named_parameters()}
        for name, parameter in model.named_parameters():
            gradient = local_part(parameter.grad).double()
            assert torch.allclose(gradient, theirs[base_name(name)], atol=1e-5, rtol=1e-5), name


def test_a_prompt_stands_in_a_pack_once(world: tuple[Path, Path], tmp_path: Path) -> None:
    spec = load(pair_spec(tmp_path, world), "train")
    planner = training_planner(spec, world[0])
    pairs, _ = plan_pairs(planner, load_records(world[1] / "annotations.json", world[1]))
    sizes = planner.family.sizes_of(world[0]).vision
    for chosen, share, videos in (([0, 1], True, 1), ([0, 1], False, 2), ([0], False, 1)):
        some = [pairs[number] for number in chosen]
        blank = [[np.zeros((len(p.indices), 3, p.height, p.width), np.uint8) for p in pair.plans] for pair in some]
        batch = PairCollator(planner, sizes, "cpu", share=share)(chosen, some, blank)
        assert len(batch.visual_at_V) == videos * pairs[0].media_tokens
        assert sorted(batch.samples) == sorted(2 * n + side for n in chosen for side in (0, 1))
        assert len(batch.target_N) == sum(pair.supervised for pair in some)
        assert sum(pair.length for pair in some) <= len(batch.input_ids_T) + (videos == 1) * pairs[0].prefix + 8


def test_a_run_learns_and_says_how_far(plain: Path) -> None:
    margins, losses = events(plain, "train/reward_margin"), events(plain, "train/loss")
    assert margins[1] == pytest.approx(0, abs=1e-5) and losses[1] == pytest.approx(np.log(2), abs=1e-5)
    assert margins[4] > margins[1] and losses[4] < losses[1]
    assert {*events(plain, "val/reward_accuracy")} == {0, 2, 4}
    held = events(plain, "val/avg_loss")
    assert held[0] == pytest.approx(np.log(2), abs=1e-5) and held[4] < held[0]
    assert events(plain, "val/reward_margin")[4] > 0
    best, proof = (json.loads((plain / name).read_text()) for name in ("best.json", "best/proof.json"))
    assert best["metric"] == "val/avg_loss" and best["value"] == pytest.approx(min(held.values()))
    assert proof["reloaded_loss"] == pytest.approx(proof["trainer_loss"], rel=1e-4)


@pytest.mark.parametrize(
    "over",
    [
        {"engine.pack_tokens": 4096},
        {"engine.packing": False},
        {"engine.packing": True, "train.ckpt.enable_checkpoint": False, "engine.on_bad_sample": "quarantine"},
    ],
)
def test_packs_change_nothing(world: tuple[Path, Path], plain: Path, tmp_path: Path, over: dict[str, Any]) -> None:
    run = train_here(pair_spec(tmp_path, world, **over), tmp_path / "run")
    for name in ("train/loss", "train/reward_margin", "train/reward_accuracy"):
        assert events(run, name) == pytest.approx(events(plain, name), rel=1e-3, abs=1e-5), name


def test_two_ranks_give_the_losses_of_one(world: tuple[Path, Path], tmp_path: Path) -> None:
    """In each of them a rank has the larger part of a step, and with one pair left a rank has none."""
    alone = train_here(pair_spec(tmp_path / "a", world, **{"train.train_batch_per_replica": 6}), tmp_path / "one")
    mesh = {"train.train_batch_per_replica": 3, "policy.parallelism.dp_shard_size": 2}
    run_engine("train", pair_spec(tmp_path / "b", world, **mesh), tmp_path / "two", ranks=2)
    for name in ("train/loss", "train/reward_margin"):
        assert events(tmp_path / "two", name) == pytest.approx(events(alone, name), rel=1e-4, abs=1e-5), name
    stored = [np.load(run / reference.FILE)["sums"] for run in (alone, tmp_path / "two")]
    np.testing.assert_allclose(*stored, rtol=1e-5)


def test_a_resumed_run_keeps_its_reference(
    world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = {"train.ckpt.save_freq": 1, "train.resume": True, "policy.lora.r": 4, "policy.lora.lora_dropout": 0.0}
    spec = pair_spec(tmp_path, world, **over)
    whole = train_here(spec, tmp_path / "whole")
    run = train_here(spec, tmp_path / "run", stop_after=2)
    computed = reference._computed
    monkeypatch.setattr(reference, "_computed", lambda *_: pytest.fail("the reference is stored"))
    train_here(spec, run)
    for name in ("train/loss", "train/reward_margin"):
        assert events(run, name) == pytest.approx(events(whole, name), rel=1e-5, abs=1e-6), name
    # A damaged file is computed anew, from the weights that training began with.
    monkeypatch.setattr(reference, "_computed", computed)
    again = train_here(spec, tmp_path / "again", stop_after=2)
    (again / reference.FILE).write_bytes(b"PK")
    train_here(spec, again)
    assert events(again, "train/loss") == pytest.approx(events(whole, "train/loss"), rel=1e-5, abs=1e-6)


def test_another_model_has_another_reference(world: tuple[Path, Path], tmp_path: Path) -> None:
    spec = pair_spec(tmp_path, world, **{"train.max_num_steps": 1})
    run = train_here(spec, tmp_path / "run")
    before = np.load(run / reference.FILE)
    key, sums = str(before["key"]), before["sums"]
    train_here(pair_spec(tmp_path, world, **{"train.max_num_steps": 1, "custom.system_prompt": "Look."}), run)
    after = np.load(run / reference.FILE)
    assert str(after["key"]) != key and not np.allclose(after["sums"], sums)


def test_a_reference_has_the_adapter_that_training_began_with(world: tuple[Path, Path], tmp_path: Path) -> None:
    """Also in another run folder, under a spec that names no adapter, or the newest of the run that it resumes from."""
    drawn = {"policy.lora.r": 4, "policy.lora.lora_dropout": 0.0, "policy.lora.init_lora_weights": False}
    drawn |= {"policy.lora.target_modules": ["q_proj", "v_proj"], "train.max_num_steps": 2, "train.ckpt.save_freq": 1}
    drawn |= {"train.ckpt.export_safetensors": True}
    first = train_here(pair_spec(tmp_path / "a", world, **drawn), tmp_path / "first") / "safetensors/step_1"
    began = {**drawn, "policy.lora.lora_path": str(first)}
    run = train_here(pair_spec(tmp_path / "b", world, **began), tmp_path / "run")
    resumed = {**drawn, "train.resume": str(run / "checkpoints/step_1")}
    other = train_here(pair_spec(tmp_path / "c", world, **resumed), tmp_path / "other")
    assert events(other, "train/loss")[2] == pytest.approx(events(run, "train/loss")[2], rel=1e-5)
    np.testing.assert_allclose(*(np.load(folder / reference.FILE)["sums"] for folder in (other, run)), rtol=1e-5)
    facts = json.loads((other / "checkpoints/step_2/trainer.json").read_text())
    assert facts["spec"]["policy.lora.lora_path"] == str(first)


@pytest.mark.parametrize("changes", [{"train.seed": 7}, {"policy.lora.r": 2}])
def test_adapters_that_begin_otherwise_have_another_reference(
    world: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    lora = {"policy.lora.r": 4, "policy.lora.lora_dropout": 0.0, "policy.lora.init_lora_weights": False}
    lora |= {"train.max_num_steps": 1}
    run, keys = tmp_path / "run", set[str]()
    for over in (lora, {**lora, **changes}):
        train_here(pair_spec(tmp_path / str(len(keys)), world, **over), run)
        keys.add(str(np.load(run / reference.FILE)["key"]))
        assert events(run, "train/reward_margin")[1] == pytest.approx(0, abs=1e-4)
    assert len(keys) == 2


def test_a_pair_without_a_reference_does_not_count(world: tuple[Path, Path], tmp_path: Path) -> None:
    """Its video could not be decoded when the reference was computed."""
    objective = Preference(load(pair_spec(tmp_path, world, **{"engine.dpo_sft_weight": 0.5}), "train").engine)
    nll_N = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    model = SimpleNamespace(packed=lambda _: nll_N)
    batch = SimpleNamespace(samples=(0, 1, 2, 3), owner_N=torch.arange(4))
    objective.reference = torch.tensor([-1.5, -1.0, torch.nan, torch.nan])
    both = objective(model, batch)
    both.sum.backward()
    assert both.count == 1 and nll_N.grad[:2].abs().min() > 0 and not nll_N.grad[2:].any()
    alone = SimpleNamespace(samples=(0, 1), owner_N=torch.arange(2))
    one = objective(SimpleNamespace(packed=lambda _: nll_N[:2]), alone)
    assert one.sum == both.sum and one.metrics == both.metrics


@pytest.fixture
def rows(world: tuple[Path, Path], tmp_path: Path) -> Iterator[tuple[tuple[Path, Path], list[dict[str, Any]]]]:
    root = tmp_path / "data"
    shutil.copytree(world[1], root)
    yield (world[0], root), json.loads((root / "annotations.json").read_text())


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda row: row.pop("rejected"), "1 of 14 records have no rejected answer"),
        (lambda row: row.update(rejected=" Yes. "), "1 records have the same answer twice"),
    ],
)
def test_pairs_that_are_none_are_named(rows: Any, tmp_path: Path, change: Any, part: str) -> None:
    world, table = rows
    change(next(row for row in table if row["conversations"][-1]["value"] == "Yes."))
    (world[1] / "annotations.json").write_text(json.dumps(table))
    with pytest.raises(ProblemError) as wrong:
        train_here(pair_spec(tmp_path, world), tmp_path / "run")
    (problem,) = wrong.value.problems
    assert problem.code == "SAMPLE_ANSWERS" and part in problem.message


def test_a_video_that_cannot_be_decoded_leaves_its_pairs_out(rows: Any, tmp_path: Path) -> None:
    world, _ = rows
    file = world[1] / "videos/2.mp4"
    file.write_bytes(undecodable(write_clip(file, frames=64, fps=8, height=64)))
    over = {"engine.on_bad_sample": "quarantine", "engine.frame_cache_dir": str(tmp_path / "cache")}
    run = train_here(pair_spec(tmp_path, world, **over), tmp_path / "run")
    assert (run / "quarantine.json").is_file()
    assert events(run, "train/loss")[1] == pytest.approx(np.log(2), abs=1e-5)
