"""Sets of real clips with questions and answers for the benchmarks: moving H.264 video with few keyframes."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

SOURCE_FPS = 24
KEYFRAME_EVERY = 240  # ten seconds, as in streaming encoders and cameras
ROAM = 128  # pixels by which the picture moves over its texture
QUESTIONS = (
    "What happens in this video?",
    "Is the person still in the room at the end?",
    "Which object was moved first?",
    "How many people can be seen?",
    "Does the vehicle turn left or right?",
    "What should the robot do next, and why?",
    "Is it safe to cross the street now?",
    "Describe how the hands hold the tool.",
)
TEXT = (
    "the person opens door slowly then walks to table and takes a cup from shelf while another vehicle turns left "
    "near crossing robot arm lifts box puts it on belt before light changes red because hand holds tool firmly yes no"
)
WORDS = TEXT.split()


@dataclass(frozen=True)
class SetShape:
    """Number of clips, their durations (seconds, spread evenly from shortest to longest) and questions for each."""

    clips: int
    seconds: tuple[float, float]
    questions: int = 1
    width: int = 640
    height: int = 448

    @property
    def name(self) -> str:
        """The name of its folder, unique to the shape."""
        shortest, longest = self.seconds
        return f"{self.clips}x{self.questions}-{shortest:g}-{longest:g}s-{self.width}x{self.height}"


def corpus() -> list[str]:
    """All text that the sets can contain, for a tokenizer."""
    return [*QUESTIONS, TEXT, f" {TEXT}"]


def write_set(folder: Path, shape: SetShape) -> Path:
    """Write annotations.json and its clips, equal on every machine. A complete folder is left unchanged."""
    if (folder / "annotations.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    lengths = generator.permutation(np.linspace(*shape.seconds, shape.clips))
    work = [(folder / f"{n}.mp4", float(s), shape.width, shape.height, n) for n, s in enumerate(lengths)]
    processes = min(len(os.sched_getaffinity(0)), shape.clips // 2)  # each takes time to start
    if processes > 1:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            for future in [pool.submit(write_moving_clip, *words) for words in work]:
                future.result()
    else:
        for words in work:
            write_moving_clip(*words)
    records = [
        _record(f"{clip}-{number}", f"{clip}.mp4", QUESTIONS[(clip + number) % len(QUESTIONS)], generator)
        for clip in range(shape.clips)
        for number in range(shape.questions)
    ]
    unfinished = folder / "annotations.json.new"
    unfinished.write_text(json.dumps(records))
    unfinished.replace(folder / "annotations.json")
    return folder


def _record(name: str, video: str, question: str, generator: np.random.Generator) -> dict[str, object]:
    answer = " ".join(generator.choice(WORDS, generator.integers(20, 60)))
    turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": answer}]
    return {"id": name, "video": video, "conversations": turns}


def write_moving_clip(path: Path, seconds: float, width: int, height: int, seed: int) -> None:
    """Write a clip of a camera that moves over a textured picture: motion vectors and residuals, as in real video."""
    generator = np.random.default_rng(seed)
    luma = _texture(generator, height + ROAM, width + ROAM)
    chroma = [_texture(generator, (height + ROAM) // 2, (width + ROAM) // 2) // 4 + 96 for _ in range(2)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(SOURCE_FPS))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.thread_count = KEYFRAME_EVERY, 1
        stream.options = {"preset": "superfast", "crf": "18", "sc_threshold": "0"}
        for number in range(max(2, round(seconds * SOURCE_FPS))):
            top = int((1 + np.sin(number / 37)) * (ROAM // 4)) * 2
            left = int((1 + np.cos(number / 53)) * (ROAM // 4)) * 2
            planes = [luma[top : top + height, left : left + width]]
            for plane in chroma:
                cut = plane[top // 2 : (top + height) // 2, left // 2 : (left + width) // 2]
                planes.append(np.ascontiguousarray(cut).reshape(-1, width))
            frame = av.VideoFrame.from_ndarray(np.concatenate(planes), format="yuv420p")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _texture(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """uint8 [height, width]: blocks of several sizes added up, so that there are edges and grain."""
    picture = np.zeros((height, width), np.float32)
    for block, strength in ((64, 60.0), (16, 30.0), (4, 12.0), (1, 4.0)):
        coarse = generator.normal(0, strength, (height // block + 1, width // block + 1)).astype(np.float32)
        picture += np.kron(coarse, np.ones((block, block), np.float32))[:height, :width]
    return (picture + 128).clip(16, 235).astype(np.uint8)
