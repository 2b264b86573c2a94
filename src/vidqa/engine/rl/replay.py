"""Replay of a step of a GRPO run: rewards and gradient norm are recomputed from its recorded completions.

python scripts/launch.py grpo --spec RUN/spec.toml --verify

A step can be replayed if its initial state exists: the step after a checkpoint, or step 1 from the model folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from vidqa.core.actions import action_for
from vidqa.core.cli import note
from vidqa.core.files import read_object, remove, write_json
from vidqa.core.problem import Exit
from vidqa.core.run_folder import (
    METRICS,
    TRAINER,
    RunFolder,
    checkpoint_folder,
    rank_of,
    read_metrics,
    read_rollouts,
    rollout_file,
    rollout_files,
)
from vidqa.engine.distributed import World
from vidqa.engine.problems import ENGINE_REPLAY_MISSING, ENGINE_UNPROVEN
from vidqa.engine.rl.rollout import Group, advantages
from vidqa.engine.rl.train import Training, open_training
from vidqa.planning.requests import Result
from vidqa.spec.keys import with_values
from vidqa.spec.models import GrpoSpec

PROOF = "replay.json"
NORM = "train/grad_norm"
TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-2}  # of the gradient norm, relative
FINISH_REASONS = ("stop", "length")


def prove(spec: GrpoSpec, run: RunFolder) -> int:
    """Replay a step of the run whose folder contains `run`: the step after the checkpoint named by `train.resume`,
    else after the newest checkpoint of the run, else step 1. Writes replay.json. Raises ENGINE_REPLAY_MISSING if
    there is no such step, and ENGINE_UNPROVEN if a reward or the gradient norm differs from the recorded value.
    """
    recorded = RunFolder(run.path.parent)
    checkpoint, step = replayable(spec, recorded)
    resuming = action_for(spec).resuming
    assert resuming
    start = with_values(spec, {resuming.key: str(checkpoint) if checkpoint else False})
    with open_training(start, run) as training:
        training.world.on_main(lambda: remove(run.path / PROOF, owner=run.path))  # of an earlier proof
        groups, completions = replayed_groups(training, recorded, step)
        values = training.learn(step - 1, groups)
        facts = {
            "run": str(recorded.path),
            "checkpoint": checkpoint and checkpoint.name,
            "step": step,
            "completions": completions,
            "grad_norm": values.get(NORM),
        }
        training.world.on_main(lambda: judge(run, recorded, facts, TOLERANCE[spec.train.param_dtype]))
    return int(Exit.OK)


def replayable(spec: GrpoSpec, recorded: RunFolder) -> tuple[Path | None, int]:
    """The checkpoint to start from (None: the model folder) and the number of the step after it. Raises
    ENGINE_REPLAY_MISSING."""
    if not rollout_files(recorded.path) or not (recorded.path / METRICS).is_file():
        raise ENGINE_REPLAY_MISSING.error(recorded.path, "this is not a complete run: it has no rollouts or no metrics")
    steps = {event["step"] for event in read_metrics(recorded.path / METRICS) if NORM in event}
    folders: list[Path | None] = [checkpoint_folder(spec.train.resume)] if isinstance(spec.train.resume, str) else []
    folders = folders or [*recorded.complete(recorded.checkpoints, TRAINER)[::-1], None]
    starts = [(folder, read_object(folder / TRAINER).get("step", -1) if folder else 0) for folder in folders]
    for folder, done in starts:
        if done + 1 in steps:
            return folder, done + 1
    named = ", ".join(f"step {done + 1}" for _, done in starts)
    raise ENGINE_REPLAY_MISSING.error(recorded.path, f"it has checkpoints before {named}, but recorded none of them")


def replayed_groups(training: Training, recorded: RunFolder, step: int) -> tuple[list[Group], int]:
    """This rank's groups of a recorded step, rewarded again, and the number of completions over all ranks. Raises
    ENGINE_REPLAY_MISSING, ENGINE_UNPROVEN on every rank."""
    world = training.world
    try:
        lines = lines_of(recorded.path, world, step)
        groups, faults = replay_rewards(training, lines)
    except (KeyError, TypeError, ValueError, IndexError) as damaged:
        lines, groups, faults = [], [], [f"rank {world.rank}: invalid line: {damaged!r}"]
    everyone = world.gather((len(lines), faults))
    if differences := [fault for _, faults in everyone for fault in faults]:
        message = f"{len(differences)} differences from what the run recorded: {'; '.join(differences[:3])}"
        raise ENGINE_UNPROVEN.error(f"step {step}", message)
    completions = sum(count for count, _ in everyone)
    if not completions:
        raise ENGINE_REPLAY_MISSING.error(recorded.path, f"no completion of step {step} is recorded")
    return groups, completions


def lines_of(folder: Path, world: World, step: int) -> list[dict[str, Any]]:
    """The completions that this rank drew in a step, without those that it dropped. Raises ENGINE_REPLAY_MISSING on
    every rank if more ranks drew some of them: the gradient is then summed in another order."""
    others = [path for path in rollout_files(folder) if rank_of(path) >= world.size]
    has_step = {path.name: any(line["step"] == step for line in read_rollouts(path)) for path in others}
    if drew := [name for name, has in has_step.items() if has]:
        message = f"step {step} was taken on more ranks than {world.size}: {', '.join(drew)}"
        raise ENGINE_REPLAY_MISSING.error(folder, message)
    path = rollout_file(folder, world.rank)
    lines = read_rollouts(path) if path.is_file() else ()
    return [line for line in lines if line["step"] == step and not line.get("dropped")]


def replay_rewards(training: Training, lines: Sequence[Mapping[str, Any]]) -> tuple[list[Group], list[str]]:
    """Reward these completions again. Returns their groups, in order, and the differences from the record."""
    groups, faults = [], list[str]()
    size, divided = training.spec.rollout.n_generation, not training.policy.unbiased_advantage
    for slot, members in groupby(lines, key=lambda line: line["slot"]):
        recorded, question = list(members), training.question(slot)
        where = f"question {question.sample.record.id} (slot {slot})"
        if [line["id"] for line in recorded] != [question.sample.record.id] * size:
            faults.append(f"{where}: {len(recorded)} completions of {recorded[0]['id']!r}, {size} expected")
        elif unusable := [text for line in recorded if (text := never_drawn(training, line))]:
            faults += [f"{where}: {text}" for text in unusable]
        else:
            training.rollouts.frames(question, training.rollouts.source.request([question.sample]))
            results = (
                Result(str(slot), line["finish_reason"], tuple(line["token_ids"]), tuple(line["logprobs"]))
                for line in recorded
            )
            group = Group(question, [training.rollouts.rewarded(question, one, training.rewards) for one in results])
            groups.append(group)
            shares = advantages(group.rewards, divided=divided).tolist()
            for line, drawn, share in zip(recorded, group.drawn, shares, strict=True):
                again = {"text": drawn.completion.text, "reward": drawn.reward.total, "parts": dict(drawn.reward.parts)}
                for name, value in {**again, "advantage": share}.items():
                    if line[name] != value:
                        texts = (json.dumps(one, ensure_ascii=False)[:80] for one in (line[name], value))
                        faults.append(f"{where}: completion {line['completion']}: {name} {', replayed '.join(texts)}")
    return groups, faults


def never_drawn(training: Training, line: Mapping[str, Any]) -> str:
    """The reason why the model cannot have drawn a recorded completion; empty if it can."""
    ids, vocabulary = line["token_ids"], training.model.get_input_embeddings().num_embeddings
    if line["finish_reason"] not in FINISH_REASONS or not ids or len(ids) != len(line["logprobs"]):
        return f"{len(ids)} tokens, {len(line['logprobs'])} log-probabilities, end {line['finish_reason']!r}"
    banned = {*training.rollout_model.banned}
    odd = [token for token in ids if not 0 <= token < vocabulary or token in banned]
    return f"token {odd[0]} is never drawn" if odd else ""


def judge(run: RunFolder, recorded: RunFolder, facts: dict[str, Any], tolerance: float) -> None:
    """Write replay.json, and compare the gradient norm with that of metrics.jsonl."""
    step, norm = facts["step"], facts["grad_norm"]
    before = next(
        event[NORM] for event in read_metrics(recorded.path / METRICS) if event["step"] == step and NORM in event
    )
    agree = norm is not None and math.isclose(norm, before, rel_tol=tolerance, abs_tol=0.0)
    write_json(run.path / PROOF, {**facts, "recorded_grad_norm": before, "tolerance": tolerance, "agree": agree})
    text = f"gradient norm {norm}, {before} recorded, relative {tolerance:g} allowed"
    if not agree:
        raise ENGINE_UNPROVEN.error(f"step {step}", text)
    note(f"proved: step {step}: {facts['completions']} completions have the same rewards; {text}")
