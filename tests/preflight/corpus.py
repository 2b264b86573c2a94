"""Broken inputs of every kind, made by code, each with the one code that preflight must name first.

Every entry of BROKEN spoils a sound `Case`; `preflight` of the spoiled case must report that code before any other.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.clips import mux_silence, write_clip, write_image
from tests.hub_server import serving
from tests.preflight.conftest import records as sound_records
from tests.tiny_world import tiny_model
from vidqa.core.problem import Problem, ProblemError
from vidqa.preflight.gpus import Declared
from vidqa.preflight.media_probe import NAME
from vidqa.preflight.report import Report, preflight

ANSWERS = 24  # enough of one kind for their balance to count


@dataclass
class Case:
    """A sound training to spoil. `spec` holds dotted keys; `own` makes copies of shared folders before they change."""

    folder: Path
    shared_media: Path
    shared_model: Path
    patch: pytest.MonkeyPatch
    closing: ExitStack = field(default_factory=ExitStack)  # servers that end with the case
    spec: dict[str, Any] = field(default_factory=dict)
    train: Any = None
    held: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    text: str | None = None  # of the spec file, instead of `spec`
    name: str = "spec.json"
    raw: str | bytes | None = None  # of the training annotations, instead of `train`

    def __post_init__(self) -> None:
        self.train, self.held = sound_records(range(4)), sound_records(range(4, 6))
        media, model = str(self.shared_media), str(self.shared_model)
        self.spec = {
            "custom.train_dataset.annotation_path": str(self.folder / "train.json"),
            "custom.train_dataset.media_path": media,
            "custom.val_dataset.annotation_path": str(self.folder / "val.json"),
            "custom.val_dataset.media_path": media,
            "custom.vision.nframes": 4,
            "policy.model_name_or_path": model,
            "policy.model_max_length": 4096,
            "policy.parallelism.dp_shard_size": 2,
            "train.train_batch_per_replica": 2,
            "train.output_dir": str(self.folder / "runs"),
            "validation.enable": True,
        }

    @property
    def media(self) -> Path:
        """The case's own media folder."""
        own = self.folder / "media"
        if not own.exists():
            shutil.copytree(self.shared_media, own)
            (own / NAME).unlink(missing_ok=True)
            self.spec["custom.train_dataset.media_path"] = self.spec["custom.val_dataset.media_path"] = str(own)
        return own

    @property
    def model(self) -> Path:
        """The case's own model folder."""
        own = self.folder / "model"
        if not own.exists():
            shutil.copytree(self.shared_model, own)
            self.spec["policy.model_name_or_path"] = str(own)
        return own

    def write(self) -> Path:
        train = self.folder / "train.json"
        if isinstance(self.raw, bytes):
            train.write_bytes(self.raw)
        else:
            train.write_text(json.dumps(self.train) if self.raw is None else self.raw)
        (self.folder / "val.json").write_text(json.dumps(self.held))
        path = self.folder / self.name
        if self.text is not None or self.name.endswith(".json"):
            path.write_text(json.dumps(nested(self.spec)) if self.text is None else self.text)
        return path

    def evaluation(self, **changes: Any) -> Path:
        """The spec of an evaluation of the held-out records."""
        keys = {
            "dataset.annotation_path": str(self.folder / "val.json"),
            "dataset.media_dir": str(self.shared_media),
            "model.model_name": str(self.shared_model),
            "vision.nframes": 4,
            "results_dir": str(self.folder / "results"),
            **changes,
        }
        path = self.folder / "evaluate.json"
        path.write_text(json.dumps(nested(keys)))
        return path

    def look(self) -> list[Problem]:
        """What preflight says, errors before warnings; that no GPU is here is no fault of the case."""
        try:
            found = self.report().problems
        except ProblemError as stopped:
            found = stopped.problems
        no_gpu = ("PLATFORM_TOO_FEW_GPUS", "warning")
        found = [problem for problem in found if (problem.code, problem.severity) != no_gpu]
        return sorted(found, key=lambda problem: problem.severity != "error")

    def report(self, group: str | None = None) -> Report:
        """Raises ProblemError where the spec is no spec at all."""
        asked = {"spec_path": self.write(), "platform": "local", "group": group, **self.options}
        return preflight(**asked)


def nested(keys: dict[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}"""
    table: dict[str, Any] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        inner = table
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return table


Spoil = Callable[[Case], None]
BROKEN: dict[str, tuple[Spoil, str]] = {}


# What the first problem names beside its code, in its place or its message.
NAMED = {
    "unknown key": "train.epochs",
    "unknown table": "trainer",
    "a word for a number": "train.epoch",
    "a list for a path": "train.output_dir",
    "no epochs": "train.epoch",
    "a choice that is none": "response_mode",
    "batch not divisible": "4",
    "annotations missing": "/nowhere/a.json",
    "media folder missing": "/nowhere/media",
    "no record": "train.json",
    "annotations of no bytes": "train.json",
    "not JSON": "train.json",
    "not UTF-8": "train.json",
    "id twice": "clip0-1",
    "unknown role": "robot",
    "no conversation": "conversations",
    "video is a number": "video",
    "video missing": "gone.mp4",
    "video outside": "train.json[0]",
    "no answer": "train.json[0]",
    "answer empty": "train.json[0]",
    "question empty": "train.json[0]",
    "two tags, one video": "train.json[0]",
    "a number for a record": "train.json[0]",
    "clip of no bytes": "0.mp4",
    "text for a clip": "0.mp4",
    "half a clip": "0.mp4",
    "pictures damaged": "1.mp4",
    "sample too long": "clip0",
    "batch larger than the data": "128",
    "output under a file": "/proc/version",
    "no such model folder": "/nowhere/model",
    "weights cut off": "model.safetensors",
    "no weights": "model",
    "no config": "config.json",
    "no tokenizer": "tokenizer.json",
    "ids of both sets": "1 ids are in both sets",
    "the same video in both sets": "1 files are in both sets",
    "an old package": "peft 0.1.0 is installed",
    "an old tracker": "wandb 0.1.0 is installed",
}


def broken(name: str, code: str) -> Callable[[Spoil], Spoil]:
    def note(spoil: Spoil) -> Spoil:
        assert name not in BROKEN
        BROKEN[name] = (spoil, code)
        return spoil

    return note


def keys(**changes: Any) -> Spoil:
    """Sets keys of the spec, `__` for a dot; None takes a key away."""

    def spoil(case: Case) -> None:
        for name, value in changes.items():
            case.spec[name.replace("__", ".")] = value

    return spoil


def without_validation(case: Case) -> None:
    for name in ("annotation_path", "media_path"):
        del case.spec[f"custom.val_dataset.{name}"]


LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}

for title, code, spoil in (
    ("unknown key", "SPEC_UNKNOWN_KEY", keys(train__epochs=3)),
    ("unknown table", "SPEC_UNKNOWN_KEY", keys(trainer__epoch=3)),
    ("a word for a number", "SPEC_VALUE", keys(train__epoch="three")),
    ("a list for a path", "SPEC_VALUE", keys(train__output_dir=["a"])),
    ("no epochs", "SPEC_VALUE", keys(train__epoch=0)),
    ("a negative learning rate", "SPEC_VALUE", keys(train__optm_lr=-1e-5)),
    ("too many frames", "SPEC_VALUE", keys(custom__vision__nframes=100000)),
    ("a choice that is none", "SPEC_VALUE", keys(custom__train_dataset__response_mode="loud")),
    ("no model", "SPEC_VALUE", keys(policy__model_name_or_path="")),
    ("no output folder", "SPEC_VALUE", keys(train__output_dir="")),
    ("no annotations named", "SPEC_VALUE", keys(custom__train_dataset__annotation_path="")),
    ("no media named", "DATA_MEDIA_MISSING", keys(custom__train_dataset__media_path="")),
    ("fps and nframes", "SPEC_CONFLICT", keys(custom__vision__fps=2)),
    ("neither fps nor nframes", "SPEC_VALUE", keys(custom__vision__nframes=None)),
    ("warm-up twice", "SPEC_CONFLICT", keys(train__optm_warmup_steps=2, train__optm_warmup_epochs=1)),
    ("reinforcement learning", "SPEC_ACTION", keys(train__train_policy__type="grpo")),
    ("tensor parallel", "SPEC_NOT_SUPPORTED", keys(policy__parallelism__tp_size=2)),
    ("a key head for two GPUs", "SPEC_VALUE", keys(policy__parallelism__cp_size=4)),
    (
        "sharing without packing",
        "SPEC_CONFLICT",
        keys(engine__share_video_prefix=True, engine__packing=False),
    ),
    ("batch not divisible", "SPEC_CONFLICT", keys(train__train_policy__mini_batch=4)),
    ("bare model id", "SPEC_MODEL", keys(policy__model_name_or_path="nvidia/Cosmos-Reason2-8B")),
    ("half a hub name", "SPEC_MODEL", keys(policy__model_name_or_path="hf_model://Cosmos")),
    ("learning rate 0", "SPEC_VALUE", keys(train__optm_lr=0)),
    ("learning rate huge", "SPEC_VALUE", keys(train__optm_lr=0.1)),
    ("adapters nowhere", "SPEC_VALUE", keys(policy__lora={**LORA, "target_modules": []})),
    ("adapter and full", "SPEC_CONFLICT", keys(policy__lora={**LORA, "modules_to_save": ["q_proj"]})),
    ("a broken pattern", "SPEC_VALUE", keys(policy__freeze_pattern=["visual.("])),
    (
        "freeze and train",
        "SPEC_CONFLICT",
        keys(policy__freeze_pattern=["a"], policy__trainable_pattern=["b"]),
    ),
    ("validation never due", "SPEC_VALUE", keys(validation__freq_in_epoch=0, validation__freq=0)),
    ("validation set unused", "SPEC_CONFLICT", keys(validation__enable=False)),
    ("batch larger than the data", "SPEC_ZERO_STEPS", keys(train__train_batch_per_replica=64)),
    ("pack smaller than a sample", "SPEC_MODEL_MAX_LENGTH", keys(engine__pack_tokens=8)),
    ("key without effect", "SPEC_NO_EFFECT", keys(redis="12800")),
    ("sample too long", "SAMPLE_TOO_LONG", keys(policy__model_max_length=20)),
    ("budget below one token", "MEDIA_KEYS", keys(custom__vision__total_pixels=1)),
    ("reasoning asked for and none there", "SAMPLE_ANSWERS", keys(custom__train_dataset__response_mode="think")),
    ("no such checkpoint", "RESUME_NO_CHECKPOINT", keys(train__resume="/nowhere/checkpoints/step_3")),
    ("no such platform", "USAGE", lambda case: case.options.update(platform="moon")),
    ("annotations missing", "DATA_FILE_MISSING", keys(custom__train_dataset__annotation_path="/nowhere/a.json")),
    ("media folder missing", "DATA_FILE_MISSING", keys(custom__train_dataset__media_path="/nowhere/media")),
    (
        "annotations that fail to read",
        "DATA_FILE_MISSING",
        keys(custom__train_dataset__annotation_path="/proc/self/mem"),
    ),
    ("frames of a billion pixels", "MEDIA_KEYS", keys(custom__vision__min_pixels=10**18)),
    ("output under a file", "ENV_FILE_REFUSED", keys(train__output_dir="/proc/version/runs")),
    ("output of a name too long", "SPEC_VALUE", keys(train__output_dir="x" * 300)),
    ("output where nobody writes", "ENV_FILE_REFUSED", keys(train__output_dir="/proc/runs")),
    ("no such model folder", "STORAGE_NOT_FOUND", keys(policy__model_name_or_path="/nowhere/model")),
):
    broken(title, code)(spoil)


@broken("spec is not TOML", "SPEC_FILE")
def _(case: Case) -> None:
    case.name, case.text = "spec.toml", "[train\nepoch = 1"


@broken("spec is not YAML", "SPEC_FILE")
def _(case: Case) -> None:
    case.name, case.text = "spec.yaml", "train: [1, 2"


@broken("spec is not there", "SPEC_FILE")
def _(case: Case) -> None:
    case.options["spec_path"] = case.folder / "nowhere.toml"


@broken("spec of another kind", "SPEC_FILE")
def _(case: Case) -> None:
    case.name, case.text = "spec.txt", "train.epoch = 1"


@broken("spec of two actions", "SPEC_ACTION")
def _(case: Case) -> None:
    case.spec = {"train.epoch": 1, "dataset.annotation_path": "x"}


@broken("validation without a set", "SPEC_CONFLICT")
def _(case: Case) -> None:
    without_validation(case)


@broken("held out more than there is", "DATA_SPLIT")
def _(case: Case) -> None:
    without_validation(case)
    case.spec["train.train_policy.dataset.test_size"] = 100


@broken("held out of one video", "DATA_SPLIT")
def _(case: Case) -> None:
    without_validation(case)
    case.train = sound_records(range(1), 8)
    case.spec["train.train_policy.dataset.test_size"] = 0.5


def checkpoint(case: Case, **order: Any) -> None:
    folder = case.folder / "checkpoints" / "step_2"
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / ".metadata").touch()
    facts = {"step": 2, "order": order, "weights": {"lora": None}, "spec": {}}
    (folder / "trainer.json").write_text(json.dumps(facts))
    case.spec["train.resume"] = str(folder)


@broken("checkpoint of another batch", "RESUME_MISMATCH")
def _(case: Case) -> None:
    checkpoint(case, effective_batch=1000)


@broken("GPUs with too little memory", "BUDGET_MEMORY")
def _(case: Case) -> None:
    case.options["declared"] = Declared(2, 1.0, "sm_90")


@broken("checkpoint of another trained part", "RESUME_MISMATCH")
def _(case: Case) -> None:
    checkpoint(case)
    case.spec["policy.freeze_pattern"] = ["visual"]


@broken("checkpoint without its weights", "RESUME_NO_CHECKPOINT")
def _(case: Case) -> None:
    checkpoint(case)
    (case.folder / "checkpoints/step_2/policy/.metadata").unlink()


@broken("evaluation of an adapter without its base", "SPEC_VALUE")
def _(case: Case) -> None:
    case.options["evaluate_spec"] = case.evaluation(**{"model.enable_lora": True})


@broken("evaluation with an unknown key", "SPEC_UNKNOWN_KEY")
def _(case: Case) -> None:
    case.options["evaluate_spec"] = case.evaluation(batch=3)


@broken("evaluation of another model", "COMPARISON_UNEQUAL")
def _(case: Case) -> None:
    other = shutil.copytree(case.shared_model, case.folder / "other")
    config = json.loads((other / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] += 1
    (other / "config.json").write_text(json.dumps(config))
    case.held = sound_records(range(4, 5))
    evaluated = case.folder / "kpi.json"
    evaluated.write_text(json.dumps(sound_records(range(5, 6))))
    keys = {"model.model_name": str(other), "dataset.annotation_path": str(evaluated)}
    case.options["evaluate_spec"] = case.evaluation(**keys)


@broken("evaluation of other frames", "COMPARISON_UNEQUAL")
def _(case: Case) -> None:
    case.held = sound_records(range(4, 5))
    evaluated = case.folder / "kpi.json"
    evaluated.write_text(json.dumps(sound_records(range(5, 6))))
    case.options["evaluate_spec"] = case.evaluation(**{"vision.nframes": 8, "dataset.annotation_path": str(evaluated)})


@broken("evaluated on what was trained", "DATA_SPLIT_LEAK")
def _(case: Case) -> None:
    root = shutil.copytree(case.shared_media, case.folder / "kpi")
    (root / "annotations.json").write_text(json.dumps(sound_records(range(3))))
    case.spec["custom.train_dataset.media_path"] = str(root)
    case.options["kpi_root"] = root


@broken("KPI folder missing", "DATA_FILE_MISSING")
def _(case: Case) -> None:
    case.options["kpi_root"] = case.folder / "nowhere"


def evaluation(**changes: Any) -> Spoil:
    """An evaluation alone, its keys with `__` for a dot."""

    def spoil(case: Case) -> None:
        keys = {name.replace("__", "."): value for name, value in changes.items()}
        case.options["spec_path"] = case.evaluation(**keys)

    return spoil


def adapter(case: Case, *files: str) -> None:
    folder = case.folder / "adapter"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    base = {"model.enable_lora": True, "model.base_model_path": str(case.shared_model)}
    case.options["spec_path"] = case.evaluation(**base, **{"model.model_name": str(folder)})


for title, code, spoil in (
    ("evaluation without room for the answer", "SAMPLE_TOO_LONG", evaluation(model__max_length=100)),
    ("evaluation in an unwritable folder", "ENV_FILE_REFUSED", evaluation(results_dir="/proc/results")),
    ("evaluation of nothing", "DATA_FILE_MISSING", evaluation(dataset__annotation_path="/nowhere/a.json")),
    ("evaluation on no GPU", "SPEC_VALUE", evaluation(num_gpus=0)),
    ("evaluation by a task that is none", "SPEC_VALUE", evaluation(task__type="guessing")),
    ("adapter without its weights", "MODEL_BROKEN", lambda case: adapter(case, "adapter_config.json")),
    (
        "adapter without its configuration",
        "MODEL_BROKEN",
        lambda case: adapter(case, "adapter_model.safetensors"),
    ),
):
    broken(title, code)(spoil)


# Annotations


REPEATS = '[{"from": "human", "value": "Open?", "value": "Shut?"}, {"from": "gpt", "value": "Yes"}]'


def raw(text: str | bytes) -> Spoil:
    def spoil(case: Case) -> None:
        case.raw = text

    return spoil


def first(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Changes the first training record."""

    def spoil(case: Case) -> None:
        change(case.train[0])

    return spoil


def turn(at: int, **changes: Any) -> Spoil:
    return first(lambda record: record["conversations"][at].update(changes))


for title, code, spoil in (
    ("annotations of no bytes", "DATA_EMPTY", raw("")),
    ("no record", "DATA_EMPTY", raw("[]")),
    ("not JSON", "DATA_SYNTAX", raw("[{,]")),
    ("cut off", "DATA_SYNTAX", raw('[{"id": "a", "video": "0.mp4"')),
    ("not UTF-8", "DATA_SYNTAX", raw(b'[{"id": "\xff\xfe"}]')),
    ("a bad line of JSONL", "DATA_SYNTAX", raw(json.dumps(sound_records(range(1))[0]) + '\n{"id": \n')),
    ("nested too deeply", "DATA_SYNTAX", raw("[" * 100_000)),
    ("a repeated key", "DATA_SYNTAX", raw('[{"id": "a", "question": "Open?", "answer": "Yes", "answer": "No"}]')),
    ("a repeated key of JSONL", "DATA_SYNTAX", raw('{"question": "Open?", "answer": "Yes", "answer": "No"}\n')),
    ("a repeated key of turns in JSON text", "DATA_SYNTAX", first(lambda record: record.update(conversations=REPEATS))),
    ("one object", "DATA_FIELD", raw(json.dumps({"data": []}, indent=1))),
    ("a number for a record", "DATA_FIELD", raw("[1, 2, 3]")),
    ("no conversation", "DATA_FIELD", first(lambda record: record.pop("conversations"))),
    ("conversation is text", "DATA_FIELD", first(lambda record: record.update(conversations="Is it?"))),
    ("no turns", "DATA_FIELD", first(lambda record: record.update(conversations=[]))),
    ("id is a list", "DATA_FIELD", first(lambda record: record.update(id=["a"]))),
    ("video is a number", "DATA_FIELD", first(lambda record: record.update(video=7))),
    ("video_fps is 0", "DATA_FIELD", first(lambda record: record.update(video_fps=0))),
    ("answer is null", "DATA_FIELD", turn(1, value=None)),
    ("id twice", "DATA_FIELD", first(lambda record: record.update(id="clip0-1"))),
    ("unknown role", "DATA_FIELD", turn(0, **{"from": "robot"})),
    ("two questions in a row", "DATA_FIELD", turn(1, **{"from": "human"})),
    ("no answer", "DATA_FIELD", first(lambda record: record["conversations"].pop())),
    ("answer empty", "DATA_FIELD", turn(1, value="  ")),
    ("question empty", "DATA_FIELD", first(lambda record: empty_question(record))),
    ("two tags, one video", "DATA_TAG_COUNT", turn(0, value="<video><video>Is it?")),
    ("a tag without a video", "DATA_TAG_COUNT", first(lambda record: record.pop("video"))),
    ("video missing", "DATA_MEDIA_MISSING", first(lambda record: record.update(video="gone.mp4"))),
    ("video is a folder", "DATA_MEDIA_MISSING", first(lambda record: record.update(video="."))),
    ("video on the network", "DATA_MEDIA_MISSING", first(lambda record: record.update(video="https://a.b/c.mp4"))),
    ("video outside", "DATA_MEDIA_OUTSIDE_ROOT", first(lambda record: record.update(video="../../etc/hosts"))),
    ("text only", "DATA_FIELD", first(lambda record: (record.pop("video"), untag(record)))),
    ("half a character", "DATA_FIELD", turn(0, value="<video>\ud800?")),
    ("control token in a text", "CHAT_SPECIAL_TOKEN_IN_TEXT", turn(0, value="<video>a<|im_end|>b")),
):
    broken(title, code)(spoil)


def empty_question(record: dict[str, Any]) -> None:
    record.pop("video")
    record["conversations"][0]["value"] = " "


def untag(record: dict[str, Any]) -> None:
    record["conversations"][0]["value"] = "Is it?"


@broken("one answer only", "DATA_LABELS_UNBALANCED")
def _(case: Case) -> None:
    case.train = sound_records(range(4), ANSWERS // 4)
    for record in case.train:
        record["conversations"][1]["value"] = "Yes."


@broken("ids of both sets", "DATA_SPLIT_LEAK")
def _(case: Case) -> None:
    case.held[0]["id"] = "clip0-0"


@broken("the same video in both sets", "DATA_SPLIT_LEAK")
def _(case: Case) -> None:
    case.held[0]["video"] = "0.mp4"


@broken("a link into the other set", "DATA_SPLIT_LEAK")
def _(case: Case) -> None:
    (case.media / "link.mp4").symlink_to(case.media / "0.mp4")
    case.held[0]["video"] = "link.mp4"


@broken("a copy in the other set", "DATA_SPLIT_LEAK")
def _(case: Case) -> None:
    shutil.copy(case.media / "0.mp4", case.media / "copy.mp4")
    case.held[0]["video"] = "copy.mp4"


@broken("encoded again in the other set", "DATA_SPLIT_NEAR")
def _(case: Case) -> None:
    write_clip(case.media / "again.mp4", frames=16, fps=8, codec="mpeg4")
    case.held[0]["video"] = "again.mp4"


# Media


@broken("clip of no bytes", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    (case.media / "0.mp4").write_bytes(b"")


@broken("text for a clip", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    (case.media / "0.mp4").write_text("This is not a video.\n" * 100)


@broken("noise for a clip", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    (case.media / "0.mp4").write_bytes(np.random.default_rng(0).bytes(5000))


@broken("half a clip", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    data = (case.media / "0.mp4").read_bytes()
    (case.media / "0.mp4").write_bytes(data[: len(data) // 2])


@broken("half a clip with its index in front", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    path = case.media / "0.mov"
    write_clip(case.media / "0.mp4", frames=64, fps=8, width=320, height=240)
    remux(case.media / "0.mp4", path, movflags="faststart")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    case.train[0]["video"] = case.train[1]["video"] = path.name


def remux(source: Path, target: Path, **options: str) -> None:
    with av.open(str(source)) as read, av.open(str(target), "w", options=options) as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(read.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                written.mux(packet)


@broken("pictures damaged", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    write_clip(case.media / "1.mp4", frames=48, fps=8, width=320, height=240)
    whole = bytearray((case.media / "1.mp4").read_bytes())
    begin, end = whole.index(b"mdat") + 4, whole.rindex(b"moov") - 4
    middle = (begin + end) // 2
    whole[middle:end] = bytes(end - middle)
    (case.media / "1.mp4").write_bytes(whole)


@broken("sound only", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    with av.open(str(case.media / "0.mp4"), "w") as container:
        mux_silence(container, container.add_stream("aac", rate=48000))


@broken("a pipe for a clip", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    (case.media / "0.mp4").unlink()
    os.mkfifo(case.media / "0.mp4")


@broken("decoding takes too long", "VIDEO_DECODE_TIMEOUT")
def _(case: Case) -> None:
    write_clip(case.media / "0.mp4", frames=60, fps=30, keyframe_every=60)
    case.spec["engine.decode_timeout_s"] = 0.001


@broken("a broken picture", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    (case.media / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    picture(case, "a.png")


@broken("a picture of no bytes", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    (case.media / "a.jpg").touch()
    picture(case, "a.jpg")


@broken("a picture like a thread", "MEDIA_TOO_NARROW")
def _(case: Case) -> None:
    write_image(case.media / "a.png", width=1000, height=4)
    picture(case, "a.png")


def picture(case: Case, name: str) -> None:
    record = case.train[0]
    record.pop("video")
    record["image"] = name
    record["conversations"][0]["value"] = "<image>\nIs it?"


@broken("video_fps is not the file's", "MEDIA_READ_DIFFERENTLY")
def _(case: Case) -> None:
    case.train[0]["video_fps"] = 30


@broken("video_end after the file's end", "MEDIA_READ_DIFFERENTLY")
def _(case: Case) -> None:
    part = {"type": "video", "video": case.train[0].pop("video"), "video_start": 0.5, "video_end": 60}
    case.train[0]["conversations"][0]["value"] = [part, {"type": "text", "text": "Is it 0?"}]


@broken("a stream without a rate", "MEDIA_READ_DIFFERENTLY")
def _(case: Case) -> None:
    write_clip(case.media / "a.mjpeg", codec="mjpeg", pix_fmt="yuvj420p")
    case.train[0]["video"] = "a.mjpeg"


@broken("a recording that begins inside a group of pictures", "MEDIA_READ_DIFFERENTLY")
def _(case: Case) -> None:
    write_clip(case.media / "whole.ts")
    with av.open(str(case.media / "whole.ts")) as whole, av.open(str(case.media / "a.ts"), "w") as part:
        copy = part.add_stream_from_template(whole.streams.video[0])
        for packet in [packet for packet in whole.demux(video=0) if packet.size][3:]:
            packet.stream = copy
            part.mux(packet)
    case.train[0]["video"] = "a.ts"


@broken("a picture of 16 bits", "MEDIA_READ_DIFFERENTLY")
def _(case: Case) -> None:
    Image.fromarray(np.full((48, 64), 4000, np.uint16)).save(case.media / "a.png")
    picture(case, "a.png")


@broken("an archive that is none", "DATA_TAR_BROKEN")
def _(case: Case) -> None:
    path = case.folder / "videos.tar"
    path.write_bytes(b"no archive" * 100)
    case.spec["custom.train_dataset.media_path"] = str(path)


@broken("an archive cut off", "DATA_TAR_BROKEN")
def _(case: Case) -> None:
    path = archive(case, "videos.tar.gz", "w:gz")
    path.write_bytes(path.read_bytes()[:-200])


@broken("an archive without the video", "DATA_MEDIA_MISSING")
def _(case: Case) -> None:
    archive(case, "videos.tar", "w")
    case.train[0]["video"] = "gone.mp4"


@broken("a broken video in an archive", "MEDIA_UNREADABLE")
def _(case: Case) -> None:
    (case.media / "0.mp4").write_bytes(b"no video at all")
    archive(case, "videos.tar", "w")


def archive(case: Case, name: str, mode: Any) -> Path:
    path = case.folder / name
    with tarfile.open(path, mode) as tar:
        for file in sorted(case.media.iterdir()):
            tar.add(file, file.name)
    case.spec["custom.train_dataset.media_path"] = str(path)
    return path


# Models


def remove(name: str) -> Spoil:
    return lambda case: (case.model / name).unlink()


def rewrite(name: str, change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoil(case: Case) -> None:
        value = json.loads((case.model / name).read_text())
        change(value)
        (case.model / name).write_text(json.dumps(value))

    return spoil


def overwrite(name: str, text: str | bytes) -> Spoil:
    return lambda case: (case.model / name).write_bytes(text.encode() if isinstance(text, str) else text)


def sized(part: str, **changes: Any) -> Spoil:
    return rewrite("config.json", lambda config: config[part].update(changes))


def pipe(name: str) -> Spoil:
    """A named pipe, whose reader waits for ever, in a file's place."""

    def spoil(case: Case) -> None:
        (case.model / name).unlink()
        os.mkfifo(case.model / name)

    return spoil


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def index(weight_map: Any) -> Spoil:
    return overwrite("model.safetensors.index.json", json.dumps({"weight_map": weight_map}))


for title, code, spoil in (
    ("no config", "MODEL_BROKEN", remove("config.json")),
    ("no tokenizer", "MODEL_BROKEN", remove("tokenizer.json")),
    ("no weights", "MODEL_BROKEN", remove("model.safetensors")),
    ("config is not JSON", "MODEL_BROKEN", overwrite("config.json", "{")),
    ("config is a list", "MODEL_BROKEN", overwrite("config.json", "[]")),
    ("another architecture", "MODEL_UNSUPPORTED", rewrite("config.json", lambda c: c.update(model_type="llama"))),
    (
        "a mixture of experts",
        "MODEL_UNSUPPORTED",
        rewrite("config.json", lambda c: c.update(model_type="qwen3_vl_moe")),
    ),
    (
        "quantized weights",
        "MODEL_QUANTIZED",
        rewrite("config.json", lambda c: c.update(quantization_config={"quant_method": "fp8"})),
    ),
    ("a billion blocks", "MODEL_UNSUPPORTED", sized("vision_config", depth=10**9)),
    ("a billion layers", "MODEL_UNSUPPORTED", sized("text_config", num_hidden_layers=10**9)),
    ("a hundred thousand taps", "MODEL_UNSUPPORTED", sized("vision_config", deepstack_visual_indexes=[0] * 100_000)),
    ("a tap above the last block", "MODEL_UNSUPPORTED", sized("vision_config", deepstack_visual_indexes=[99])),
    *(
        (f"null for {key}", "MODEL_UNSUPPORTED", sized(part, **{key: None}))
        for part, keys in (
            ("text_config", ("vocab_size", "head_dim", "rms_norm_eps")),
            ("vision_config", ("patch_size", "in_channels", "num_heads", "deepstack_visual_indexes")),
        )
        for key in keys
    ),
    ("yarn", "MODEL_UNSUPPORTED", sized("text_config", rope_parameters={"rope_type": "yarn", "factor": 4.0})),
    ("yarn as older files have it", "MODEL_UNSUPPORTED", sized("text_config", rope_scaling={"type": "yarn"})),
    ("config nested too deeply", "MODEL_BROKEN", overwrite("config.json", '{"a":' * 100_000)),
    ("a pipe for a config", "MODEL_BROKEN", pipe("config.json")),
    ("a pipe for a tokenizer", "MODEL_BROKEN", pipe("tokenizer.json")),
    ("a pipe for weights", "MODEL_BROKEN", pipe("model.safetensors")),
    ("a pipe for a chat template", "MODEL_BROKEN", pipe("chat_template.jinja")),
    ("a template without an end", "CHAT_TEMPLATE_BROKEN", overwrite("chat_template.jinja", ENDLESS)),
    ("no architecture", "MODEL_UNSUPPORTED", rewrite("config.json", lambda c: c.pop("model_type"))),
    ("index names a file that is not there", "MODEL_BROKEN", index({"a.weight": "part-1.safetensors"})),
    ("index names a tensor that is not there", "MODEL_BROKEN", index({"a.weight": "model.safetensors"})),
    ("index is not JSON", "MODEL_BROKEN", overwrite("model.safetensors.index.json", "{")),
    ("index without a map", "MODEL_BROKEN", index(["a"])),
    ("weights of no bytes", "MODEL_BROKEN", overwrite("model.safetensors", "")),
    ("a pointer for weights", "MODEL_BROKEN", overwrite("model.safetensors", "version https://git-lfs\n" * 5)),
    ("tokenizer is not JSON", "MODEL_BROKEN", overwrite("tokenizer.json", "no")),
):
    broken(title, code)(spoil)


@broken("weights cut off", "MODEL_BROKEN")
def _(case: Case) -> None:
    path = case.model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


@broken("model is a file", "SPEC_MODEL")
def _(case: Case) -> None:
    path = case.folder / "model.bin"
    path.touch()
    case.spec["policy.model_name_or_path"] = str(path)


@broken("a chat template that fails", "CHAT_TEMPLATE_BROKEN")
def _(case: Case) -> None:
    (case.model / "chat_template.jinja").write_text("{% if %}")


def hub(status: int) -> Spoil:
    """A hub that always answers so; 0 is silence."""

    def spoil(case: Case) -> None:
        server = case.closing.enter_context(serving(case.shared_model))
        server.refuse = status
        case.patch.setenv("HF_ENDPOINT", server.url)
        case.spec["policy.model_name_or_path"] = "hf_model://org/tiny"

    return spoil


for status, code in (
    *((status, "STORAGE_DENIED") for status in (401, 403)),
    (404, "STORAGE_NOT_FOUND"),
    *((status, "STORAGE_UNREACHABLE") for status in (429, 503, 0)),
):
    broken(f"a hub that answers {status}", code)(hub(status))


@broken("a gated model and another's token", "STORAGE_DENIED")
def _(case: Case) -> None:
    server = case.closing.enter_context(serving(case.shared_model))
    server.gated_to = "the-invited"
    case.patch.setenv("HF_ENDPOINT", server.url)
    case.patch.setenv("HF_TOKEN", "somebody-else")
    case.spec["policy.model_name_or_path"] = "hf_model://org/tiny"


# Environments


@broken("a model that no disk holds", "ENV_DISK_SPACE")
def _(case: Case) -> None:
    total = {"metadata": {"total_size": 10**16}, "weight_map": {"a.weight": "part-1.safetensors"}}
    (case.model / "model.safetensors").unlink()
    (case.model / "model.safetensors.index.json").write_text(json.dumps(total))
    server = case.closing.enter_context(serving(case.model))
    case.patch.setenv("HF_ENDPOINT", server.url)
    case.spec["policy.model_name_or_path"] = "hf_model://org/tiny"


@broken("GPUs that the image does not know", "ENV_GPU_UNFIT")
def _(case: Case) -> None:
    case.options |= {"engine": "cosmos-rl", "declared": Declared(8, 32.0, "sm_70")}


@broken("GPUs that do not multiply 8-bit floats", "ENV_GPU_UNFIT")
def _(case: Case) -> None:
    case.options["declared"] = Declared(8, 80.0, "sm_80")
    case.spec["train.fp8.enable_fp8"] = True


@broken("fewer GPUs than ranks", "PLATFORM_TOO_FEW_GPUS")
def _(case: Case) -> None:
    case.options["declared"] = Declared(gpu_count=1)


@broken("few open files", "ENV_MACHINE_LIMITS")
def _(case: Case) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))  # the test sets it back


@broken("an old package", "ENV_PACKAGE_MISSING")
def _(case: Case) -> None:
    installed(case, "peft", "0.1.0")


@broken("an old tracker", "ENV_PACKAGE_MISSING")
def _(case: Case) -> None:
    installed(case, "wandb", "0.1.0")
    case.spec["logging.logger"] = ["console", "wandb"]


@broken("a transformers that is too old for the family", "ENV_PACKAGE_MISSING")
def _(case: Case) -> None:
    installed(case, "transformers", "5.17.0")
    case.spec["policy.model_name_or_path"] = str(tiny_model(case.folder / "second", "qwen2_5_vl"))


@broken("torchvision for another torch", "ENV_PACKAGE_MISSING")
def _(case: Case) -> None:
    installed(case, "torchvision", "0.99.0", "Requires-Dist: torch==1.0.0")


def installed(case: Case, name: str, version: str, more: str = "") -> None:
    """Something that package metadata is found for, before what is really installed."""
    folder = case.folder / "site" / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}\n")
    case.patch.syspath_prepend(str(case.folder / "site"))


@broken("an old driver", "ENV_GPU_UNFIT")
def _(case: Case) -> None:
    machine(case, "NVIDIA H200, 143771, 9.0, 470.82.01", cuda="11.4")


def machine(case: Case, gpu: str, cuda: str, count: int = 2) -> None:
    """A machine with GPUs, as far as nvidia-smi can tell: a program of that name that answers like the real one."""
    folder = case.folder / "bin"
    folder.mkdir()
    listed = "".join(f"{number}, {gpu}\n" for number in range(count))
    named = "".join(f"GPU {number}: {gpu.partition(',')[0]} (UUID: GPU-{number})\n" for number in range(count))
    program = folder / "nvidia-smi"
    answers = f"-L) printf '{named}';; '') echo '| CUDA Version: {cuda} |';; *) printf '{listed}'"
    program.write_text(f"#!/bin/sh\ncase $1 in {answers}; esac\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    case.patch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    case.patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
