"""Jobs that take no time, for a loop whose scripts are the real ones: they answer, embed and train as told.

An evaluation leaves what the engine leaves (results.json, metrics.json, recipe.json), scored by the same rules; an
embedding has a vector for each kind of question, so that clips of a kind are each other's neighbours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from simulated import write_table
from tiny_world import tiny_model

from demo.clips import Clip, write_split
from vidqa import spec
from vidqa.core.files import content_hash, write_json
from vidqa.core.run_folder import QUERY_EMBEDDINGS
from vidqa.data.load import fast_row
from vidqa.evaluation.metrics import score
from vidqa.evaluation.results import judged
from vidqa.gaps.curation.rows import read_rows
from vidqa.gaps.deft.state import Cost, Where

Answers = Callable[[str, dict[str, Any]], str]  # (the model's folder, sample with question, gt and kind) -> response


def write_sets(folder: Path, **sets: list[Clip]) -> Path:
    """Sets of demo clips by name, and a tiny model."""
    for name, clips in sets.items():
        write_split(folder / name, clips)
    tiny_model(folder)
    return folder


class Jobs:
    """Takes the place of `runner.job`. `launched` are the actions, in order."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.launched: list[str] = []

    def __call__(self, action: str, spec_path: Path, where: Where) -> tuple[Path, dict[str, Any], Cost]:
        asked = spec.keys.flat(spec.load(spec_path, action))
        self.launched.append(action)
        root = asked.get("results.results_dir") or asked.get("results_dir") or asked.get("train.output_dir")
        run = Path(str(root)) / f"{action}-{content_hash(spec_path)[:8]}"
        getattr(self, action)(run, asked)
        return run, {"run_dir": str(run), "job": run.name}, Cost(seconds=1.0)

    def evaluate(self, run: Path, asked: dict[str, Any]) -> None:
        items = []
        for sample in samples(asked):
            said = self.answers(str(asked["model.model_name"]), sample)
            items.append(judged({**sample, "response": said}))
        write_json(run / "results.json", items)
        write_json(run / "metrics.json", score(items, ""))
        write_json(run / "recipe.json", {"model": {"folder": asked["model.model_name"]}, "samples": len(items)})

    def embed(self, run: Path, asked: dict[str, Any]) -> None:
        write_table(run, vectors_of(samples(asked)))
        write_table(run, vectors_of(samples(asked, "query_")), name=QUERY_EMBEDDINGS)

    def train(self, run: Path, asked: dict[str, Any]) -> None:
        rows = json.loads(Path(asked["custom.train_dataset.annotation_path"]).read_text())
        weights = run / "safetensors" / "epoch_1"
        weights.mkdir(parents=True, exist_ok=True)
        (weights / "model.safetensors").write_text(hashlib.sha256(json.dumps(rows).encode()).hexdigest())
        (weights / "config.json").write_text("{}")
        (run / "best").unlink(missing_ok=True)
        (run / "best").symlink_to(weights.relative_to(run))


def vectors_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an embedding."""
    rows = []
    for sample in found:
        if "question" not in sample:
            media = np.random.default_rng(list(sample["sample_id"].encode())).normal(size=32)
            rows.append({**sample, "media": sample["video_id"], "media_embedding": _unit(media)})
            continue
        of_kind = np.random.default_rng(list(sample["kind"].encode()))
        own = np.random.default_rng(list(sample["sample_id"].encode()))
        media = of_kind.normal(size=32) + 0.3 * own.normal(size=32)
        text = np.random.default_rng(list(sample["question"].encode())).normal(size=16)
        named = {"media": sample["video_id"], "answer": sample["gt"] or None, "problem": None}
        vectors = {"media_embedding": _unit(media), "text_embedding": _unit(text)}
        rows.append({**sample, **named, **vectors})
    return rows


def samples(asked: dict[str, Any], which: str = "") -> list[dict[str, Any]]:
    """The set of an evaluation or an embedding, as results name it; of a folder of clips there are names alone. `which`
    begins the names of the keys of a second set."""
    annotations, media = Path(asked[f"dataset.{which}annotation_path"]), asked[f"dataset.{which}media_dir"]
    if annotations.is_dir():
        return [{"sample_id": each.name, "video_id": str(each)} for each in sorted(annotations.glob("*.mp4"))]
    found = []
    for row, record in read_rows(annotations, media, need_answers=False):
        said = fast_row(row)
        found.append(
            {
                "sample_id": record.id,
                "video_id": record.media[0].path,
                "question": said.question,
                "gt": said.answer,
                "kind": said.kind,
            }
        )
    return found


def _unit(vector: np.ndarray) -> np.ndarray:
    return (vector / np.linalg.norm(vector)).astype(np.float32)
