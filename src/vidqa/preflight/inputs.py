"""The inputs of checks: a run, its model, its data. Each part is computed once, when a check first needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

from vidqa import data, spec
from vidqa.core import actions, environment
from vidqa.core.actions import Action, RecordSampling
from vidqa.core.files import annotations_in_folder
from vidqa.core.problem import Problem, ProblemError
from vidqa.data import storage
from vidqa.data.problems import MEDIA_MISSING
from vidqa.data.record import MediaRef, Record
from vidqa.data.storage import hub
from vidqa.families import Family, Sizes, family_of
from vidqa.families.published import write_offline_model
from vidqa.jobs.job_spec import JobSpec, model_names, process_count
from vidqa.jobs.platforms import site
from vidqa.jobs.resources import Resources
from vidqa.planning.budget.params import ParamCounts, Parameter, count_params, parameters
from vidqa.planning.plan import (
    Plan,
    PlannedSet,
    RecordSet,
    SetSource,
    leaves_out_bad_samples,
    make_plan,
    read_record_sets,
    sources,
    usable,
)
from vidqa.planning.samples import Planner, Sample
from vidqa.preflight.gpus import Declared, Gpu, declared_or_visible
from vidqa.preflight.media_probe import ProbeRow
from vidqa.spec.keys import value_at
from vidqa.spec.models import EvaluateSpec, Spec, TrainSpec
from vidqa.spec.run_tables import DecodeEngine
from vidqa.video.probe import Header, probe_many

T = TypeVar("T")


class Skip(Exception):
    """Raised by a check that does not apply or cannot run here; its text is the reason."""


def once(compute: Callable[[Any], T]) -> cached_property[T]:
    """A cached property that also caches its exception, so that an unreachable hub is queried once."""

    @wraps(compute)
    def cached(inputs: Any) -> T:
        if compute.__name__ in inputs.missing:
            raise ProblemError(inputs.missing[compute.__name__])
        try:
            return compute(inputs)
        except ProblemError as failed:
            inputs.missing[compute.__name__] = failed.problems
            raise

    return cached_property(cached)


@dataclass
class Inputs:
    """The inputs of checks: the options of preflight or of a launch, the spec, its models and its data, each read when
    it is first needed. `facts` collects the measurements of checks."""

    spec_path: Path
    action: str
    platform: str
    probe_sample: int | None = None  # number of files to decode; None for all
    declared: Declared = field(default_factory=Declared)
    resources: Resources = field(default_factory=Resources)  # options of a launch beyond the spec
    engine: str = "vidqa"  # the image of the job: vidqa or cosmos-rl
    evaluate_spec: Path | None = None  # evaluation that measures a training
    kpi_root: Path | None = None  # its data, if it has no spec
    job_spec: JobSpec | None = None  # of a launch, which has resolved the spec
    at_launch: bool = False  # or in the plan of a study: no file is written beside the spec
    elsewhere: bool = False  # the job runs on another machine, which may have other media
    facts: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, list[Problem]] = field(default_factory=dict)  # parts that are not available, and the reasons
    rows: dict[str, ProbeRow] = field(default_factory=dict)  # results of decoding, by MediaRef.file
    unseen_media: list[str] = field(default_factory=list)  # folders that only the cluster sees
    leaks: dict[str, dict[str, list[Any]]] = field(default_factory=dict)  # shared items, by sets and reason

    @once
    def resolved(self) -> spec.Resolved:
        if self.job_spec:
            return spec.Resolved(self.job_spec.spec, {}, self.job_spec.spec_warnings)
        return spec.resolve_file(self.spec_path, self.action, self.target)

    @property
    def target(self) -> str:
        """The target of the spec for spec.resolve."""
        return self.engine if self.engine == "cosmos-rl" else "native"

    @property
    def spec(self) -> Spec:
        return self.resolved.spec

    @property
    def declared_action(self) -> Action:
        return actions.action(self.action)

    @property
    def training(self) -> TrainSpec | None:
        """The spec if its action trains, else None."""
        return cast(TrainSpec, self.spec) if self.declared_action.trains else None

    @cached_property
    def site(self) -> Any:
        """The platform settings; None if they are unreadable, which the platform's check reports."""
        try:
            return site.read(self.platform, self.resources.site)
        except ProblemError:
            return None

    def require_visible(self, *paths: str | Path) -> None:
        """Raise Skip if the platform settings declare that one of these is only on the cluster."""
        if unseen := [path for path in paths if site.is_unseen(self.site, path)]:
            raise Skip(f"{unseen[0]} is only on the cluster, as `cluster_paths` declares")

    @once
    def evaluation(self) -> EvaluateSpec | None:
        """The evaluation spec given with a training or named by the spec, if any."""
        measure = self.declared_action.evaluated_by
        path = self.evaluate_spec or self.declared_action.evaluation(self.spec)
        if not path or not measure:
            return None
        return cast(EvaluateSpec, spec.load(os.path.expanduser(path), measure))

    @once
    def gpus(self) -> list[Gpu]:
        """The declared GPUs, else those of this machine."""
        try:
            processes = self.processes
        except ProblemError:  # the check of the spec reports it
            processes = 1
        return declared_or_visible(self.declared, processes)

    @property
    def bad_sample_severity(self) -> str:
        """The severity of an unusable sample: with "quarantine" the run leaves it out."""
        return "warning" if leaves_out_bad_samples(self.spec) else "error"

    @property
    def decoding(self) -> DecodeEngine:
        """The settings for decoding and caching media."""
        table = self.declared_action.decoding
        return value_at(self.spec, table) if table else DecodeEngine(frame_cache_gb=0.0)

    @property
    def sampling(self) -> RecordSampling:
        """The settings for planning samples. Raises Skip for an action without samples."""
        if self.declared_action.sampling is None:
            raise Skip(f"{self.action} plans no samples")
        return self.declared_action.sampling

    @property
    def longest_allowed(self) -> int:
        """The largest number of tokens of a sample."""
        return self.sampling.longest(self.spec)

    @property
    def output_dir(self) -> Path:
        """The parent of the run folder."""
        return Path(os.path.expanduser(value_at(self.spec, self.declared_action.output_key))).absolute()

    @property
    def processes(self) -> int:
        return process_count(self.spec)

    @once
    def models(self) -> dict[str, Path]:
        """The folders of the spec's models by dotted key. Only the small files of hub models are downloaded."""
        token = environment.hf_token()
        self.require_visible(*model_names(self.spec).values())
        return {
            key: hub.resolve_model(name, token=token, weights=False) for key, name in model_names(self.spec).items()
        }

    @cached_property
    def offline_model(self) -> TemporaryDirectory | None:
        """A folder for estimates, in place of a published model that is currently unavailable; None if the models are
        available or unknown."""
        try:
            _ = self.models
        except ProblemError:
            folder = TemporaryDirectory(prefix="vidqa-known-")
            if model := write_offline_model(model_names(self.spec).values(), Path(folder.name)):
                self.facts["estimated_for"] = model
                return folder
            folder.cleanup()
        return None

    @property
    def model_folder(self) -> Path:
        """The folder with config, tokenizer and processor: the adapter's own, or its base model's; for an unavailable
        published model, the one for estimates."""
        if self.offline_model is not None:
            return Path(self.offline_model.name)
        folders = list(self.models.values())
        if not folders:
            raise Skip("the action has no model")
        return next((folder for folder in folders if (folder / "config.json").is_file()), folders[0])

    @property
    def family(self) -> Family:
        """The model family. Raises MODEL_BROKEN, MODEL_UNSUPPORTED, like all members below."""
        return family_of(self.model_folder)

    @property
    def sizes(self) -> Sizes:
        return self.family.sizes_of(self.model_folder)

    def parameters(self, train_spec: TrainSpec) -> list[Parameter]:
        """Every parameter under the engine's name."""
        return parameters(self.family.tensors(self.sizes), train_spec.policy)

    def memory_model(self, train_spec: TrainSpec) -> ParamCounts:
        """The model for estimates of memory and time."""
        return count_params(self.sizes, self.parameters(train_spec))

    @once
    def annotations(self) -> list[RecordSet]:
        """The sets that the run will read."""
        return read_record_sets(self.spec, self.read_set)

    @once
    def kpi(self) -> RecordSet | None:
        """The evaluation data given with a training, if any."""
        if not self.declared_action.evaluated_by:
            return None
        if self.evaluation is not None:
            (source,) = sources(self.evaluation)
            return self.read_set(replace(source, name="kpi"))
        if self.kpi_root is None:
            return None
        # As in the DEFT loop's evaluation: media beside the annotations, or at absolute paths.
        file = annotations_in_folder(self.kpi_root)
        media = str(self.kpi_root) if file else ""
        return self.read_set(SetSource("kpi", str(file or self.kpi_root), media))

    def read_set(self, source: SetSource) -> RecordSet:
        """Read a set of records, also if its media are only on the cluster or on the machine of the job."""
        self.require_visible(source.annotation_path)
        if not site.is_unseen(self.site, source.media_path):
            keeps_missing = source.keep_missing or (self.elsewhere and source.name != "kpi")
            return _read(replace(source, keep_missing=keeps_missing))
        self.unseen_media.append(source.media_path)
        part = _read(replace(source, media_path="", keep_missing=True))
        records = [replace(record, media=_below(source.media_path, record.media)) for record in part.records]
        return replace(part, records=records, problems=[p for p in part.problems if p.code != MEDIA_MISSING.name])

    @property
    def records(self) -> list[Record]:
        """The records of all sets that the run reads."""
        return [record for part in self.annotations for record in part.records]

    @property
    def sets(self) -> list[RecordSet]:
        return [*self.annotations, *([self.kpi] if self.kpi else [])]

    def require_disjoint_sets(self) -> None:
        """Raise Skip if sets may overlap: none is trained on and compared with another."""
        if len(self.sets) < 2:
            raise Skip("there is only one set of records")
        if not any(data.is_trained_on for data in self.declared_action.data):
            raise Skip("no set is learned from")

    @once
    def planner(self) -> Planner:
        make_planner = actions.resolve(self.sampling.planner)
        return cast(Planner, make_planner(self.spec, self.model_folder))

    @property
    def engine_planner(self) -> Planner | None:
        """The planner, if the run's model is available and its action plans samples: the engine has the same one."""
        try:
            return None if self.offline_model else self.planner
        except (ProblemError, Skip):
            return None

    @once
    def plan(self) -> Plan:
        self.planner.set_headers(self.headers)
        return make_plan(self.spec, self.planner, {part.name: part.records for part in self.annotations})

    @property
    def engine_plan(self) -> Plan | None:
        """The plan, if the engine would make the same one."""
        try:
            return self.plan if self.engine_planner else None
        except (ProblemError, Skip):
            return None

    @property
    def planned(self) -> dict[str, PlannedSet]:
        return self.plan.sets

    def is_learned(self, name: str) -> bool:
        """Whether the run trains or calibrates on the answers of a set."""
        action = self.declared_action
        return not action.generates_completions and any(d.name == name and d.is_trained_on for d in action.data)

    def usable(self, name: str) -> Sequence[Sample]:
        """The samples of a set that the run will use."""
        return usable(self.planned[name].samples, self.longest_allowed, trained=self.is_learned(name))

    def training_steps(self, train_spec: TrainSpec) -> tuple[Sequence[Sample], int]:
        """The samples of a training, and its steps. Raises Skip if it has none."""
        samples = self.usable("train")
        total = spec.total_steps(train_spec, len(samples)) if samples else 0
        if not total:
            raise Skip("there is no step to estimate")
        return samples, total

    @once
    def to_decode(self) -> list[Sample]:
        """The samples to decode; those of the KPI set with the frames of the training."""
        samples = [sample for part in self.planned.values() for sample in part.samples]
        return [*samples, *(self.planner.plan(self.kpi.records)[0] if self.kpi else [])]

    @once
    def media(self) -> dict[str, tuple[MediaRef, list[Record]]]:
        """Every file that a record uses whole or in part, by MediaRef.file, with the records that use it."""
        users: dict[str, tuple[MediaRef, list[Record]]] = {}
        for part in self.sets:
            for record in part.records:
                for ref in record.media:
                    if ref.file not in users:
                        users[ref.file] = (replace(ref, span=None), [])
                    users[ref.file][1].append(record)
        return users

    @once
    def headers(self) -> dict[str, Header]:
        """The header of every file, by MediaRef.file."""
        self.require_visible(*self.unseen_media)
        return dict(zip(self.media, probe_many(ref for ref, _ in self.media.values()), strict=True))


def _below(folder: str, media: tuple[MediaRef, ...]) -> tuple[MediaRef, ...]:
    """The media of a record, in a folder that this machine does not see."""
    return tuple(replace(ref, path=os.path.join(folder, ref.written)) for ref in media)


def _read(source: SetSource) -> RecordSet:
    try:
        annotation_path, media_path = storage.stage_set(source.annotation_path, source.media_path)
    except ProblemError as absent:
        return RecordSet(source.name, [], absent.problems)
    records, problems = data.check_records(annotation_path, media_path, **source.how)
    return RecordSet(source.name, records, problems)
