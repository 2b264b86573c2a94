"""Agreement of the native generator with transformers: 500 prompts of all kinds of media, each alone in the reference.

    python benchmarks/agreement.py --out /tmp/agreement

A tiny model with random weights in float32; no GPU needed. It compares greedy answers, drawn answers and scored
candidates, for several numbers of rows, orders and numbers of ranks.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import av
import numpy as np
import torch
from generation import Prompts
from ledger import Ledger, arguments, rounded
from shapes import write_random_model
from video_set import QUESTIONS, SetShape, corpus, write_set

from vidqa.engine.generators import GENERATORS
from vidqa.engine.generators._base import Settings
from vidqa.planning.prefix_sharing import split_samples
from vidqa.planning.requests import Request, Result, Sampling

SHAPE, TINY = SetShape(40, (1, 6), 8, 96, 64), SetShape(3, (1, 3), 4, 96, 64)
GREEDY = Sampling(max_tokens=16)
DRAWN = Sampling(max_tokens=16, temperature=1.0, top_p=0.95, seed=1)
CANDIDATES = ("Yes", "No", "the person opens", "the person walks to table")
Row = dict[str, Any]


def write_prompts(folder: Path, shape: SetShape) -> Path:
    """Write the clips, and questions about two to four clips at once, about one or two images, and without media."""
    root = write_set(folder, shape)
    records = json.loads((root / "annotations.json").read_text())
    if "video" not in records[-1]:
        return root  # written by an earlier call
    count = max(1, len(records) // 16)
    for number in range(2 * count):
        clips = [f"{(number + i) % shape.clips}.mp4" for i in range(2 + number % 3)]
        records.append(_record(f"clips-{number}", "<video>\n" * len(clips), number, video=clips))
    for number in range(4 * count):
        images = [_image(root, (number + i) % (2 * count)) for i in range(1 + number % 2)]
        records.append(_record(f"images-{number}", "<image>\n" * len(images), number, image=images))
    records += [_record(f"text-{number}", "", number) for number in range(3 * count)]
    (root / "annotations.json").write_text(json.dumps(records))
    return root


def _record(name: str, tags: str, number: int, **media: Sequence[str]) -> Row:
    question = f"{tags}{QUESTIONS[number % len(QUESTIONS)]} {' '.join(corpus()[0].split()[: number % 23])}"
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": "yes"}]
    return {"id": name, **media, "conversations": turns}


def _image(root: Path, number: int) -> str:
    path = root / f"{number}.png"
    generator = np.random.default_rng(number)
    size = (64 + 32 * (number % 3), 64 + 32 * (number % 2), 3)
    frame = av.VideoFrame.from_ndarray(generator.integers(0, 256, size, np.uint8), format="rgb24")
    with av.open(str(path), "w", format="image2") as container:
        stream = container.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, "rgb24"
        container.mux([*stream.encode(frame), *stream.encode()])
    return path.name


def answered(name: str, settings: Settings, requests: Sequence[Request]) -> dict[str, Result]:
    with closing(GENERATORS[name](settings)) as session:
        return {result.id: result for some in session.generate(iter(requests)) for result in some}


def manners(prompts: Prompts, settings: Settings, requests: Sequence[Request]) -> Mapping[str, dict[str, Result]]:
    """The native generator's results, by the order and batching of the requests."""
    eight = replace(settings, batch_size=8)
    by_id = {request.id: request for request in requests}
    dealt = [[by_id[sample.record.id] for sample in mine] for mine in split_samples(prompts.samples, 3)]
    return {
        "one row": answered("native", replace(settings, batch_size=1), requests),
        "8 rows": answered("native", eight, requests),
        "8 rows, backwards": answered("native", eight, requests[::-1]),
        "three ranks": {name: result for mine in dealt for name, result in answered("native", eight, mine).items()},
    }


def compared(ours: Mapping[str, Result], theirs: Mapping[str, Result]) -> Row:
    assert ours.keys() == theirs.keys()
    same = [name for name, result in ours.items() if result.token_ids == theirs[name].token_ids]
    pairs = [
        pair
        for name in same
        for pair in zip(
            ours[name].logprobs + ours[name].scores, theirs[name].logprobs + theirs[name].scores, strict=True
        )
    ]
    return {
        "prompts": len(ours),
        "tokens": sum(len(result.token_ids) for result in ours.values()),
        "same": len(same) / len(ours),
        "same_reason": sum(ours[name].finish_reason == theirs[name].finish_reason for name in ours) / len(ours),
        "logprob_apart": max(abs(one - other) for one, other in pairs),
    }


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() and not options.tiny else "cpu")
    folder = options.out / "models" / "tiny"
    if not (folder / "processor_config.json").exists():
        write_random_model("tiny", folder, corpus(), "cpu")
    prompts = Prompts(
        folder, write_prompts(options.out / ("few" if options.tiny else "many"), TINY if options.tiny else SHAPE), 1
    )
    chat = prompts.planner.chat
    settings = Settings(folder, None, torch.float32, device, prompts.planner, longest=4096, batch_size=1)
    plain = [replace(request, logprobs=True, sampling=GREEDY) for request in prompts.requests(GREEDY.max_tokens)]
    sets = {
        "greedy": plain,
        "drawn": [replace(request, sampling=DRAWN) for request in plain],
        "scored": [replace(request, candidates=tuple(map(chat.text_ids, CANDIDATES))) for request in plain],
    }
    ledger = Ledger("agreement", options)
    for name, requests in sets.items():
        theirs = answered("transformers", settings, requests)
        for manner, ours in manners(prompts, settings, requests).items():
            row = {"run": f"{name}, {manner}", **compared(ours, theirs)}
            ledger.add(row)
            print(rounded(row), flush=True)
    kinds = Counter(tuple(plan.kind for plan in request.plans) for request in plain)
    ledger.conclude([{"media": " ".join(kind), "prompts": count} for kind, count in sorted(kinds.items())])


if __name__ == "__main__":
    main()
