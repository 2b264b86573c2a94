"""Planted leaks and honest clips: python benchmarks/leaks.py --out DIR

A protected set of 60 clips and 60 more with one object before a plain ground; 1,000 honest clips, of which 200
come from the ten fixed cameras of a third of the protected clips, and 400 have a plain ground; and copies of
protected clips, made in many ways. It counts the copies that are found, the honest clips that are reported as copies,
the clips reported as too plain to tell, the seconds of decoding, and those of comparing.
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
from threadpoolctl import threadpool_limits

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("src", "workflow")]

from demo.scenes import DIAGONAL, EVENTS, STRAIGHT, draw_scene, render
from vidqa.data.record import MediaRef, Record
from vidqa.gaps.curation.clip_fingerprint import fingerprints
from vidqa.gaps.curation.clip_matching import UNSURE, candidate_pairs, match_clips
from vidqa.gaps.curation.leaks import BLOCK, find_leaks

WIDTH, HEIGHT, FPS, CAMERAS = 160, 120, 10, 10
WAYS = (
    "encoded again",
    "trimmed",
    "overlapping segment",
    "named segment",
    "cropped",
    "cropped, encoded again",
    "cropped to another shape",
    "cropped and stretched",
    "plain, encoded again",
)
SHAPES = (0.5625, 0.75, 1.33)  # width by height, relative to the whole
STRETCHES = (0.8, 0.9, 1.25)


def main() -> None:
    options = arguments(__doc__).parse_args()
    honest, protected, planted = (40, 12, 4) if options.tiny else (1_000, 60, 40)
    ledger = Ledger("leaks", options)
    sets = write_sets(options.out / f"clips-{honest}", honest, protected, planted)
    ledger.add(timed(sets["honest"][: 5 * protected], sets["protected"]))
    leaks = find_leaks(sets["honest"] + sets["planted"], {"kpi": sets["protected"]})
    by_clip = {leak.new: leak for leak in sorted(leaks, key=lambda leak: leak.reason != UNSURE)}
    for kind in (*WAYS, "honest", "honest, plain ground"):
        clips = [record.id for record in sets["planted"] + sets["honest"] if record.kind == kind]
        unsure = Counter(by_clip[name].reason == UNSURE for name in clips if name in by_clip)
        ledger.add({"what": kind, "clips": len(clips), "found": unsure[False], "cannot_tell": unsure[True]})
    print(table(ledger.rows))
    mistaken = {record.id: by_clip[record.id].reason for record in sets["honest"] if record.id in by_clip}
    print("false:", [(name, why) for name, why in mistaken.items() if why != UNSURE][:10])
    print("missed:", [record.id for record in sets["planted"] if record.id not in by_clip][:40])


@threadpool_limits.wrap(limits=1)  # as in find_leaks
def timed(new: list[Record], protected: list[Record]) -> dict[str, Any]:
    """Seconds of each step for these clips, none of which is a copy."""
    before = time.perf_counter()
    ours, theirs = (
        [look for _, look in fingerprints(record.media[0] for record in records) if look]
        for records in (new, protected)
    )
    decoded, used_until = time.perf_counter(), time.process_time()
    close = 0
    for start in range(0, len(ours), BLOCK):
        block = ours[start : start + BLOCK]
        for one, other, how in candidate_pairs(block, theirs):
            match_clips(block[one], theirs[other], how)
            close += 1
    pairs, cpu = len(ours) * len(theirs), time.process_time() - used_until
    return {
        "what": "time",
        "clips": len(ours) + len(theirs),
        "pairs": pairs,
        "looked_at_closely": close,
        "decoding_s": round(decoded - before, 1),
        "comparing_s": round(time.perf_counter() - decoded, 1),
        "comparing_cpu_s": round(cpu, 1),
        "cpu_ms_a_pair": round(1000 * cpu / pairs, 2),
    }


def write_sets(folder: Path, honest: int, protected: int, planted: int) -> dict[str, list[Record]]:
    """Write all sets. Clips are drawn longer than shown, so that another part of the recording can be cut out."""
    draw = np.random.default_rng(0)
    sets: dict[str, list[Record]] = {"honest": [], "protected": [], "planted": []}
    recordings, plain = [], [render(_scene(number, draw), 0) for number in range(protected)]
    for number in range(protected):
        recordings.append(recording(number, draw))
        sets["protected"].append(_record(folder / f"kpi/rec{number:03d}_part1.mp4", recordings[-1][:40], "protected"))
        sets["protected"].append(_record(folder / f"kpi/plain{number:03d}.mp4", plain[number], "protected"))
    for number in range(honest):
        kind = "honest, plain ground" if number % 5 < 2 else "honest"
        clip = render(_scene(number, draw), 0) if number % 5 < 2 else recording(number, draw)
        sets["honest"].append(_record(folder / f"new/h{number:04d}.mp4", clip[:40], kind))
    for manner in WAYS:
        for number in range(planted):
            source = number % protected
            name = f"rec{source:03d}_part2" if manner == "named segment" else f"{manner.replace(' ', '_')}{number:03d}"
            if manner == "plain, encoded again":
                copy, options = plain[source], {"crf": int(draw.integers(26, 34)), "size": (80, 80)}
            else:
                copy, options = planted_clip(manner, number, recordings[source], draw)
            sets["planted"].append(_record(folder / f"new/{name}.mp4", copy, manner, **options))
    return sets


def _scene(number: int, draw: np.random.Generator) -> Any:
    return draw_scene(EVENTS[number % 4], number, draw, tuple(STRAIGHT | DIAGONAL))


def recording(number: int, draw: np.random.Generator) -> np.ndarray:
    """uint8 [80, H, W, 3]: objects that come and go before one of ten fixed cameras, a camera that is used once, or one
    that pans. Half of the views are patches of color, half have the spectrum of photographs."""
    camera = number // 6 % CAMERAS if number % 3 == 0 else 1000 + number
    view = view_of(camera, WIDTH * (2 if number % 3 == 2 else 1))
    frames = np.stack([view[:, (at if number % 3 == 2 else 0) :][:, :WIDTH] for at in range(80)])
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    for _ in range(int(draw.integers(1, 4))):
        start, end = draw.uniform(0, 1, (2, 2)) * (HEIGHT, WIDTH)
        size, color = draw.integers(10, 28), draw.uniform(0, 255, 3)
        wave, phase = draw.uniform(0, 30), draw.uniform(0, 6)
        for at in range(80):
            y, x = start + (end - start) * at / 79 + wave * np.sin(phase + at / 6)
            frames[at][(abs(rows - y) < size) & (abs(columns - x) < size * 0.8)] = color
    noise = draw.integers(-4, 5, (80, HEIGHT, WIDTH, 1), np.int8)
    return np.asarray((frames.astype(np.int16) + noise).clip(0, 255).astype(np.uint8))


def view_of(camera: int, width: int) -> np.ndarray:
    """The background of a camera, uint8 [H, width, 3]."""
    draw = np.random.default_rng(camera)
    if camera % 2:
        return np.kron(draw.uniform(30, 200, (6, width // 20, 3)), np.ones((HEIGHT // 6, 20, 1))).astype(np.uint8)
    waves = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.fftfreq(width))
    waves[0, 0] = np.inf
    spectra = np.fft.fft2(draw.standard_normal((4, HEIGHT, width))) / waves
    light, *colors = np.fft.ifft2(spectra).real
    shown = np.stack([light + 0.4 * color for color in colors], axis=2)
    return np.asarray((110 + 45 * shown / shown.std()).clip(0, 255).astype(np.uint8))


def planted_clip(
    kind: str, number: int, whole: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, dict[str, Any]]:
    """A copy of the first 40 frames of a recording, or of others."""
    shown = whole[:40]
    if kind == "encoded again":
        return shown, {"crf": int(draw.integers(28, 36)), "size": (128, 96), "gain": draw.uniform(0.95, 1.05)}
    if kind == "trimmed":
        start, length = int(draw.integers(0, 20)), int(draw.integers(12, 20))
        return shown[start : start + length], {"crf": 28}
    if kind == "cropped":
        return _cropped(shown, draw.uniform(0.6, 0.95), 1, draw), {"crf": 26}
    if kind == "cropped, encoded again":
        return _cropped(shown, draw.uniform(0.6, 0.95), 1, draw), {"crf": 32, "size": (112, 84)}
    if kind == "cropped to another shape":
        return _cropped(shown, draw.uniform(0.8, 1), SHAPES[number % 3], draw), {"crf": 26}
    if kind == "cropped and stretched":
        return _cropped(shown, draw.uniform(0.65, 1), STRETCHES[number % 3], draw), {"size": (WIDTH, HEIGHT)}
    return (whole[26:66], {"crf": 28}) if kind == "overlapping segment" else (whole[40:], {"crf": 28})


def _cropped(frames: np.ndarray, side: float, ratio: float, draw: np.random.Generator) -> np.ndarray:
    """A crop whose longer side, relative to the whole, is `side`."""
    tall, wide = int(HEIGHT * side * min(1, 1 / ratio)) // 2 * 2, int(WIDTH * side * min(1, ratio)) // 2 * 2
    top, left = int(draw.integers(0, HEIGHT - tall + 1)), int(draw.integers(0, WIDTH - wide + 1))
    return frames[:, top : top + tall, left : left + wide]


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
