"""Writes the demo's video-QA set: H.264 clips and LLaVA annotations, split into what is learned and what is tested."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from demo.questions import Question, questions_about
from demo.scenes import DIAGONAL, EVENTS, Scene, draw_scene, render
from vidqa.core.files import remove, write_json, write_text
from vidqa.video.encode import write_h264

# What is learned from: crossings twice, because four directions take longest to learn.
TRAIN_EVENTS = ("cross", *EVENTS)
EVAL_CLIPS_PER_EVENT = 24
# The weakness on purpose: nothing moves diagonally in the training set; as many clips as of each event do in the sets
# that are measured on, and this share of the pool, from which the loop takes new samples.
DIAGONAL_POOL_SHARE = 0.05


@dataclass(frozen=True)
class Clip:
    name: str
    scene: Scene
    questions: tuple[Question, ...]


def train_clips(count: int, seed: int) -> list[Clip]:
    """`count` clips of TRAIN_EVENTS in turn."""
    rng = np.random.default_rng([seed, 1])
    scenes = [draw_scene(TRAIN_EVENTS[i % len(TRAIN_EVENTS)], i // len(TRAIN_EVENTS), rng) for i in range(count)]
    return _shuffled_clips("train", scenes, rng)


def eval_clips(seed: int, per_event: int = EVAL_CLIPS_PER_EVENT) -> list[Clip]:
    """Other clips: `per_event` of each event, and as many diagonal crossings, which the training set lacks."""
    return _measured_clips("eval", per_event, np.random.default_rng([seed, 2]))


def selection_clips(seed: int, per_event: int = EVAL_CLIPS_PER_EVENT) -> list[Clip]:
    """The selection set of the loop, as large as the evaluation set, which stays out of its decisions."""
    return _measured_clips("selection", per_event, np.random.default_rng([seed, 3]))


def _measured_clips(split: str, per_event: int, rng: np.random.Generator) -> list[Clip]:
    scenes = [draw_scene(event, i, rng) for event in EVENTS for i in range(per_event)]
    scenes += [draw_scene("cross", i, rng, tuple(DIAGONAL)) for i in range(per_event)]
    return _shuffled_clips(split, scenes, rng)


def pool_clips(count: int, seed: int) -> list[Clip]:
    """`count` clips like the training set's, a few of which move diagonally."""
    rng = np.random.default_rng([seed, 4])
    diagonal = round(count * DIAGONAL_POOL_SHARE)
    scenes = [draw_scene("cross", i, rng, tuple(DIAGONAL)) for i in range(diagonal)]
    others = range(count - diagonal)
    scenes += [draw_scene(TRAIN_EVENTS[i % len(TRAIN_EVENTS)], i // len(TRAIN_EVENTS), rng) for i in others]
    return _shuffled_clips("pool", scenes, rng)


def _shuffled_clips(split: str, scenes: list[Scene], rng: np.random.Generator) -> list[Clip]:
    """Clips in random order, so that a file's name says nothing about what it shows."""
    order = [scenes[i] for i in rng.permutation(len(scenes))]
    return [Clip(f"{split}_{i:05d}", scene, tuple(questions_about(scene))) for i, scene in enumerate(order)]


def write_demo_set(
    folder: Path, train_count: int, seed: int = 0, pool_count: int = 0, per_event: int = EVAL_CLIPS_PER_EVENT
) -> dict[str, int]:
    """Write `folder`/train and `folder`/eval anew, each an annotations.json and videos/, and corpus.txt, the text that
    a tokenizer made for the set should know; with `pool_count` also selection and pool, for the loop. What is measured
    on has `per_event` clips of each event. Returns counts of questions."""
    splits = {"train": train_clips(train_count, seed), "eval": eval_clips(seed, per_event)}
    if pool_count:
        splits |= {"selection": selection_clips(seed, per_event), "pool": pool_clips(pool_count, seed)}
    counts = {}
    for split, clips in splits.items():
        remove(folder / split, owner=folder)
        counts[split] = write_split(folder / split, clips)
    questions = [question for clips in splits.values() for clip in clips for question in clip.questions]
    texts = dict.fromkeys(text for question in questions for text in (question.text, question.answer))
    write_text(folder / "corpus.txt", "".join(f"{text}\n" for text in texts))
    return counts


def write_split(folder: Path, clips: list[Clip]) -> int:
    """One annotations.json with its clips; returns the number of questions."""
    (folder / "videos").mkdir(parents=True)
    # Processes, as drawing is mostly Python: 4,000 clips in 14.2, 13.5 and 17.8 s on a 2-core x86 CPU, in turn with as
    # many threads, which took 23.7, 29.0 and 28.5 s.
    workers = min(16, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        list(pool.map(partial(_write_clip, folder / "videos"), clips, chunksize=32))
    records = [_record(clip, number, question) for clip in clips for number, question in enumerate(clip.questions)]
    write_json(folder / "annotations.json", records)
    return len(records)


def _write_clip(folder: Path, clip: Clip) -> None:
    path, rate = folder / f"{clip.name}.mp4", Fraction(clip.scene.look.fps)
    write_h264(path, render(clip.scene), rate, "ultrafast", crf=20, threads=1)  # threads cost more than they give


def _record(clip: Clip, number: int, question: Question) -> dict[str, Any]:
    """One LLaVA record."""
    return {
        "id": f"{clip.name}_q{number}",
        "video": f"videos/{clip.name}.mp4",
        "video_fps": clip.scene.look.fps,
        "kind": question.kind,
        "conversations": [
            {"from": "human", "value": f"<video>\n{question.text}"},
            {"from": "gpt", "value": question.answer},
        ],
    }
