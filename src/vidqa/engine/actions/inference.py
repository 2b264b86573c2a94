"""Inference: answer the questions of records that have no annotated answer, and write the answers.

    python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 1 -m vidqa.engine inference --spec inference.toml \
        --run-dir results/my-run

A record whose video cannot be read gets an error instead of an answer; the others are answered. A long video may
be cut into windows, each planned as a separate record; their answers are merged into one row. A stopped run
continues with `inference.skip_saved`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain, groupby
from typing import Any

from vidqa.core.files import replacing, write_json, write_text
from vidqa.core.problem import Exit, Problem
from vidqa.core.run_folder import ANSWERS, ANSWERS_TABLE, RunFolder
from vidqa.data.record import Record
from vidqa.engine.answering.answers import Answer, answers_recipe, fingerprint_model, require_answers
from vidqa.engine.answering.batch_inference import Failed, InferenceTask, generate_all, model_folders, start_answering
from vidqa.engine.data.planned_samples import fitting, shared_plan
from vidqa.engine.signals import StopRequest
from vidqa.evaluation.answers import parse_answer
from vidqa.evaluation.window_merge import WindowAnswer, expected_of, merged
from vidqa.planning.plan import PlannedSet, source_id, window_of
from vidqa.planning.samples import Sample, evaluation_planner
from vidqa.spec.models import InferenceSpec

Row = dict[str, Any]
NO_WINDOWS: Row = {"rule": "", "spans_s": [], "windows": []}  # the values of a row whose video is not cut into windows
WINDOW_KEYS = ("response", "answer", "status", "finish_reason", "tokens", "prompt_tokens")


def inference(spec: InferenceSpec, run: RunFolder) -> int:
    """Answer the records of an InferenceSpec and write into `run`. Returns 0, or 6 when a signal stopped it (answers so
    far are saved)."""
    stop = StopRequest()
    world = start_answering(spec)
    folder, base = model_folders(spec)

    planner = evaluation_planner(spec, base or folder)
    plan = shared_plan(spec, planner, world, run).sets["asked"]
    samples, problems = fitting(spec, plan)
    model = world.on_main(lambda: fingerprint_model(folder, base))
    recipe = answers_recipe(spec, spec.inference, planner, plan.records, model)

    result = generate_all(InferenceTask(spec, spec.inference, world, run, stop), planner, samples, recipe)
    if result.was_stopped:
        return int(Exit.NOT_DONE)

    def conclude() -> None:
        answers = result.saved.read()
        require_answers(samples, answers, result.failed.keys(), run)
        write_answers(run, rows_of(plan, samples, answers, problems_by_record(plan, problems) | result.failed))
        write_json(run.path / "recipe.json", recipe)

    world.on_main(conclude)
    return int(Exit.OK)


def problems_by_record(plan: PlannedSet, problems: Sequence[Problem]) -> Failed:
    """The problems of records that could not be planned, by record id; `where` of a problem begins with its record."""
    ids = {record.place: record.id for record in plan.records if problems}
    by_record: Failed = {}
    for problem in problems:
        ends = [len(problem.where), *(colon.start() for colon in re.finditer(":", problem.where))]
        if place := next((problem.where[:end] for end in ends if problem.where[:end] in ids), None):
            by_record.setdefault(ids[place], []).append(problem)
    return by_record


def rows_of(
    plan: PlannedSet, samples: Sequence[Sample], answers: Mapping[str, Answer], failed: Mapping[str, list[Problem]]
) -> list[Row]:
    """The rows of answers.jsonl, one per record, in order. The windows of a video become one row, with a list of them
    under `windows`. `answers` and `failed` are by record id."""
    planned = {sample.record.id: sample for sample in samples}

    rows = []
    for name, group in groupby(plan.records, source_id):
        records = list(group)
        window_rows = [
            _row(record, planned.get(record.id), answers.get(record.id), failed.get(record.id, []))
            for record in records
        ]
        rows.append(_merged_row(name, records, window_rows) if window_of(records[0]) else window_rows[0])
    return rows


def _row(record: Record, sample: Sample | None, answer: Answer | None, problems: Sequence[Problem]) -> Row:
    expected = expected_of(record.question)
    parsed = parse_answer(answer.text, record.question, answer.finish_reason, expected) if answer else None
    return {
        "id": record.id,
        "media": [ref.file for ref in record.media],
        "question": record.question,
        "response": answer.text if answer else None,
        "answer": parsed.answer if parsed else "",
        "kind": parsed.kind if parsed else "",
        "status": parsed.status if parsed else "error",
        "finish_reason": answer.finish_reason if answer else "error",
        "tokens": answer.tokens if answer else 0,
        "prompt_tokens": sample.length if sample else 0,
        "frame_times_s": [[round(time_s, 3) for time_s in plan.times_s] for plan in sample.plans] if sample else [],
        "problem": problems[0].as_dict() if problems and not answer else None,
        **NO_WINDOWS,
    }


def _merged_row(name: str, records: Sequence[Record], rows: Sequence[Row]) -> Row:
    """Merge the rows of the windows of a video into its row. Times are seconds from the start of the file."""
    spans = [span for record in records if (span := window_of(record))]
    answered = [
        WindowAnswer(span, row["response"], row["answer"], row["kind"], row["status"])
        for span, row in zip(spans, rows, strict=True)
        if row["status"] != "error"
    ]
    problem = next((row["problem"] for row in rows if row["problem"]), None)
    windows = [
        {"start_s": span[0], "end_s": span[1]} | {key: row[key] for key in WINDOW_KEYS}
        for span, row in zip(spans, rows, strict=True)
    ]
    times_s = [
        round(span[0] + time_s, 3)
        for span, row in zip(spans, rows, strict=True)
        for time_s in chain(*row["frame_times_s"])
    ]
    return {
        **rows[0],
        **asdict(merged(answered, len(rows))),
        "id": name,
        "finish_reason": "windows" if answered else "error",
        "tokens": sum(row["tokens"] for row in rows),
        "prompt_tokens": sum(row["prompt_tokens"] for row in rows),
        "frame_times_s": [times_s],
        "problem": problem,
        "windows": windows,
    }


def write_answers(run: RunFolder, rows: Sequence[Row]) -> None:
    """Write answers.jsonl, the same rows as answers.parquet, and summary.json with the number of rows per status."""
    import pyarrow
    import pyarrow.parquet

    write_text(run.path / ANSWERS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    flat = [{**row, "problem": row["problem"] and row["problem"]["code"]} for row in rows]
    with replacing(run.path / ANSWERS_TABLE) as temporary:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(flat, schema=table_schema()), temporary)
    statuses = Counter(row["status"] for row in rows)
    problems = [row["problem"] for row in rows if row["problem"]]
    write_json(run.path / "summary.json", {"records": len(rows), "statuses": dict(statuses), "problems": problems})


def table_schema() -> Any:
    """The pyarrow schema of answers.parquet. `problem` is the code of the problem alone."""
    import pyarrow as pa

    text, number, seconds = pa.string(), pa.int64(), pa.list_(pa.float64())
    window = {"start_s": pa.float64(), "end_s": pa.float64()} | {
        **dict.fromkeys(("response", "answer", "status", "finish_reason"), text),
        **dict.fromkeys(("tokens", "prompt_tokens"), number),
    }
    columns = {
        **{"id": text, "media": pa.list_(text)},
        **dict.fromkeys(("question", "response", "answer", "kind", "status", "finish_reason"), text),
        **{"tokens": number, "prompt_tokens": number, "frame_times_s": pa.list_(seconds), "problem": text},
        **{"rule": text, "spans_s": pa.list_(seconds), "windows": pa.list_(pa.struct(list(window.items())))},
    }
    return pa.schema(list(columns.items()))
