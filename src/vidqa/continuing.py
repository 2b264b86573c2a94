"""What may not change where a run goes on from a checkpoint: one rule, for preflight and for the engine.

`order` decides which samples a step takes, `weights` what the saved tensors mean. A checkpoint records both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vidqa.files import ends_of
from vidqa.spec import effective_batch

MEANING = {"order": "the order of samples", "weights": "what the saved weights mean"}


class Counted(Protocol):
    """What is asked of a planned sample (`vidqa.samples.Sample`)."""

    @property
    def length(self) -> int: ...


def order_facts(spec: Any, samples: Sequence[Counted], data_fingerprint: str) -> dict[str, Any]:
    """What decides the samples of every step of a TrainSpec, given the training samples that are used."""
    loading = spec.train.train_policy
    return {
        "data_fingerprint": data_fingerprint,
        "samples": len(samples),
        "tokens": sum(sample.length for sample in samples),
        "effective_batch": effective_batch(spec),
        "seed": loading.dataloader_seed,
        "shuffle": loading.dataloader_shuffle,
        "drop_last": loading.dataloader_drop_last,
        "share_video_prefix": spec.engine.share_video_prefix,
    }


def weights_facts(spec: Any, trained: Iterable[tuple[str, Sequence[int]]], base_model: str | None) -> dict[str, Any]:
    """What gives saved tensors their meaning: the base model (`weights_hash`), names and shapes of the parameters that
    train, and the adapters. A base model that is not known (None) is left out."""
    lora = spec.policy.lora
    named = sorted((name, list(shape)) for name, shape in trained)
    return {
        **({} if base_model is None else {"base_model": base_model}),
        "trained": hashlib.sha256(json.dumps(named).encode()).hexdigest(),
        "lora": {key: value for key, value in lora.model_dump().items() if key != "lora_dropout"} if lora else None,
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of a part of a checkpoint's facts is another now, as text. What it does not know yet counts as false."""
    pairs = [(key, before.get(key), value) for key, value in now.items()]
    return [f"{key}: {was!r} -> {value!r}" for key, was, value in pairs if _differs(was, value)]


def _differs(before: Any, now: Any) -> bool:
    return before != now and (before is not None or now is not False)


def weights_hash(folder: Path, base: Path | None = None) -> str:
    """Names the weights of a model folder (with `base`, of an adapter on it): a hash over every weight file's name,
    size, first and last MiB. Raises OSError."""
    digest = hashlib.sha256()
    for path in sorted(p for place in (folder, base) if place for p in place.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        digest.update(ends_of(path, size))
    return digest.hexdigest()
