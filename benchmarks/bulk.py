"""Time what is done in bulk without a GPU: a million annotations, a million results, ten thousand video files.

python benchmarks/bulk.py --out DIR

Everything is made first (about 2 GB, kept and used again). Each row runs in a process of its own; `CPU` is what it and
its children used, so that a row says what it costs even where other programs run beside it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

from ledger import Ledger, arguments, table
from processes import SKILL_ROOT

RECORDS, FILES = 1_000_000, 10_000
FRAMES = 120
TINY_RECORDS, TINY_FILES, TINY_FRAMES = 300, 20, 6
CONTAINERS = {"mp4": "libx264", "mov": "libx264", "mkv": "libx264", "webm": "libvpx-vp9", "avi": "mpeg4"}
SIZES = ((640, 448), (1920, 1080))
OPTIONS = {"libx264": {"preset": "veryfast"}, "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"}}
WORDS = ("car", "truck", "bus", "red", "blue", "left", "right", "lane", "signal", "stops", "turns", "crosses", "slow")
PROBE = """
import sys
from vidqa.video import probe
for name in sys.stdin.read().split():
    assert probe(name).frame_count == int(sys.argv[1])
"""
VALIDATE = """
import sys
from vidqa.dataset import check_records
records, problems = check_records(sys.argv[1])
assert len(records) == int(sys.argv[2]) and not problems, problems[:3]
"""


def questions(count: int) -> Iterator[tuple[str, str, str, str]]:
    """(kind, question, answer, response) of every record; 30 % of the responses are wrong, half are in sentences."""
    chance = random.Random(0)
    for number in range(count):
        kind = ("yes_no", "letter", "text")[number % 3]
        if kind == "yes_no":
            question = f"Does vehicle {number % 1000} stop at the line before it turns?"
            answer, other = chance.sample(("Yes", "No"), 2)
        elif kind == "letter":
            question = f"Which is first at crossing {number % 5000}?\nA. the red car\nB. the blue truck\nC. the bus"
            answer, other = chance.sample("ABC", 2)
        else:
            question = f"Describe what vehicle {number} does."
            answer, other = (" ".join(chance.choices(WORDS, k=8)) for _ in range(2))
        response = other if chance.random() < 0.3 else answer
        if chance.random() < 0.5:
            response = {
                "yes_no": f"{response}, vehicle {number} does.",
                "letter": f"The answer is ({response}).",
                "text": response,
            }[kind]
        yield kind, question, answer, response


def write_list(path: Path, items: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number, item in enumerate(items):
            file.write(("[" if number == 0 else ",\n") + json.dumps(item, indent=1))
        file.write("]\n")


def record(number: int, video: str, question: str, answer: str) -> dict[str, Any]:
    turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": answer}]
    return {"id": f"kpi_{number:07d}", "video": video, "video_fps": 30, "conversations": turns}


def make_evaluation(folder: Path, count: int) -> None:
    """Annotations and results that name a video of its own each, without the files, as results come home."""
    folder.mkdir(parents=True)
    made = list(questions(count))
    names = [f"clips/site{number % 97:03d}/camera_{number % 13}/{number:07d}.mp4" for number in range(count)]
    rows = ((n, names[n], question, answer) for n, (_, question, answer, _) in enumerate(made))
    write_list(folder / "annotations.json", (record(*row) for row in rows))

    def result(number: int) -> dict[str, Any]:
        kind, question, answer, response = made[number]
        named = {"video_id": f"/data/kpi/{names[number]}", "response": response, "question": question, "gt": answer}
        judged = {"answer_kind": kind, "parsed_response": response.lower(), "parsed_gt": answer.lower()}
        more = {"correct": response == answer, "parse_status": "parsed", "finish_reason": "stop"}
        return {**named, "sample_id": f"kpi_{number:07d}", "kind": kind, **judged, **more}

    write_list(folder / "results.json", map(result, range(count)))


def make_videos(folder: Path, files: int, records: int, frames: int) -> None:
    """`files` names for one real clip of each size and container, and annotations about them."""
    kinds = [(size, ending) for size in SIZES for ending in CONTAINERS]
    for (width, height), ending in kinds:
        clip = folder / f"clip-{height}.{ending}"
        write_clip(clip, CONTAINERS[ending], width, height, frames)
        for number in range(files // len(kinds)):
            name = folder / "videos" / str(height) / ending / f"{number:05d}.{ending}"
            name.parent.mkdir(parents=True, exist_ok=True)
            os.link(clip, name)
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("videos/*/*/*"))
    rows = ((n, names[n * len(names) // records], words[1], words[2]) for n, words in enumerate(questions(records)))
    write_list(folder / "annotations.json", (record(*row) for row in rows))


def write_clip(path: Path, codec: str, width: int, height: int, frames: int) -> None:
    """A textured picture that moves; its key frames are as large as those of an ordinary camera, 100 KB in 1080p."""
    import av
    import numpy as np

    chance = np.random.default_rng(0)
    coarse = chance.integers(0, 256, (34, 60, 3)).repeat(32, 0).repeat(32, 1)[:height, :width]
    picture = np.clip(coarse + chance.integers(-5, 6, coarse.shape), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(30000, 1001))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = 60
        stream.bit_rate = width * height * 3 // 2
        stream.options = OPTIONS.get(codec, {})
        for number in range(frames):
            shown = np.ascontiguousarray(np.roll(picture, 4 * number, axis=1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        container.mux(stream.encode())


def measured(words: list[str], given: str = "") -> tuple[float, float, float]:
    """(wall s, CPU s, peak GB) of one command; CPU and peak include the children that it waited for."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    with process.stdin as stdin:
        stdin.write(given)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{words[0]} ended with {process.returncode}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6


def rows(
    out: Path, records: int, files: int, frames: int
) -> Iterator[tuple[str, Callable[[], tuple[float, float, float]], int]]:
    """(what, how it is measured, how many) in the order of the table."""
    kpi, videos = out / f"evaluation-{records}", out / f"videos-{files}-{records}"
    # Made by a process of its own: what is started from here begins with this one's memory as its peak.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as maker:
        if not kpi.exists():
            maker.submit(make_evaluation, kpi, records).result()
        if not videos.exists():
            maker.submit(make_videos, videos, files, records, frames).result()
    os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=str(SKILL_ROOT / "src"))
    words = ["--results-dir", str(kpi), "--gaps-parquet", str(out / "gaps.parquet"), "--kpi-ann-path", str(kpi)]
    script = str(SKILL_ROOT / "scripts" / "analyze_gaps.py")
    yield "results to a gap table", lambda: measured([script, *words]), records
    path = str(videos / "annotations.json")
    yield "annotations validated", lambda: measured(["-c", VALIDATE, path, str(records)]), records
    for width, height in SIZES:
        for ending in CONTAINERS:
            names = "\n".join(map(str, sorted(videos.glob(f"videos/{height}/{ending}/*"))))
            what = f"{ending} files probed, {width} x {height}"
            yield what, lambda names=names: measured(["-c", PROBE, str(frames)], names), names.count("\n") + 1


def main() -> None:
    options = arguments(__doc__).parse_args()
    sizes = (TINY_RECORDS, TINY_FILES, TINY_FRAMES) if options.tiny else (RECORDS, FILES, FRAMES)
    options.out.mkdir(parents=True, exist_ok=True)
    ledger = Ledger("bulk", options)
    for what, measure, count in rows(options.out, *sizes):
        wall, cpu, peak = measure()
        row = {"what": what, "number": count, "wall_s": wall, "cpu_s": cpu, "per_cpu_s": count / cpu, "peak_gb": peak}
        ledger.add(row)
        print(f"{what}: {wall:.1f} s", flush=True)
    print(table(ledger.rows))


if __name__ == "__main__":
    main()
