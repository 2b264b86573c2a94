"""What is fuzzed: for every reader sound documents to spoil, how they are written, and how they are read.

A reader gets a folder of its own with the document in it and returns what a script would print. It may raise
ProblemError and nothing else.
"""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w
import yaml
from clips import write_clip, write_image
from mutations import as_json, scrambled, spoiled

from vidqa.core import environment
from vidqa.core.pages.training import report
from vidqa.core.pages.training_data import read_training
from vidqa.core.run_folder import RunFolder, read_metrics
from vidqa.data import check_records, fingerprint
from vidqa.datatools.convert import convert
from vidqa.datatools.inspection import inspect_dataset
from vidqa.datatools.split import split_dataset
from vidqa.evaluation.answers import parse_pair
from vidqa.evaluation.metrics import score
from vidqa.evaluation.results import check_results
from vidqa.gaps.analysis.analyze import analyze
from vidqa.jobs import records
from vidqa.jobs import watch as jobs
from vidqa.preflight import media_probe as probe_table
from vidqa.spec import Layer, dump, explain, read_layer, resolve
from vidqa.spec.cosmos import cosmos_table, missing_fps
from vidqa.spec.layers import parse_set
from vidqa.spec.run_lookup import find_checkpoint, find_export
from vidqa.video.image import probe_image
from vidqa.video.probe import probe

QUESTION = {"from": "human", "value": "<video>\nIs the door open?\nA. yes\nB. no"}
TURNS = [QUESTION, {"from": "gpt", "value": "<think>It is.</think>A"}]
PARTS = [{"type": "video", "video": "clip.mp4"}, {"type": "text", "text": "Is it?"}]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PARTS}]
ROWS = [
    {"id": "a", "video": "clip.mp4", "video_fps": 8, "kind": "door", "conversations": TURNS},
    {"id": "b", "images": ["image.png", "image.png"], "conversations": [{**QUESTION, "value": "Both?"}, TURNS[1]]},
    {"id": 3, "messages": [*CHAT, {"role": "assistant", "content": [{"type": "text", "text": "No."}]}]},
    {
        "video": ["clip.mp4"],
        "type": "text",
        "conversations": [TURNS[0], TURNS[1], {**QUESTION, "value": "?"}, TURNS[1]],
    },
]
RESULTS = [
    {"video_id": "clip.mp4", "response": "A", "question": "Is the door open?", "gt": "yes", "sample_id": "a"},
    {"video_id": "b", "response": None, "question": "Both?", "gt": "3 metres", "finish_reason": "length", "kind": "x"},
    {
        "video_id": "c.mp4",
        "response": "<think>hm</think><answer>12 m</answer>",
        "question": "How far? A. 1 B. 2",
        "gt": "12",
    },
    {
        "video_id": "d.mp4",
        "response": "turns left",
        "question": "?",
        "gt": "left",
        "answer_kind": "direction",
        "correct": True,
    },
]
TRAIN = {
    "policy": {
        "model_name_or_path": "hf_model://org/name",
        "model_max_length": 40960,
        "parallelism": {"dp_shard_size": 2},
    },
    "train": {
        "epoch": 3,
        "optm_lr": 1e-5,
        "train_batch_per_replica": 4,
        "output_dir": "out",
        "resume": False,
        "train_policy": {"mini_batch": 2, "type": "sft", "dataset": {"test_size": 0.1}},
    },
    "validation": {"enable": True, "freq": 10},
    "custom": {"train_dataset": {"annotation_path": "a.json", "media_path": "m"}, "vision": {"nframes": 8}},
    "engine": {"pack_tokens": 8192},
    "logging": {"logger": ["console"]},
}
EVALUATE = {
    "dataset": {"annotation_path": "a.json", "media_dir": "m"},
    "model": {"model_name": "hf_model://org/name", "max_length": 8192},
    "task": {"type": ""},
    "vision": {"fps": 2.0, "total_pixels": 4_000_000},
    "generation": {"max_tokens": 64, "temperature": 0.0},
    "metrics": {"names": ["bleu"]},
    "num_gpus": 1,
    "results_dir": "out",
}
PROBLEM = {"code": "SPEC_X", "where": "a", "message": "m", "remedy": "r", "exit_code": 3, "severity": "error"}
STATUS = {"state": "RUNNING", "step": 3, "total_steps": 9, "eta_s": 12.5, "message": "", "exit_code": None}
RECORD = {
    **{"job_id": "j", "platform": "local", "action": "train", "spec": "s.toml", "spec_fingerprint": "f"},
    **{"inputs_fingerprint": "i", "output_dir": "/o", "run_dir": "run", "model": "m", "processes": 2, "nodes": 1},
    **{
        "created": "2026-01-01T00:00:00+00:00",
        "launcher": {"pid": 1, "started": 2, "boot": "b", "host": "h"},
        "state": "ERROR",
        "exit_code": 3,
    },
    **{"failure": {"class": "data", "evidence": "x"}, "reference": {"pid": 1, "start": 2}, "log_start": 0},
}
TAO_ITEM = {"video_id": "clip.mp4", "question": "Is it?", "answer": "Yes", "reasoning": "It is.", "item_index": "0"}
TAO_VL = {
    **{"format": "tao-vl-reason-v1.0", "metadata": {"task": "bcq", "license": "x"}, "media_root": None},
    "items": [TAO_ITEM, {**TAO_ITEM, "item_index": "1", "options": ["Yes", "No"]}],
}
TAO_META = {
    **{"version": "cosmos-reason-v1.0", "metadata": {"type": "meta"}},
    "samples": [{"id": "s", "conversation": "s.json", "media": "clip.mp4"}],
}
SAID = [{"role": "user", "content": [{"type": "video", "video": "video_0"}, {"type": "text", "text": "What?"}]}]
TAO_SAID = {
    "version": "cosmos-reason-v1.0",
    "conversations": [*SAID, {"role": "assistant", "content": [{"type": "text", "text": "A car."}]}],
}


@dataclass(frozen=True)
class World:
    """A folder in memory: `media` with a clip and an image, `at` where every input is written and then removed."""

    media: Path
    at: Path

    def fresh(self) -> Path:
        shutil.rmtree(self.at, ignore_errors=True)
        self.at.mkdir()
        return self.at


def make_world(folder: Path) -> World:
    for name, number in (("clip", 0), ("other", 9)):
        write_clip(folder / f"media/{name}.mp4", frames=6, width=48, height=32, first_number=number)
    write_image(folder / "media/image.png", width=32, height=32)
    return World(folder / "media", folder / "at")


Make = Callable[[random.Random], tuple[str, bytes]]  # a file's name and what is in it
Read = Callable[[World, Path], Any]


@dataclass(frozen=True)
class Reader:
    """`share` is how often it has its turn."""

    make: Make
    read: Read
    share: int = 1


def a_list(chance: random.Random, rows: list[Any]) -> tuple[str, bytes]:
    """Some of the rows as a JSON list, as JSON lines, or wrapped in an object."""
    spoiled_rows = [
        spoiled(chance, row) if chance.random() < 0.5 else row for row in chance.sample(rows, chance.randint(1, 4))
    ]
    ending = chance.choice((".json", ".json", ".jsonl"))
    if ending == ".jsonl":
        data = b"\n".join(json.dumps(row).encode() for row in spoiled_rows)
    else:
        whole: Any = (
            spoiled_rows if chance.random() < 0.9 else {chance.choice(("results", "annotations", "x")): spoiled_rows}
        )
        data = as_json(whole, chance)
    if chance.random() < 0.4:
        data = scrambled(chance, data, json.dumps(rows).encode())
    return f"annotations{ending}", data


def annotations(chance: random.Random) -> tuple[str, bytes]:
    return a_list(chance, ROWS)


def results(chance: random.Random) -> tuple[str, bytes]:
    return "results.json", a_list(chance, RESULTS)[1]


def an_object(document: Any, name: str) -> Make:
    def make(chance: random.Random) -> tuple[str, bytes]:
        data = as_json(spoiled(chance, document), chance)
        return name, scrambled(chance, data, data) if chance.random() < 0.4 else data

    return make


def a_spec(document: dict[str, Any], name: str = "spec", endings: Sequence[str] = (".toml", ".yaml", ".json")) -> Make:
    def make(chance: random.Random) -> tuple[str, bytes]:
        ending = chance.choice(endings)
        changed = spoiled(chance, document) if chance.random() < 0.7 else document
        try:
            data = _spec_bytes(ending, changed, chance)
        except (TypeError, ValueError, AttributeError):  # what the format cannot say
            data = as_json(changed, chance)
        return f"{name}{ending}", scrambled(chance, data, data) if chance.random() < 0.5 else data

    return make


def _spec_bytes(ending: str, table: Any, chance: random.Random) -> bytes:
    if ending == ".toml":
        return tomli_w.dumps(table).encode("utf-8", "surrogatepass")
    if ending == ".yaml":
        return yaml.safe_dump(table, allow_unicode=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    return as_json(table, chance)


def a_table(chance: random.Random) -> tuple[str, bytes]:
    text = io.StringIO()
    ending, delimiter = chance.choice((("csv", ","), ("csv", ","), ("tsv", "\t"), ("csv", ";")))
    writer = csv.writer(text, delimiter=delimiter, lineterminator=chance.choice(("\n", "\r\n")))
    writer.writerow(["video", "question", "answer", "options", "id", "video_fps"])
    for number in range(3):
        writer.writerow(["clip.mp4", f'Is "{number}" it?\nSay, please', "yes", "yes|no", number, 8])
    return f"q.{ending}", scrambled(chance, text.getvalue().encode(), b'""",,\n\t|')


def bytes_of(name: str, content: Callable[[], bytes]) -> Make:
    kept: list[bytes] = []

    def make(chance: random.Random) -> tuple[str, bytes]:
        kept[:] = kept or [content()]
        return name, scrambled(chance, kept[0], kept[0])

    return make


def a_clip(ending: str, **options: Any) -> Make:
    def content() -> bytes:
        return _written(lambda path: write_clip(path, frames=6, width=48, height=32, **options), ending)

    return bytes_of(f"clip.{ending}", content)


def a_parquet() -> bytes:
    import pyarrow
    import pyarrow.parquet

    rows = [{"id": str(n), "video": "clip.mp4", "question": "Is it?", "answer": "yes"} for n in range(3)]
    return _written(lambda path: pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path), "parquet")


def a_probe_table() -> bytes:
    row = probe_table.ProbeRow(
        **{"path": "/", "member": None, "kind": "video", "content_key": "c", "plan_key": "p"},
        **{"fps": 8.0, "frames": 6, "width": 48, "height": 32, "duration_s": 0.75, "rotation": 0},
        **{"frames_decoded": 4, "decode_s": 0.1, "glance": bytes(192)},
        **{"code": "MEDIA_UNREADABLE", "message": "m", "remedy": "r", "exit_code": 3},
    )
    return _written(lambda path: probe_table.write_rows(path, [row]), "parquet")


def _written(write: Callable[[Path], object], ending: str) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{ending}"
        write(path)
        return path.read_bytes()


def read_annotations(world: World, file: Path) -> Any:
    found, problems = check_records(file, world.media)
    return [fingerprint(found), problems]


def read_spec(action: str) -> Read:
    def read(world: World, file: Path) -> Any:
        resolved = resolve(action, [read_layer(file)])
        said = [dump(resolved.spec), explain(resolved), resolved.warnings]
        if action == "train":
            said.append(cosmos_table(resolved.spec)[1])
        return said

    return read


def read_words(world: World, file: Path) -> Any:
    """KEY=VALUE words of a command line, one per line."""
    words = file.read_bytes().decode("utf-8", "replace").split("\n")
    return resolve("train", [parse_set(words)]).warnings


def read_results(world: World, file: Path) -> Any:
    items, problems = check_results(file)
    return [score(items), problems]


def read_gaps(world: World, file: Path) -> Any:
    """The results as they are against sound annotations, or the annotations against sound results."""
    other = file.parent / "other.json"
    names_results = file.name == "results.json"
    other.write_text(json.dumps(ROWS if names_results else RESULTS))
    where, notes = (file, other) if names_results else (other, file)
    lines = str(file.parent / "gaps.jsonl")
    found = analyze(str(where), str(file.parent / "gaps.parquet"), str(notes), str(world.media), jsonl=lines)
    return [found.as_dict(), found.problems]


def read_job(world: World, file: Path) -> Any:
    """A job record in the state folder, or what the engine left in the job's run folder."""
    state, run = world.at / "state", world.at / "run"
    (state / "jobs").mkdir(parents=True)
    run.mkdir()
    sound = {**RECORD, "run_dir": str(run)}
    (state / "jobs/j.json").write_text(json.dumps(sound))
    target = {"record.json": state / "jobs/j.json", "log.txt": run / "log.txt"}.get(file.name, run / file.name)
    data = file.read_bytes()
    target.write_bytes(data.replace(b'"run"', json.dumps(str(run)).encode()) if file.name == "record.json" else data)
    kept = environment.state_folder
    environment.state_folder = lambda: state
    try:
        found, problems = records.scan()
        said = [problems]
        for record in found:
            said += [record.run.read_status(), jobs.describe(record), jobs.problems_of(record), jobs.exit_code(record)]
            said.append(asdict(record))
        return [*said, asdict(records.read("j"))]
    finally:
        environment.state_folder = kept


def read_run(world: World, file: Path) -> Any:
    folder = RunFolder(file.parent)
    if file.name == "metrics.jsonl":
        folder.forget_metrics_after(2)
        return read_metrics(file)
    folder.update_run(state="x")
    return None


def read_report(world: World, file: Path) -> Any:
    """The page of a training of which one file is spoiled."""
    run = file.parent
    export = run / "safetensors/step_2"
    export.mkdir(parents=True)
    for name, document in TRAINED.items():
        if not (run / name).exists():
            (run / name).write_text(json.dumps(document))
    if file.name != "metrics.jsonl":
        (run / "metrics.jsonl").write_bytes(METRICS)
    for name in ("export.json", "proof.json"):
        (run / name).rename(export / name)
    return report(read_training(run)).encode()


def read_parent(world: World, file: Path) -> Any:
    """A spec for the successor of a run whose spec.toml, best.json or adapter_config.json is spoiled."""
    from vidqa.spec.parent_layers import parent_layer

    run = file.parent
    export = run / "safetensors/step_2"
    export.mkdir(parents=True)
    (run / "checkpoints/step_2/policy").mkdir(parents=True)
    (run / "checkpoints/step_2/policy/x").touch()
    (export / "model.safetensors").touch()
    (export / "config.json").write_text("{}")
    for name, text in (("run.json", "{}"), ("spec.toml", tomli_w.dumps(TRAIN)), ("best.json", '{"name": "step_2"}')):
        if not (run / name).exists():
            (run / name).write_text(text)
    if file.name == "adapter_config.json":
        (run / "run.json").unlink()
        file.rename(export / file.name)
    said = [find_export(run), find_checkpoint(run)]
    data = Layer("data", {"dataset.annotation_path": "a.json", "dataset.media_dir": "m"})
    resolved = resolve("evaluate", [parent_layer("evaluate", run, "best"), data])
    return [*said, resolved.warnings, resolve("train", [parent_layer("train", run, "best")]).warnings]


def read_converted(world: World, file: Path) -> Any:
    made = convert(file, file.parent / "out", "jsonl", media_path=str(world.media), forms=["mcq", "yes_no"])
    return [made.facts, made.problems]


def read_cosmos(world: World, file: Path) -> Any:
    for name, whole in (("meta.json", TAO_META), ("s.json", TAO_SAID)):
        if not (file.parent / name).exists():
            (file.parent / name).write_text(json.dumps(whole))
    made = convert(file.parent, file.parent / "out", "parquet", "cosmos-reason-v1.0", media_path=str(world.media))
    return [made.facts, made.problems]


def read_set(world: World, file: Path) -> Any:
    found = inspect_dataset(file, world.media)
    split = split_dataset(file, world.media, file.parent / "out", 0.5, 1, "kind")
    return [found.facts, found.problems, split.facts, split.warnings]


def read_probe(world: World, file: Path) -> Any:
    return probe(file) if file.suffix != ".png" else probe_image(file)


def read_table(world: World, file: Path) -> Any:
    return [asdict(row) for row in probe_table.read_rows(file).values()]


def read_answers(world: World, file: Path) -> Any:
    texts = file.read_bytes().decode("utf-8", "replace").split("|")
    return [
        parse_pair(texts[0], texts[-1], texts[len(texts) // 2], "length" if len(texts) % 2 else "stop", task)
        for task in ("", "its_directionality")
    ]


ANSWERS = b'<think>so</think><answer>**B**. the 3 cars</answer>|Which? (A) left (B) 3,5 m|"B"|No cars, 4-5 km/h'
DATA = b"custom.train_dataset.annotation_path=a.json\ncustom.train_dataset.media_path=m\n"
WORDS = DATA + b"train.epoch=3\nlearning_rate=1e-5\npolicy.lora={r=4}\ntrain.resume=true\nengine.pack_tokens=8192"
TRAINED: dict[str, Any] = {
    "run.json": {
        "trainable": [{"part": "lm_head", "parameters": 9, "trainable": 3}],
        "resumes": [{"from": "/a/run/checkpoints/step_1", "step": 1, "changed": ["x: 1 -> 2"]}],
        "export_proof": {"export": "step_2", "proved": False, "reason": "none"},
    },
    "plan.json": {"train_samples": 4, "total_steps": 4, "steps_per_epoch": 2, "quarantined": [PROBLEM]},
    "best.json": {"name": "step_2", "step": 2},
    "quarantine.json": [PROBLEM],
    "export.json": {"step": 2, "measured": {"val/avg_loss": 0.5}},
    "proof.json": {"trainer_loss": 0.5, "reloaded_loss": 0.5},
}
METRICS = b"\n".join(json.dumps({"step": n, "time": 1.5, "train/loss": 2.0}).encode() for n in range(4))

READERS: dict[str, Reader] = {
    "annotations": Reader(annotations, read_annotations, 8),
    "results": Reader(results, read_results, 4),
    "gaps of results": Reader(results, read_gaps, 2),
    "gaps of annotations": Reader(annotations, read_gaps, 2),
    "train spec": Reader(a_spec(TRAIN), read_spec("train"), 4),
    "evaluate spec": Reader(a_spec(EVALUATE), read_spec("evaluate"), 3),
    "words": Reader(bytes_of("words", lambda: WORDS), read_words),
    "status": Reader(an_object(STATUS, "status.json"), read_job, 2),
    "problems": Reader(an_object([PROBLEM, PROBLEM], "problems.json"), read_job, 2),
    "job record": Reader(an_object(RECORD, "record.json"), read_job, 2),
    "log": Reader(bytes_of("log.txt", lambda: b"\x1b[31mstep 3\r\n" * 5), read_job),
    "run": Reader(an_object({"run_id": "x", "created": "y"}, "run.json"), read_run),
    "metrics": Reader(bytes_of("metrics.jsonl", lambda: METRICS), read_run),
    **{f"report of {n}": Reader(an_object(document, n), read_report) for n, document in TRAINED.items()},
    "report of metrics": Reader(bytes_of("metrics.jsonl", lambda: METRICS), read_report),
    "report of spec": Reader(a_spec(TRAIN, "spec", (".toml",)), read_report),
    "parent spec": Reader(a_spec(TRAIN, "spec", (".toml",)), read_parent),
    "parent best": Reader(an_object({"name": "step_2", "step": 2}, "best.json"), read_parent),
    "parent adapter": Reader(an_object({"base_model_name_or_path": "x"}, "adapter_config.json"), read_parent),
    "converted": Reader(annotations, read_converted, 2),
    "converted csv": Reader(a_table, read_converted, 2),
    "converted parquet": Reader(bytes_of("q.parquet", a_parquet), read_converted),
    "converted TAO": Reader(an_object(TAO_VL, "bcq.json"), read_converted),
    "TAO meta": Reader(an_object(TAO_META, "meta.json"), read_cosmos),
    "TAO conversation": Reader(an_object(TAO_SAID, "s.json"), read_cosmos),
    "inspected and split": Reader(annotations, read_set),
    "cosmos records": Reader(annotations, lambda world, file: len(missing_fps(str(file), "annotations"))),
    "probe table": Reader(bytes_of("p.parquet", a_probe_table), read_table),
    "mp4": Reader(a_clip("mp4", audio=True, b_frames=2), read_probe),
    "mkv": Reader(a_clip("mkv", rotation=90), read_probe),
    "webm": Reader(a_clip("webm", codec="libvpx-vp9"), read_probe),
    "avi": Reader(a_clip("avi", codec="mpeg4"), read_probe),
    "png": Reader(
        bytes_of("i.png", lambda: _written(lambda path: write_image(path, width=32, height=32), "png")), read_probe
    ),
    "answers": Reader(bytes_of("answers", lambda: ANSWERS), read_answers, 2),
}
