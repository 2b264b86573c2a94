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
    """One set of records that an action reads.

    name                what reports call it
    annotations, media  the keys that say where it is
    root                the option --ROOT-root of build_spec.py names a folder that holds both
    root_sets           further keys that such a folder sets
    needed              when a spec must name it: "always", or unless what
    teaches             whether weights learn from it
    """

    name: str
    annotations: str
    media: str
    root: str
    root_sets: Mapping[str, Any] = field(default_factory=dict)
    needed: str = "always"
    teaches: bool = False

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
    """How a run goes on in its own folder.

    key           true in a spec means going on; a text there is a checkpoint that a new run starts from
    must_exist    whether a launch refuses to go on where there is no run of this spec, instead of starting one
    same_inputs   whether only a run of the same data and model goes on
    begun         whether a run folder holds what an attempt can go on with
    """

    key: str
    must_exist: bool = False
    same_inputs: bool = False
    begun: Callable[[Any], bool] = lambda run: True


@dataclass(frozen=True)
class RecordSampling:
    """How records become samples.

    planner         planner(spec, model folder), a vidqa.planning.samples.Planner
    vision          the table that says how videos become frames
    length_key      the key that bounds the tokens of a sample
    longest         tokens that a sample may have
    held_out        (share or number of videos, seed) of the part of the first set that becomes the second one, or that
                    is left out where the action has none
    limit           how many records of each set count, None is all
    prompt          what is asked of a record without a question
    windows         (seconds, seconds in common with the one before) of the windows that a longer video is cut into;
                    0 seconds leave it whole
    modes           by the name of a set, mode(spec): its response mode, where it is not the planner's
    """

    planner: Named
    vision: str
    length_key: str
    longest: Callable[[Any], int]
    held_out: Callable[[Any], tuple[float | int, int] | None] = lambda spec: None
    limit: Callable[[Any], int | None] = lambda spec: None
    prompt: Callable[[Any], str] = lambda spec: ""
    windows: Callable[[Any], tuple[float, float]] = lambda spec: (0.0, 0.0)
    modes: Mapping[str, Named] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """One thing that a job does.

    Its spec
    name            also of the scripts' argument, the schema, the template and the pages
    spec            its pydantic model (vidqa.spec.models.Spec); the defaults are the template
    tables          the top-level tables and keys that tell its specs from those of other actions
    output_key      the folder in which a run makes its own
    models, data    what it reads
    reads           reads(spec): further keys that name a folder or a file
    decoding        the table that says how media are decoded and cached, a DecodeEngine; empty: it decodes none
    rules           rules(spec): the problems that can be seen without the data
    built_from      options of build_spec.py, as pages show them
    profiles        named starting points; the first one is the default
    shorthand       short names of keys
    exclusive       pairs of keys of which one may be set
    replacing       pairs of which a later layer's one takes the place of the other
    nested_in       a table that older files hold all keys in
    not_identity    keys beside the output's that do not change what a run computes
    parent          what a spec takes from an earlier run
    cosmos          whether a job of this action is rendered for NVIDIA's cosmos-rl container
    is_searched     whether a hyper-parameter search may choose its values

    Its job
    processes       engine processes that a spec asks for, by its `processes_key`; with `fills_gpus` they must be as
                    many as the GPUs
    secrets         names of the secrets without which something that a spec asks for is not done
    packages        extras of this project that a spec needs beyond the engine's own, and the key that needs each
    resuming        how a run goes on; without it an attempt starts anew
    outcome         outcome(record): what a job that is over has to show, and the commands that follow

    Its work
    program         "module:function" of the engine, program(spec, run) -> exit code
    proof           another such program, which computes something again, compares and trains nothing (--prove)
    proves_run      whether its proof is of an earlier run, in whose folder the proof's run folder lies
    page            the module that writes a page of the run folder when the program ends
    uploads         whether a spec wants its run uploaded when it is complete
    sampling        how records become samples; None: no samples are planned
    answering       the table that says how a model answers them (batch_size, generator); empty: it answers none
    needs_answers   whether a record without an answer is a problem
    trains          whether it changes weights, with the tables of a TrainSpec: preflight foresees what it takes in
                    steps, memory, disk and time
    draws           whether it learns from completions that it draws, instead of the records' own answers
    measured_by     the action that measures what this one makes
    evaluation      evaluation(spec): the file of a spec of that action, where a spec names one; its data are protected
    checks          further checks of preflight, a sequence of vidqa.preflight._base.Check
    """

    name: str
    spec: Named
    tables: tuple[str, ...]
    output_key: str
    program: str
    models: tuple[ModelKey, ...] = ()
    data: tuple[DataSet, ...] = ()
    reads: Named = lambda spec: ()
    decoding: str = ""
    rules: Named = lambda spec: ()
    built_from: str = ""
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"full": {}})
    shorthand: Mapping[str, str] = field(default_factory=dict)
    exclusive: tuple[tuple[str, str], ...] = ()
    replacing: tuple[tuple[str, str], ...] = ()
    nested_in: str = ""
    not_identity: tuple[str, ...] = ()
    parent: Parent | None = None
    cosmos: bool = False
    is_searched: bool = False
    processes: Callable[[Any], int] = lambda spec: 1
    processes_key: str = ""
    fills_gpus: bool = False
    secrets: Callable[[Any], tuple[str, ...]] = lambda spec: ()
    packages: Callable[[Any], Mapping[str, str]] = lambda spec: {}
    resuming: Resuming | None = None
    outcome: Named = None
    proof: str = ""
    proves_run: bool = False
    page: str = ""
    uploads: Callable[[Any], bool] = lambda spec: False
    sampling: RecordSampling | None = None
    answering: str = ""
    needs_answers: bool = True
    trains: bool = False
    draws: bool = False
    measured_by: str = ""
    evaluation: Callable[[Any], str] = lambda spec: ""
    checks: Named = ()

    @property
    def spec_model(self) -> Any:
        """The pydantic model of its spec."""
        return resolve(self.spec)

    @property
    def not_computed(self) -> frozenset[str]:
        """The keys that do not change what a run computes."""
        return frozenset((self.output_key, *self.not_identity))
