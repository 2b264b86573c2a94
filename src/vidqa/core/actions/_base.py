"""What an action is: one declaration that every part of the program reads, and that imports none of them.

Whatever needs a library, or a package above this one, is named as "module:name" and imported when it is first used:
scripts read the table for their --help, and a look at a job reads it without pydantic or torch. A declaration of a
plug-in may hold the object itself.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Named = Any  # an object, or the "module:name" of one


def resolve(named: Named) -> Any:
    """The object that a declaration names."""
    if not isinstance(named, str):
        return named
    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class DataSet:
    """One set of records that an action reads."""

    name: str  # what reports call it
    annotations: str  # the keys that say where it is
    media: str
    root: str  # the option --ROOT-root of build_spec.py names a folder that holds both
    root_sets: Mapping[str, Any] = field(default_factory=dict)  # further keys that such a folder sets
    needed: str = "always"  # when a spec must name it: "always", or unless what
    teaches: bool = False  # whether weights learn from it

    def options(self, annotations: str, media: str = "") -> list[str]:
        """The options of build_spec.py that name these records: a folder with annotations.json as a root, others by
        their keys."""
        names = ("annotations.json", "annotations.jsonl")
        if not media and any(os.path.isfile(os.path.join(annotations, name)) for name in names):
            return [f"--{self.root}-root", annotations]
        values = {self.annotations: annotations, self.media: media, **self.root_sets}
        return [word for key, value in values.items() if value for word in ("--set", f"{key}={value}")]


@dataclass(frozen=True)
class ModelKey:
    """A key that names a model, the key of its revision, and the key that must be true for this model to be read. The
    first model is the one that is trained or asked; a second one is the base of the adapter that the first one is."""

    name: str
    revision: str = ""
    only_with: str = ""


@dataclass(frozen=True)
class Parent:
    """What a spec takes from an earlier run: `keys` of a run folder, and of which save ("best", "latest") unless the
    user says. `keys(run, home, which)` gets the folder as named and the run's own one below it."""

    which: str
    keys: Named


@dataclass(frozen=True)
class Resuming:
    """How a run goes on in its own folder."""

    key: str  # true in a spec means going on; a text there is a checkpoint that a new run starts from
    # Whether a launch refuses to go on where there is no run of this spec, instead of starting one.
    must_exist: bool = False
    same_inputs: bool = False  # whether only a run of the same data and model goes on
    begun: Callable[[Any], bool] = lambda run: True  # whether a run folder holds what an attempt can go on with


@dataclass(frozen=True)
class RecordSampling:
    """How records become samples."""

    planner: Named  # planner(spec, model folder), a vidqa.planning.samples.Planner
    vision: str  # the table that says how videos become frames
    length_key: str  # the key that bounds the tokens of a sample
    longest: Callable[[Any], int]  # tokens that a sample may have
    # (share or number of videos, seed) of the part of the first set that becomes the second one, or that is left out
    # where the action has none.
    held_out: Callable[[Any], tuple[float | int, int] | None] = lambda spec: None
    limit: Callable[[Any], int | None] = lambda spec: None  # how many records of each set count, None is all
    prompt: Callable[[Any], str] = lambda spec: ""  # what is asked of a record without a question
    # (seconds, seconds in common with the one before) of the windows that a longer video is cut into; 0 seconds leave
    # it whole.
    windows: Callable[[Any], tuple[float, float]] = lambda spec: (0.0, 0.0)
    # By the name of a set, mode(spec): its response mode, where it is not the planner's.
    modes: Mapping[str, Named] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """One thing that a job does."""

    # Its spec.
    name: str  # also of the scripts' argument, the schema, the template and the pages
    spec: Named  # its pydantic model (vidqa.spec.models.Spec); the defaults are the template
    tables: tuple[str, ...]  # the top-level tables and keys that tell its specs from those of other actions
    output_key: str  # the folder in which a run makes its own
    program: str  # "module:function" of the engine, program(spec, run) -> exit code
    models: tuple[ModelKey, ...] = ()  # those that it reads
    data: tuple[DataSet, ...] = ()  # the sets of records that it reads
    reads: Named = lambda spec: ()  # reads(spec): further keys that name a folder or a file
    decoding: str = ""  # the table that says how media are decoded and cached, a DecodeEngine; empty: it decodes none
    rules: Named = lambda spec: ()  # rules(spec): the problems that can be seen without the data
    built_from: str = ""  # options of build_spec.py, as pages show them
    # Named starting points; the first one is the default.
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"full": {}})
    shorthand: Mapping[str, str] = field(default_factory=dict)  # short names of keys
    exclusive: tuple[tuple[str, str], ...] = ()  # pairs of keys of which one may be set
    replacing: tuple[tuple[str, str], ...] = ()  # pairs of which a later layer's one takes the place of the other
    nested_in: str = ""  # a table that older files hold all keys in
    not_identity: tuple[str, ...] = ()  # keys beside the output's that do not change what a run computes
    parent: Parent | None = None  # what a spec takes from an earlier run
    cosmos: bool = False  # whether a job of this action is rendered for NVIDIA's cosmos-rl container
    is_searched: bool = False  # whether a hyper-parameter search may choose its values

    # Its job.
    # Engine processes that a spec asks for, by its `processes_key`; with `fills_gpus` they must be as many as the GPUs.
    processes: Callable[[Any], int] = lambda spec: 1
    processes_key: str = ""
    fills_gpus: bool = False
    # Names of the secrets without which something that a spec asks for is not done.
    secrets: Callable[[Any], tuple[str, ...]] = lambda spec: ()
    # Extras of this project that a spec needs beyond the engine's own, and the key that needs each.
    packages: Callable[[Any], Mapping[str, str]] = lambda spec: {}
    resuming: Resuming | None = None  # how a run goes on; without it an attempt starts anew
    outcome: Named = None  # outcome(record): what a job that is over has to show, and the commands that follow

    # Its work.
    proof: str = ""  # another such program, which computes something again, compares and trains nothing (--prove)
    proves_run: bool = False  # whether its proof is of an earlier run, in whose folder the proof's run folder lies
    page: str = ""  # the module that writes a page of the run folder when the program ends
    uploads: Callable[[Any], bool] = lambda spec: False  # whether a spec wants its run uploaded when it is complete
    sampling: RecordSampling | None = None  # how records become samples; None: no samples are planned
    answering: str = ""  # the table that says how a model answers them (batch_size, generator); empty: it answers none
    needs_answers: bool = True  # whether a record without an answer is a problem
    # Whether it changes weights, with the tables of a TrainSpec: preflight foresees its steps, memory, disk and time.
    trains: bool = False
    draws: bool = False  # whether it learns from completions that it draws, instead of the records' own answers
    measured_by: str = ""  # the action that measures what this one makes
    # evaluation(spec): the file of a spec of that action, where a spec names one; its data are protected.
    evaluation: Callable[[Any], str] = lambda spec: ""
    checks: Named = ()  # further checks of preflight, a sequence of vidqa.preflight.registry.Check

    @property
    def spec_model(self) -> Any:
        """The pydantic model of its spec."""
        return resolve(self.spec)

    @property
    def not_computed(self) -> frozenset[str]:
        """The keys that do not change what a run computes."""
        return frozenset((self.output_key, *self.not_identity))
