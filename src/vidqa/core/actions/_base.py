"""The declaration of an action (train, evaluate, quantize and so on): its spec, its job and its work.

All parts of the program read it, and it imports none of them. Code that needs a library, or a package above this one,
is named as "module:name" and imported at its first use: neither the --help of a script nor the status of a job needs
pydantic or torch. A plug-in may pass the object itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vidqa.core.files import annotations_in_folder

Importable = Any  # an object, or the "module:name" from which `resolve` imports it


def resolve(importable: Importable) -> Any:
    """The object named in a declaration. Raises ImportError or AttributeError if there is none."""
    if not isinstance(importable, str):
        return importable
    module, _, name = importable.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class DataSet:
    """One set of records that an action reads."""

    name: str  # in reports
    annotations: str  # the key of the annotation file
    media: str  # the key of the media folder
    root: str  # "train" for --train-root of build_spec.py, which names a folder with annotations and media
    root_sets: Mapping[str, Any] = field(default_factory=dict)  # further keys that this option sets, with their values
    required_when: str = "always"  # when a spec must name the set, in words for pages
    is_trained_on: bool = False  # whether weights are fitted to it

    def options(self, annotations: str, media: str = "") -> list[str]:
        """The options of build_spec.py for `annotations`, a file or folder, and the folder `media`. A folder with
        annotations.json needs one --ROOT-root, other inputs a --set for each key."""
        if not media and annotations_in_folder(annotations):
            return [f"--{self.root}-root", annotations]
        values = {self.annotations: annotations, self.media: media, **self.root_sets}
        return [word for key, value in values.items() if value for word in ("--set", f"{key}={value}")]


@dataclass(frozen=True)
class ModelKey:
    """The spec keys of a model. An action's first model is trained or generates answers; a second one is the base model
    of the first, which then is an adapter."""

    name: str  # the key of its name or folder
    revision: str = ""  # the key of its revision on the hub
    only_with: str = ""  # a key that must be true for the model to be read


@dataclass(frozen=True)
class Parent:
    """The inheritance from an earlier run (--parent-run)."""

    save: str  # "best" or "latest": the default checkpoint or export for the weights
    keys: Importable  # keys(folder as the user names it, run folder in it, save): spec keys and their values


@dataclass(frozen=True)
class Resuming:
    """Settings for resuming a run in its own folder."""

    key: str  # the spec key: true resumes the run; a path is the checkpoint from which a new run starts
    must_exist: bool = False  # whether resuming is refused without an earlier run of this spec, or starts a new one
    same_inputs: bool = False  # whether the earlier run must have had the same data and model
    can_resume: Callable[[Any], bool] = lambda run: True  # whether a RunFolder has a checkpoint or answers to resume


@dataclass(frozen=True)
class RecordSampling:
    """The conversion of records to samples. Its functions take the spec."""

    planner: Importable  # planner(spec, model folder) -> vidqa.planning.samples.Planner
    vision: str  # the table with the frames and pixels of videos
    length_key: str  # the key of the maximum length of a sample in tokens
    longest: Callable[[Any], int]  # this maximum
    # (share or number of videos, seed) of the held-out part of the first set. It becomes the second set, or is left out
    # if the action has only one set.
    held_out: Callable[[Any], tuple[float | int, int] | None] = lambda spec: None
    limit: Callable[[Any], int | None] = lambda spec: None  # number of first records used of each set; None: all
    prompt: Callable[[Any], str] = lambda spec: ""  # the question of a record without one
    # (length, overlap) in seconds of the windows into which a longer video is cut; length 0 leaves it whole.
    windows: Callable[[Any], tuple[float, float]] = lambda spec: (0.0, 0.0)
    # Response modes, mode(spec), of the sets (by name) whose mode is not the planner's.
    modes: Mapping[str, Importable] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """A kind of job, such as train. Functions of one argument take the spec."""

    # Its spec.
    name: str  # on the command line, in file names of schema and template, and on pages
    spec: Importable  # its pydantic model, a vidqa.spec.models.Spec; the defaults are the template
    tables: tuple[str, ...]  # the top-level tables and keys by which a spec without a named action is recognized
    output_key: str  # the key of the folder in which a run makes its own
    program: str  # "module:function" of the engine, program(spec, run) -> exit code
    models: tuple[ModelKey, ...] = ()  # the models that it reads
    data: tuple[DataSet, ...] = ()  # the sets of records that it reads
    reads: Importable = lambda spec: ()  # reads(spec): further keys of files and folders that it reads
    decoding: str = ""  # the table for decoding and caching of media, a DecodeEngine; empty: no media are decoded
    rules: Importable = lambda spec: ()  # rules(spec): problems that can be found without the data
    build_options: str = ""  # options of build_spec.py in the example that pages show
    # Values of keys by profile name (--profile); the first profile is the default.
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"full": {}})
    shorthand: Mapping[str, str] = field(default_factory=dict)  # full keys by their short names
    exclusive: tuple[tuple[str, str], ...] = ()  # pairs of keys of which only one may be set
    later_wins: tuple[tuple[str, str], ...] = ()  # pairs of keys: setting one in a later layer turns the other off
    nested_in: str = ""  # the table in which spec files of earlier versions have all keys
    keys_without_effect: tuple[str, ...] = ()  # keys besides output_key that do not change what a run computes
    parent: Parent | None = None  # inheritance from an earlier run
    cosmos: bool = False  # whether a job of this action is rendered for NVIDIA's cosmos-rl container
    is_searchable: bool = False  # whether a hyper-parameter search may choose its values

    # Its job.
    # The number of engine processes, and the key that sets it; with `fills_gpus` it must be the number of GPUs.
    processes: Callable[[Any], int] = lambda spec: 1
    processes_key: str = ""
    fills_gpus: bool = False
    # Names of the secrets that a spec needs, for an upload or a tracker.
    secrets: Callable[[Any], tuple[str, ...]] = lambda spec: ()
    # Extras of this project that a spec needs beyond the engine's own, and the key that needs each.
    packages: Callable[[Any], Mapping[str, str]] = lambda spec: {}
    resuming: Resuming | None = None  # how a run is resumed; None: every attempt starts over
    outcome: Importable = None  # outcome(record): the results of an ended job, and the next commands

    # Its work.
    proof: str = ""  # a program like `program` for --verify: it recomputes and compares results, without training
    proves_earlier_run: bool = False  # whether the proof reads an earlier run, whose folder contains its own run folder
    report_module: str = ""  # the module that writes the HTML report of the run folder when the program ends
    uploads: Callable[[Any], bool] = lambda spec: False  # whether a complete run is uploaded
    sampling: RecordSampling | None = None  # conversion of records to samples; None: no samples are planned
    answering: str = ""  # the table with batch_size and generator; empty: it generates no answers
    needs_answers: bool = True  # whether a record without an answer is an error
    # Whether it trains weights and has the tables of a TrainSpec: preflight predicts its steps, memory, disk and time.
    trains: bool = False
    generates_completions: bool = False  # whether it trains on its own completions instead of the records' answers
    evaluated_by: str = ""  # the action that evaluates its model
    # The spec file of that evaluation, if the spec names one; preflight reports its data among those of the training.
    evaluation: Callable[[Any], str] = lambda spec: ""
    checks: Importable = ()  # its own checks in preflight, a sequence of vidqa.preflight.registry.Check

    @property
    def spec_model(self) -> Any:
        """The pydantic model of its spec."""
        return resolve(self.spec)

    @property
    def ignored_keys(self) -> frozenset[str]:
        """All keys that do not change what a run computes, output_key among them."""
        return frozenset((self.output_key, *self.keys_without_effect))
