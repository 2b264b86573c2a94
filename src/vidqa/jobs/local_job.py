"""Jobs without a record that a script runs on this machine and waits for: questions about files, or the proof of an
action.

rows = ask(Question("outputs/train/RUN", media=("clip.mp4",), questions=("Is the door open?",)))
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vidqa.core import environment
from vidqa.core.cli import FILE_REFUSED, refused_writes
from vidqa.core.files import absolute, open_plain, write_text
from vidqa.core.problem import JOB_FAILED, Exit, Problem, ProblemError, raise_errors
from vidqa.core.run_folder import ANSWERS, RunFolder
from vidqa.data import load_records
from vidqa.data.archive import archive_and_member, is_archive
from vidqa.data.media import IMAGES, VIDEOS, kind_of
from vidqa.data.problems import EMPTY, MEDIA_MISSING, OUTPUT_EXISTS, missing_file
from vidqa.data.record import Record
from vidqa.data.sources.files import media_below
from vidqa.jobs.job_spec import JobSpec, fetch_weights, load_job_spec
from vidqa.jobs.launch import refuse_busy
from vidqa.jobs.platforms import local
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.engine_process import gpu_problems
from vidqa.jobs.problems import JOB_NOT_DONE
from vidqa.jobs.runs import newest_run
from vidqa.planning.problems import RESUME_NO_CHECKPOINT
from vidqa.spec import Layer, dump, parse_set, resolve
from vidqa.spec.parent_layers import model_layer
from vidqa.spec.prompt_files import prompt_layer, with_reasoning

ACTION = "inference"
PROOF = "proof"  # the run folder of a proof
MOST_WORKERS = 2
OTHER_OUT = "give --out a new folder, or repeat all earlier questions there"
QUESTIONS = "asked.jsonl"  # in the run folder: the questions, as annotations without answers
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")  # formats with media beside questions
COLUMNS = ("file", "question", "answer", "status", "finish_reason", "spans_s")
Row = dict[str, Any]


def inference_job(layers: Iterable[Layer], folder: Path) -> Job:
    """The job with run folder `folder`: writes the spec of these layers there and downloads the models. Raises the
    problems of the spec and of its inputs, and PLATFORM_TOO_FEW_GPUS."""
    spec_path = folder / "spec.toml"
    write_text(spec_path, dump(resolve(ACTION, layers).spec))
    return _prepared(load_job_spec(ACTION, spec_path, fetch=True), folder)


def prove(action: str, spec_path: Path) -> Path:
    """Run the proof of an action and return its run folder. The proof of a run is in the folder of the run with this
    spec, else of the newest run of the spec; any other is beside the runs. Raises RESUME_NO_CHECKPOINT without such a
    run, JOB_NOT_DONE if a job is running in it, and the problems of the engine."""
    job_spec = load_job_spec(action, spec_path, fetch=True)
    folder = job_spec.output_dir / PROOF
    if job_spec.declared.proves_earlier_run:
        own = spec_path.absolute().parent
        is_run = RunFolder(own).read_run().get("action") == action
        fingerprint = job_spec.spec_fingerprint
        run = own if is_run else newest_run(job_spec.output_dir, action=action, spec_fingerprint=fingerprint)
        if run is None:
            raise RESUME_NO_CHECKPOINT.error(
                job_spec.output_dir, f"it has no run of {spec_path}", "give the run's own spec: --spec RUN/spec.toml"
            )
        refuse_busy(run)
        folder = run / PROOF
    run_engine(_prepared(job_spec, folder), "--verify")
    return folder


def _prepared(job_spec: JobSpec, folder: Path) -> Job:
    """The job, with its models downloaded and its spec written. Raises PLATFORM_TOO_FEW_GPUS."""
    fetch_weights(job_spec)
    processes = job_spec.declared.processes(job_spec.resolved)
    job = Job(folder.name, job_spec.action, folder, processes=processes, gpus=local.gpu_count())
    raise_errors(gpu_problems(job, "visible"))
    write_text(job.spec, dump(job_spec.resolved))
    return job


def run_engine(job: Job, *options: str) -> None:
    """Run the engine with its output on the terminal; it ends with this process. Raises its problems."""
    rendered = local.render(job)
    variables = environment.child_environment(**rendered.environment, **{environment.PARENT: str(os.getpid())})
    process = subprocess.run([*rendered.command, *options], env=variables, stdin=subprocess.DEVNULL, stdout=2)
    run = RunFolder(job.run_dir)
    status = run.read_status()
    if status.get("state") == "COMPLETE":
        return
    if status.get("exit_code") == Exit.NOT_DONE:
        raise JOB_NOT_DONE.error(job.run_dir, "it was stopped; with --out it continues where it ended", "ask again")
    failure = JOB_FAILED.at(job.run_dir, f"the engine ended with {process.returncode}")
    raise ProblemError(run.read_problems() or [failure])


@dataclass(frozen=True)
class Question:
    """Questions about media: every question about each of the `media`, which are files or folders; without questions,
    the default one or that of `prompt_file`. Instead of both, `table` names a table whose rows have their own question
    and media. With `reasoning` the model is asked to think first. `which` selects the export of a run. `sets` are keys
    as KEY=VALUE. `out` keeps the run folder, which a second call continues; otherwise it is temporary."""

    model: str
    media: tuple[str, ...]
    questions: tuple[str, ...] = ()
    table: Path | None = None
    which: str | None = None
    sets: tuple[str, ...] = ()
    out: Path | None = None
    prompt_file: Path | None = None
    reasoning: bool = False


def ask(question: Question) -> list[Row]:
    """Answer every question about every file; returns rows as in answers.jsonl. Raises the problems of the question and
    of the engine."""
    asks = prompt_layer(question.prompt_file, reasoning=question.reasoning)
    layers = [model_layer(ACTION, question.model, question.which), asks, parse_set(question.sets)]
    questions = tuple(map(with_reasoning, question.questions)) if question.reasoning else question.questions
    rows = rows_of_table(question.table, question.reasoning) if question.table else []
    rows += [row for place in question.media for row in _rows(place, questions)]
    few = Layer("infer.py", {"engine.decode_workers": min(len(rows), MOST_WORKERS)})  # each takes seconds to start
    with _run_folder(question.out) as folder:
        _require_earlier(folder, rows)
        write_text(
            folder / QUESTIONS, "".join(json.dumps({"id": str(at), **row}) + "\n" for at, row in enumerate(rows))
        )
        own = {
            "dataset.annotation_path": str(folder / QUESTIONS),
            "results_dir": str(folder),
            "inference.skip_saved": question.out is not None,
        }
        run_engine(inference_job([few, *layers, Layer("infer.py", own)], folder))
        with (folder / ANSWERS).open("rb") as lines:  # text has more line ends than JSON lines
            return [json.loads(line) for line in lines]


def _rows(place: str, questions: tuple[str, ...]) -> list[Row]:
    """An annotation without an answer for each question about each file of a place. Raises DATA_MEDIA_MISSING, and the
    problems of `load_records` for an archive."""
    prompts: list[Row] = [{"question": question} for question in questions] or [{}]
    return [{kind: file, **row} for kind, file in _files(str(absolute(place))) for row in prompts]


def rows_of_table(path: Path, reasoning: bool = False) -> list[Row]:
    """An annotation without an answer for each record; media by their full paths. Raises the records' problems."""
    return [_unanswered(record, reasoning) for record in load_records(path, need_answers=False, keep_missing=True)]


def _unanswered(record: Record, reasoning: bool) -> Row:
    turns = record.turns[:-1] if record.turns[-1].role == "assistant" else record.turns
    messages: list[Row] = [
        {"role": turn.role, "content": [_part(record, part) for part in turn.parts]} for turn in turns
    ]
    texts = [part for part in messages[-1]["content"] if part["type"] == "text"]
    if reasoning and texts:
        texts[-1]["text"] = with_reasoning(texts[-1]["text"])
    return {"messages": messages}


def _part(record: Record, part: str | int) -> Row:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    medium = record.media[part]
    return {"type": medium.kind, medium.kind: medium.key, **dict(medium.keys)}


def is_table(path: Path) -> bool:
    """Whether a file of questions also names their media, unlike plain text."""
    return path.suffix.lower() in TABLES


def _files(place: str) -> list[tuple[str, str]]:
    """Kind and path of the file, or of those in a folder or an archive; annotations beside them are ignored. Raises
    DATA_MEDIA_MISSING."""
    if is_archive(place) or archive_and_member(place):
        return [(ref.kind, ref.key) for record in load_records(place, need_answers=False) for ref in record.media]
    if not os.path.exists(place):
        raise MEDIA_MISSING.error(absolute(place), "there is no such file or folder", "correct its name")
    media = [(str(kind_of(file)), file) for file in sorted(media_below(place))] if os.path.isdir(place) else []
    if kind := kind_of(place):
        media.append((kind, place))
    if not media:
        message = f"no file here has the ending of a video or image: {', '.join((*VIDEOS, *IMAGES))}"
        raise MEDIA_MISSING.error(place, message, "give videos, images, or a folder or tar archive of them")
    return media


@contextmanager
def _run_folder(out: Path | None) -> Iterator[Path]:
    """The folder `out`, or a temporary one. Raises OUTPUT_EXISTS for a folder with other contents."""
    if out is None:
        with TemporaryDirectory(prefix="vidqa-infer-") as folder:
            yield Path(folder)
        return
    if out.exists() and not (out / QUESTIONS).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise OUTPUT_EXISTS.error(out, "its content is not the answers to earlier questions", OTHER_OUT)
    out.mkdir(parents=True, exist_ok=True)
    yield out.absolute()


def _require_earlier(folder: Path, rows: list[Row]) -> None:
    """Raise OUTPUT_EXISTS if the folder has answers to other questions, which must not be replaced."""
    if not (folder / QUESTIONS).is_file():
        return
    current = {json.dumps(row, sort_keys=True) for row in rows}
    try:
        with (folder / QUESTIONS).open("rb") as lines:
            earlier = [{name: value for name, value in json.loads(line).items() if name != "id"} for line in lines]
    except (OSError, ValueError, AttributeError, RecursionError) as foreign:
        raise OUTPUT_EXISTS.error(folder, f"its {QUESTIONS} cannot be read: {foreign}", OTHER_OUT) from foreign
    for row in earlier:
        if json.dumps(row, sort_keys=True) not in current:
            what = row.get("question") or row.get("messages", "the prompt")
            medium = row.get("video") or row.get("image") or "its media"
            raise OUTPUT_EXISTS.error(folder, f"it has the answer to {str(what)[:200]!r} about {medium}", OTHER_OUT)


def problems_of(rows: list[Row]) -> list[Problem]:
    """The problems of files without an answer, each once, at the file instead of the question."""
    problems = [replace(Problem(**row["problem"]), where=row["media"][0]) for row in rows if row["problem"]]
    return list(dict.fromkeys(problems))


def lines_of(path: Path) -> list[str]:
    """The questions in a text file, one per line. Raises DATA_FILE_MISSING, DATA_EMPTY."""
    try:
        with open_plain(path) as file:
            lines = [line.strip() for line in file.read().decode("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as unreadable:
        raise missing_file(path, f"it cannot be read as text: {unreadable}", "name a text file") from unreadable
    if not any(lines):
        raise EMPTY.error(path, "it contains no question", "write one question per line")
    return [line for line in lines if line]


def write_lines(path: Path, rows: list[Row]) -> None:
    """Write rows as JSON lines. Raises ENV_FILE_REFUSED."""
    with refused_writes(path):
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_table(path: Path, rows: list[Row]) -> None:
    """Write a CSV with one line per answer; the columns are those of a CSV data set and three more. A table with other
    columns, such as that of the questions, is not replaced. Raises ENV_FILE_REFUSED."""
    require_table(path)
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(COLUMNS)
    for row in rows:
        spans = " ".join(f"{start:g}-{end:g}" for start, end in row["spans_s"] or ())
        answer = row["response"] or ""
        writer.writerow(["|".join(row["media"]), row["question"], answer, row["status"], row["finish_reason"], spans])
    with refused_writes(path):
        write_text(path, lines.getvalue())


def require_table(path: Path) -> None:
    """Raise ENV_FILE_REFUSED if the file exists and is not a table of answers."""
    if not path.exists():
        return
    try:
        with open_plain(path) as file:
            header = file.readline().decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError):
        header = ""
    if header != ",".join(COLUMNS):
        remedy = "give a new file for the answers; --questions FILE.csv reads the questions of a table"
        raise FILE_REFUSED.error(path, "it exists, and is not a table of answers", remedy)


def shown(rows: list[Row], count: int, files: list[str]) -> str:
    """Format answers for display: a single one as it is, several with file and question."""
    if count == 1 and not rows[0]["windows"]:
        return _answer(rows[0])
    parts = [f"{', '.join(map(os.path.basename, row['media']))}: {row['question']}\n{_answer(row)}" for row in rows]
    if count > len(rows):
        parts.append(
            f"... and {count - len(rows)} more{', in ' + files[0] if files else '; --jsonl FILE keeps them all'}"
        )
    return "\n\n".join(parts)


def _answer(row: Row) -> str:
    if row["status"] == "error":
        return "(no answer)"
    text = row["response"] or f"({row['status']})"
    if row["status"] == "undecided":
        window_lines = (
            f"{window['start_s']:g}-{window['end_s']:g} s: {window['response']}" for window in row["windows"]
        )
        text = "\n".join([f"(undecided: {row['rule']})", *window_lines])
    if row["finish_reason"] == "length":
        text += f"\n(cut off after {row['tokens']} tokens; --set generation.max_tokens=N allows more)"
    if row["spans_s"]:
        text += f"\n(from {', '.join(f'{start:g} to {end:g} s' for start, end in row['spans_s'])}; {row['rule']})"
    return text
