"""Peak memory of one GPU that evaluates, beside what is predicted for it: both generators, several sizes and batches.

    python benchmarks/answering_memory.py --out /tmp/answering

8B and 2B shapes with random weights, real clips. A row says all that decides memory, so that predictions.py can predict
it again from the row alone: keep OUT/rows.json as results/answering-NAME.json. With --tiny it shows that it runs, and
its figures mean nothing.
"""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import predictions
import torch
from generation import Prompts, answered
from ledger import Ledger, arguments, table
from shapes import write_random_model
from video_set import SetShape, corpus, write_set

from vidqa.contract.files import write_json
from vidqa.engine.generators import GENERATORS
from vidqa.engine.generators._base import Settings
from vidqa.families import family_of
from vidqa.planning.budget.answering import AnsweringSetup, Reading, answering_memory, readings
from vidqa.planning.budget.memory import GIB


class Row(NamedTuple):
    """One evaluation. `spare` is how many tokens longer than the longest prompt and its answer the model may go."""

    shape: str
    clips: str
    generator: str
    batch: int
    answer: int = 16
    spare: int = 64

    @property
    def name(self) -> str:
        return f"{self.shape} {self.generator} {self.clips}, batch {self.batch}, answer {self.answer}"


SETS = {
    "1k-8k": SetShape(32, (5, 40)),
    "4k": SetShape(32, (20, 20)),
    "8-questions": SetShape(4, (20, 40), questions=8),
    "12k": SetShape(4, (100, 100)),
}
TINY = {name: SetShape(2, (1, 3), min(2, shape.questions), 96, 64) for name, shape in SETS.items()}
ROWS = (
    Row("8b", "1k-8k", "transformers", 8),
    Row("8b", "8-questions", "transformers", 8),
    Row("8b", "12k", "transformers", 1),
    Row("2b", "1k-8k", "transformers", 8),
    Row("8b", "1k-8k", "transformers", 2),
    Row("2b", "4k", "transformers", 32),
    Row("8b", "1k-8k", "native", 8),
    Row("8b", "8-questions", "native", 8),
    Row("2b", "1k-8k", "native", 8),
    Row("8b", "12k", "native", 8),
    Row("8b", "1k-8k", "native", 8, spare=120_000),
    Row("8b", "4k", "transformers", 32, answer=256),
)


def measure(row: Row, folder: Path, prompts: Prompts, device: torch.device, gpu_gib: float | None) -> dict[str, Any]:
    """The peak of a session from its opening to its last answer, and what decides it."""
    on_gpu = device.type == "cuda"
    longest = max(sample.length for sample in prompts.samples) + row.answer + row.spare
    dtype = torch.bfloat16 if on_gpu else torch.float32
    setup = AnsweringSetup(row.generator, dtype.itemsize, row.batch, longest, row.answer)
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    settings = Settings(folder, None, dtype, device, prompts.planner, longest, row.batch)
    session = GENERATORS[row.generator].open(settings)
    requests = prompts.requests(row.answer)
    assert len(answered(session, requests)) == len(requests)
    session.close()
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reserved = torch.cuda.max_memory_reserved() / GIB if on_gpu else None
    family = family_of(folder)
    sizes = family.sizes_of(folder)
    parameters = sum(tensor.numel for tensor in family.tensors(sizes))

    def predicted(reading: Reading) -> float:
        return answering_memory(sizes, parameters, setup, reading, gpu_gib).peak_gib

    heaviest = max(readings(setup, prompts.samples, 1), key=predicted)
    described = predictions.answering_description(sizes, parameters, setup, heaviest, gpu_gib)
    return {"run": row.name, **described, "memory_gib": peak / GIB, "reserved_gib": reserved}


def main() -> None:
    options = arguments(__doc__).parse_args()
    cuda = torch.cuda.is_available() and not options.tiny
    device = torch.device("cuda" if cuda else "cpu")
    gpu_gib = torch.cuda.get_device_properties(device).total_memory / GIB if cuda else None
    ledger = Ledger("answering_memory", options)
    rows = ROWS if cuda else tuple(Row("tiny", *row[1:]) for row in (ROWS[0], ROWS[7]))
    for row in rows:
        folder = options.out / "models" / row.shape
        if not (folder / "processor_config.json").exists():
            write_random_model(row.shape, folder, corpus(), device.type)
        clips = (SETS if cuda else TINY)[row.clips]
        prompts = Prompts(folder, write_set(options.out / clips.name, clips), 12 if cuda else 1)
        ledger.add(measure(row, folder, prompts, device, gpu_gib))
        print(*predictions.table(predictions.compare_answering(ledger.rows[-1:]))[-1:], flush=True)
    write_json(options.out / "rows.json", ledger.rows)
    print(table(ledger.rows, without=["sizes", "setup", "reading"]), "", sep="\n")
    print(*predictions.table(predictions.compare_answering(ledger.rows)), sep="\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
