"""Before the model: records become planned samples, the same on every rank, and plan.json says what comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.contract.environment import cache_folder
from vidqa.contract.files import write_json
from vidqa.contract.problem import Problem, ProblemError
from vidqa.contract.run_folder import RunFolder
from vidqa.dataset import fingerprint, load_records, split_by_video
from vidqa.dataset.record import Record
from vidqa.engine.distributed import World
from vidqa.engine.problems import ENGINE_NO_SAMPLES, unwritable
from vidqa.planning.problems import SAMPLE_NOTHING_LEARNED
from vidqa.planning.samples import Planner, Sample, validation_mode


@dataclass(frozen=True)
class Prepared:
    """What a run works on. `quarantined` are problems of samples that were left out."""

    train: list[Sample]
    validation: list[Sample]
    fingerprint: str
    quarantined: list[Problem]


def prepare_training(spec: Any, planner: Planner, world: World, run: RunFolder) -> Prepared:
    """Rank 0 reads, probes and plans; all ranks get the result or the problems."""

    def work() -> Prepared:
        train, validation = training_records(spec)
        longest, on_bad = spec.policy.model_max_length, spec.engine.on_bad_sample
        chosen, problems = plan_usable(train, planner, longest, on_bad)
        held, more = plan_usable(validation, planner, longest, on_bad, validation_mode(spec))
        untaught = [s for s in chosen if s.supervised == 0]
        problems += [SAMPLE_NOTHING_LEARNED.at(s.place, "no token of it is learned") for s in untaught]
        chosen = [s for s in chosen if s.supervised]
        if not chosen:
            raise ENGINE_NO_SAMPLES.error(spec.custom.train_dataset.annotation_path, "no training sample is usable")
        return Prepared(chosen, held, fingerprint([*train, *validation]), problems + more)

    return on_main(world, work)


def on_main(world: World, work: Any) -> Any:
    """Run `work` on rank 0 and share its value; its problems, and files it cannot write, are raised everywhere."""
    value, problems = None, None
    if world.is_main:
        try:
            value = work()
        except ProblemError as stopped:
            problems = stopped.problems
        except OSError as failed:
            problems = [unwritable(failed)]
    if problems := world.share(problems):
        raise ProblemError(problems)
    return world.share(value)


def training_records(spec: Any) -> tuple[list[Record], list[Record]]:
    """Training and validation records of a TrainSpec: a validation set of its own, or a part held out by video."""
    without = spec.engine.on_bad_sample == "quarantine"
    train = load_records(
        spec.custom.train_dataset.annotation_path, spec.custom.train_dataset.media_path, keep_missing=without
    )
    held_out = spec.train.train_policy.dataset.test_size
    if spec.custom.val_dataset.annotation_path:
        validation = load_records(
            spec.custom.val_dataset.annotation_path, spec.custom.val_dataset.media_path, keep_missing=without
        )
        return train, validation
    if held_out:
        return split_by_video(train, held_out, spec.train.train_policy.dataloader_seed)
    return train, []


def plan_usable(
    records: Sequence[Record], planner: Planner, longest: int, on_bad_sample: str, response_mode: str | None = None
) -> tuple[list[Sample], list[Problem]]:
    """Samples that fit `longest` tokens. With on_bad_sample "fail" any problem is raised; with "quarantine" the bad
    samples are left out and their problems returned. A sample that is too long is never cut."""
    samples, problems = planner.plan(records, response_mode)
    for sample in samples:
        if sample.length > longest:
            problems.append(sample.too_long(longest))
    if problems and on_bad_sample == "fail":
        raise ProblemError(problems)
    return [sample for sample in samples if sample.length <= longest], problems


def frame_cache(engine: Any) -> Any:
    """The frame cache that the spec's [engine] table asks for; None when it is off."""
    from vidqa.engine.batch.frame_cache import FrameCache

    if engine.frame_cache_gb == 0:
        return None
    folder = Path(engine.frame_cache_dir) if engine.frame_cache_dir else cache_folder() / "frames"
    return FrameCache(folder, int(engine.frame_cache_gb * 1024**3))


def write_plan(run: RunFolder, prepared: Prepared, facts: dict[str, Any]) -> None:
    """plan.json: samples, tokens, steps, and what was left out."""
    plan = {
        "schema_version": 1,
        "train_samples": len(prepared.train),
        "validation_samples": len(prepared.validation),
        "train_tokens_per_epoch": sum(s.length for s in prepared.train),
        "supervised_tokens_per_epoch": sum(s.supervised for s in prepared.train),
        "longest_sample_tokens": max(s.length for s in prepared.train),
        "data_fingerprint": prepared.fingerprint,
        "quarantined": [p.as_dict() for p in prepared.quarantined],
        **facts,
    }
    write_json(run.path / "plan.json", plan)
