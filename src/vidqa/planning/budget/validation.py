"""Peak memory of one GPU while a training answers validation samples: the whole model lies on every GPU, in compute
precision, beside the shards of weights and Adam's moments; and one sample is read and answered at a time."""

from __future__ import annotations

from collections.abc import Sequence

from vidqa.planning.budget.answering import AnsweringSetup, Reading, answering_memory
from vidqa.planning.budget.memory import ParamCounts, TrainingSetup
from vidqa.planning.samples import Sample
from vidqa.spec.models import TrainSpec


def answered_samples(spec: TrainSpec, samples: Sequence[Sample]) -> Sequence[Sample]:
    """The validation samples that a TrainSpec's validation answers; none where it does not."""
    return samples[: spec.engine.validation_generate] if spec.validation.enable else ()


def generation_bytes(spec: TrainSpec, model: ParamCounts, setup: TrainingSetup, answered: Sequence[Sample]) -> float:
    """Bytes beside what lies there all the time; 0 where nothing is answered."""
    sizes, most = {(sample.length, sample.patches) for sample in answered}, spec.engine.validation_max_tokens
    # Where nothing is sharded, frozen weights are computed with where they lie.
    gathered = setup.compute * (model.every.trained if setup.shard == 1 else model.every.every)
    peaks = []
    for length, patches in sizes:
        answering = AnsweringSetup("transformers", setup.compute, 1, length + most, most)
        memory = answering_memory(model.sizes, 0, answering, Reading(1, length, length, patches), None)
        peaks.append(gathered + getattr(memory, memory.moment))
    return max(peaks, default=0.0)
