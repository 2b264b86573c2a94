"""Planted leaks and honest clips: python benchmarks/leaks.py --out DIR

A set to protect of 60 clips; 1,000 honest clips, of which 400 come from the ten fixed cameras that half of the
protected ones come from; and copies of protected clips that were encoded again, trimmed, cropped, or cut from the same
recording. Counted: how many copies are found, how many honest clips are taken for one, and the time.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import av
import numpy as np
from ledger import Ledger, arguments, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.curation.leaks import Protected, find_leaks
from vidqa.dataset.record import MediaRef, Record
from vidqa.demo.scenes import DIAGONAL, EVENTS, STRAIGHT, draw_scene, render

WIDTH, HEIGHT, FPS, CAMERAS = 160, 120, 10, 10
WAYS = ("encoded again", "trimmed", "cropped", "overlapping segment", "named segment")


def main() -> None:
    options = arguments(__doc__).parse_args()
    honest, protected, planted = (40, 12, 4) if options.tiny else (1_000, 60, 40)
    ledger = Ledger("leaks", options)
    sets = write_sets(options.out / f"clips-{honest}", honest, protected, planted)
    started = time.perf_counter()
    found = find_leaks(sets["honest"] + sets["planted"], [Protected("kpi", sets["protected"])])
    seconds = time.perf_counter() - started
    by_clip = {leak.new: leak for leak in found}
    right = Counter(record.kind for record in sets["planted"] if record.id in by_clip)
    there = Counter(record.kind for record in sets["planted"])
    false = [record.id for record in sets["honest"] if record.id in by_clip]
    for way in WAYS:
        ledger.add({"what": way, "clips": there[way], "found": right[way]})
    ledger.add({"what": "honest", "clips": honest, "found": len(false), "seconds": seconds})
    print(table(ledger.rows))
    print("false:", [(name, by_clip[name].reason) for name in false[:10]])
    print("missed:", [record.id for record in sets["planted"] if record.id not in by_clip][:20])


def write_sets(folder: Path, honest: int, protected: int, planted: int) -> dict[str, list[Record]]:
    """Every clip is drawn longer than it is shown, so that another part of its recording can be cut out."""
    draw = np.random.default_rng(0)
    sets: dict[str, list[Record]] = {"honest": [], "protected": [], "planted": []}
    recordings = []
    for number in range(protected):
        recordings.append(recording(number, draw))
        sets["protected"].append(_record(folder / f"kpi/rec{number:03d}_part1.mp4", recordings[-1][:40], "protected"))
    for number in range(honest):
        clip = recording(number, draw) if number % 5 < 2 else render(_scene(number, draw))
        sets["honest"].append(_record(folder / f"new/h{number:04d}.mp4", clip[:40], "honest"))
    for way in WAYS:
        for number in range(planted):
            of = number % protected
            name = f"rec{of:03d}_part2" if way == "named segment" else f"{way.replace(' ', '_')}{number:03d}"
            copy, options = planted_clip(way, recordings[of], draw)
            sets["planted"].append(_record(folder / f"new/{name}.mp4", copy, way, **options))
    return sets


def _scene(number: int, draw: np.random.Generator) -> Any:
    return draw_scene(EVENTS[number % 4], number, draw, tuple(STRAIGHT | DIAGONAL))


def recording(number: int, draw: np.random.Generator) -> np.ndarray:
    """uint8 [80, H, W, 3]: of a fixed camera, or of one that is seen once, things that come and go."""
    camera = np.random.default_rng(number // 5 % CAMERAS if number % 2 else 1000 + number)
    coarse = camera.uniform(30, 200, (6, 8, 3))
    view = np.kron(coarse, np.ones((HEIGHT // 6, WIDTH // 8, 1)))
    frames = np.repeat(view[None], 80, axis=0)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    for _ in range(int(draw.integers(1, 4))):
        start, end = draw.uniform(0, 1, (2, 2)) * (HEIGHT, WIDTH)
        size, color = draw.integers(10, 28), draw.uniform(0, 255, 3)
        wave, phase = draw.uniform(0, 30), draw.uniform(0, 6)
        for at in range(80):
            y, x = start + (end - start) * at / 79 + wave * np.sin(phase + at / 6)
            frames[at][(abs(rows - y) < size) & (abs(columns - x) < size * 0.8)] = color
    noise = draw.normal(0, 3, frames.shape[:3])[..., None]
    return np.asarray((frames + noise).clip(0, 255).astype(np.uint8))


def planted_clip(way: str, whole: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, dict[str, Any]]:
    """A copy of the first 40 frames of a recording, or more of it."""
    shown = whole[:40]
    if way == "encoded again":
        return shown, {"crf": int(draw.integers(28, 36)), "size": (128, 96), "gain": draw.uniform(0.95, 1.05)}
    if way == "trimmed":
        start, length = int(draw.integers(0, 20)), int(draw.integers(12, 20))
        return shown[start : start + length], {"crf": 28}
    if way == "cropped":
        scale = draw.uniform(0.7, 0.95)
        top, left = (int(draw.uniform(0, 1 - scale) * side) for side in (HEIGHT, WIDTH))
        tall, wide = (int(side * scale) // 2 * 2 for side in (HEIGHT, WIDTH))
        return shown[:, top : top + tall, left : left + wide], {"crf": 26}
    return (whole[26:66], {"crf": 28}) if way == "overlapping segment" else (whole[40:], {"crf": 28})


def _record(
    path: Path, frames: np.ndarray, kind: str, crf: int = 20, size: tuple[int, int] | None = None, gain: float = 1.0
) -> Record:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        frames = (frames * gain).clip(0, 255).astype(np.uint8)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=FPS)
            stream.width, stream.height = size or (frames.shape[2], frames.shape[1])
            stream.pix_fmt, stream.options = "yuv420p", {"crf": str(crf), "preset": "veryfast"}
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), "rgb24")))
            container.mux(stream.encode())
    ref = MediaRef("video", path.name, str(path), size=path.stat().st_size)
    return Record(path.stem, (), (ref,), kind=kind)


if __name__ == "__main__":
    main()
