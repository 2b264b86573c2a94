"""A spec resolved for this machine: models as folders, absolute paths, and fingerprints of its inputs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.core import actions, environment
from vidqa.core.actions import Action
from vidqa.core.cli import command
from vidqa.core.files import absolute, content_hash
from vidqa.core.problem import Problem
from vidqa.data import check_records, open_source, storage
from vidqa.data.problems import FILE_MISSING, TO_FETCH
from vidqa.data.sources import absolute_source, file_of, functions_in, read_by, with_absolute_functions
from vidqa.data.storage import hub
from vidqa.jobs.platforms.mounts import media_folders
from vidqa.jobs.platforms.site import cache_folder, is_unseen
from vidqa.jobs.records import JobRecord
from vidqa.spec.keys import SpecT, value_at, with_values
from vidqa.spec.layers import require_action
from vidqa.spec.models import Spec

# Keys that may name user functions beside annotations; an action with such keys has them in `reads`.
FUNCTION_KEYS = ("metrics.functions", "train.train_policy.reward_function", "validation.reward_function")


@dataclass(frozen=True)
class JobSpec:
    """A spec as written and as resolved for the job. `models` maps dotted keys to the names as written.

    For inputs that a launch fetches first, `resolved` has the future paths: in the folders `to_come`, which the
    commands of `fetch` fill. `spec_warnings` are those of the spec alone, `warnings` all. `spec_fingerprint` is of the
    spec as written; `inputs_fingerprint` covers the annotations, the models' files and the checkpoint that a run starts
    from.
    """

    action: str
    spec_path: Path
    spec: Spec
    resolved: Spec
    models: dict[str, str]
    spec_fingerprint: str
    inputs_fingerprint: str
    spec_warnings: list[Problem]
    warnings: list[Problem]
    to_come: tuple[Path, ...] = ()
    fetch: tuple[str, ...] = ()
    settings: Any = None

    @property
    def declared(self) -> Action:
        """The declaration of its action."""
        return actions.action(self.action)

    @property
    def output_dir(self) -> Path:
        """The parent of the run folder."""
        return Path(value_at(self.resolved, self.declared.output_key))

    @property
    def model(self) -> str:
        """The model's name as the user wrote it; empty for an action without a model."""
        return next(iter(self.models.values()), "")

    @property
    def model_folder(self) -> str:
        return next((str(value_at(self.resolved, key)) for key in self.models), "")

    @property
    def reads(self) -> tuple[Path, ...]:
        """Absolute input paths of the job: models, annotations, media, the checkpoint that it starts from."""
        annotations = [data.annotations for data in self.declared.data]
        # User functions, FILE.py:FUNCTION, may need other files beside theirs: the file's folder is an input.
        keys = [k for k in _read_keys(self.declared, self.spec) if k not in (*annotations, *FUNCTION_KEYS)]
        named = [str(value_at(self.resolved, key)) for key in annotations]
        named += _functions(self.declared, self.resolved)
        sets = [Path(place) for name in named if name and "://" not in name for place in read_by(name)]
        return tuple(dict.fromkeys((*_local_paths(self.resolved, [*self.models, *keys]), *sets, *self.to_come)))

    def media_elsewhere(self) -> list[Path]:
        """Media folders in the annotations outside of the spec's own paths. Reads all annotations; broken records are
        left to preflight and the engine."""
        return media_folders((path for path, _ in self._media), [*self.reads, *self.writes])

    def media_named(self) -> list[Path]:
        """Media folders that the annotations name by absolute paths."""
        return sorted({Path(written).parent for _, written in self._media if os.path.isabs(written)})

    @cached_property
    def _media(self) -> set[tuple[str, str]]:
        """The file of each medium, and its name in the annotations."""
        files: set[tuple[str, str]] = set()
        for data in self.declared.data:
            path = str(value_at(self.resolved, data.annotations))
            if path and not storage.is_remote(path) and not is_unseen(self.settings, path):
                records, _ = check_records(path, str(value_at(self.resolved, data.media)), need_answers=False)
                files |= {(ref.path, ref.written) for record in records for ref in record.media}
        return files

    @property
    def needs(self) -> tuple[str, ...]:
        """The secrets that the spec needs, for trackers and uploads."""
        return self.declared.secrets(self.resolved)

    @property
    def writes(self) -> tuple[Path, ...]:
        """The output folders of the job: its runs and its caches."""
        _, *caches = keys = _written_keys(self.declared)
        paths = _local_paths(self.resolved, keys)
        if any(value_at(self.resolved, key) for key in caches):
            return paths
        return (*paths, cache_folder(self.settings, self.output_dir))

    @property
    def resumes(self) -> bool:
        """Whether the run continues in the folder of an earlier one, if there is one."""
        resuming = self.declared.resuming
        return resuming is not None and value_at(self.spec, resuming.key) is True

    @property
    def start(self) -> str:
        """The checkpoint of another run that it starts from, as the spec names it; empty without."""
        return _start(self.declared, self.spec)


def load_job_spec(
    action: str,
    spec_path: Path,
    *,
    fetch: bool,
    target: str = "native",
    settings: Any = None,
    folders: dict[str, Path] | None = None,
) -> JobSpec:
    """Load a spec and resolve its models and paths.

    With `fetch` the small files of hub models are downloaded (`fetch_weights` downloads the weights); without it,
    models are the future paths of a launch. `folders` overrides the model folders. Paths that the platform's `settings`
    declare to be on the cluster are not resolved. Raises ProblemError.
    """
    layer = spec.read_layer(spec_path)
    require_action(layer, spec_path, action)
    loaded = spec.resolve(action, [layer], target)
    written = loaded.spec
    models, token = model_names(written), environment.hf_token()
    expected = {} if fetch else {n: hub.expect(n, token=token) for n in models.values() if hub.is_hub_name(n)}

    def folder_of(key: str, name: str) -> str:
        if is_unseen(settings, name):
            return name
        if name in expected:
            return str(expected[name].folder)
        return str(folders[key] if folders else hub.resolve_model(name, token=token, weights=False))

    declared = actions.action(action)
    folder_names = {key: folder_of(key, name) for key, name in models.items()}
    paths = _absolute_paths(declared, written)
    sets = _sets_of_buckets(declared, written, paths, storage.stage_set if fetch else storage.expected_set)
    resolved = with_values(written, {**paths, **folder_names, **sets})
    not_here = [Path(file_of(path)) for path in sets.values() if path and not os.path.exists(file_of(path))]
    to_stage = [TO_FETCH.at(path, "a launch puts them there before its job", severity="warning") for path in not_here]
    annotations = [path for data in declared.data if (path := str(value_at(resolved, data.annotations)))]
    unread = [path for path in annotations if Path(file_of(path)) in not_here or is_unseen(settings, path)]
    data = [path if path in unread else _content_of(path) for path in annotations]
    functions = [Path(file_of(name)) for name in _functions(declared, resolved)]  # preflight reports missing ones
    data += [content_hash(file) for file in functions if file.is_file() and not is_unseen(settings, file)]
    parts = [*data, _start(declared, resolved), *map(_model_identity, folder_names.values())]
    absent = [model for model in expected.values() if not model.is_here]
    return JobSpec(
        action=action,
        spec_path=spec_path.absolute(),
        spec=written,
        resolved=resolved,
        models=models,
        spec_fingerprint=spec.fingerprint(written_anew(written)),
        inputs_fingerprint=hashlib.sha256("\n".join(parts).encode()).hexdigest(),
        spec_warnings=loaded.warnings,
        warnings=[*loaded.warnings, *(problem for model in expected.values() for problem in model.problems), *to_stage],
        to_come=(*(path for model in absent for path in _snapshot_and_blobs(model.folder)), *not_here),
        fetch=tuple(model.fetch for model in absent)
        + (command("preflight", "--spec", spec_path, "--only", "data"),) * bool(to_stage),
        settings=settings,
    )


def _content_of(annotations: str) -> str:
    """The fingerprint of annotations. Raises DATA_FILE_MISSING if the system cannot read them."""
    try:
        return open_source(annotations).fingerprint()
    except OSError as broken:
        raise FILE_MISSING.error(annotations, f"cannot be read: {broken.strerror or broken}") from broken


def _snapshot_and_blobs(folder: Path) -> tuple[Path, Path]:
    """A snapshot folder of the hub's cache, and the folder of the model's blobs, to which its links point."""
    return folder, (folder / "../../blobs").resolve()


def fetch_weights(job_spec: JobSpec) -> None:
    """Download the weights of hub models into the folders of `job_spec`, at the commits recorded there. Raises the
    problems of hub.resolve_model."""
    for key, name in job_spec.models.items():
        folder = Path(str(value_at(job_spec.resolved, key)))
        if hub.is_hub_name(name) and hub.snapshot_of(folder):
            hub.resolve_model(hub.at_commit(name, folder.name), token=environment.hf_token())


def spec_of(record: JobRecord) -> Path:
    """The spec of a job, in its run folder."""
    return Path(record.run_dir) / "spec.toml"


def job_spec_of(record: JobRecord, settings: Any = None) -> JobSpec:
    """The job spec of a record, from its run folder, set to continue where the job ended: from its own checkpoints if
    it has any, else from the one that it started from."""
    loaded = load_job_spec(record.action, spec_of(record), fetch=True, settings=settings)
    begun = any((Path(record.run_dir) / "checkpoints").glob("*_*"))
    resuming = loaded.declared.resuming
    goes_on = resuming and (begun or not isinstance(value_at(loaded.spec, resuming.key), str))
    changes = {resuming.key: True} if resuming and goes_on else {}
    return replace(
        loaded,
        spec_path=Path(record.spec),
        spec=with_values(loaded.spec, changes),
        resolved=with_values(loaded.resolved, changes),
        models={key: record.model if not at else name for at, (key, name) in enumerate(loaded.models.items())},
        spec_fingerprint=record.spec_fingerprint,
        warnings=[],  # those of the first launch
    )


def model_names(run_spec: Spec) -> dict[str, str]:
    """The models of a spec by dotted key, with the revision joined to a hub name; the main model first."""
    names: dict[str, str] = {}
    for key in actions.action_for(run_spec).models:
        if key.only_with and not value_at(run_spec, key.only_with):
            continue
        name, revision = value_at(run_spec, key.name), value_at(run_spec, key.revision) if key.revision else ""
        joins = revision and hub.is_hub_name(name) and "@" not in name
        names[key.name] = f"{name}@{revision}" if joins else name
    return names


def with_absolute_paths(run_spec: SpecT) -> SpecT:
    """The spec for a program in another working folder: its paths, including models, are absolute."""
    models = {key.name: value_at(run_spec, key.name) for key in actions.action_for(run_spec).models}
    folders = {key: os.path.abspath(name) for key, name in models.items() if name and os.path.isdir(name)}
    return with_values(run_spec, {**_absolute_paths(actions.action_for(run_spec), run_spec), **folders})


def process_count(run_spec: Spec) -> int:
    """The number of engine processes."""
    return actions.action_for(run_spec).processes(run_spec)


def written_anew(run_spec: SpecT) -> SpecT:
    """The spec without resuming: a resumed run and a new one have the same result."""
    resuming = actions.action_for(run_spec).resuming
    goes_on = resuming is not None and value_at(run_spec, resuming.key) is True
    return with_values(run_spec, {resuming.key: False}) if resuming and goes_on else run_spec


def _sets_of_buckets(
    declared: Action, written: Spec, paths: dict[str, Any], stage: Callable[[str, str], tuple[str, str]]
) -> dict[str, str]:
    """Staged local copies, from `stage`, of data in a bucket, by dotted key; `paths` are the absolute ones."""
    staged: dict[str, str] = {}
    for data in declared.data:
        keys = data.annotations, data.media
        annotations, media = (str(paths.get(key, value_at(written, key))) for key in keys)
        if storage.is_remote(annotations) or storage.is_remote(media):
            staged |= dict(zip(keys, stage(annotations, media), strict=True))
    return staged


def _read_keys(declared: Action, run_spec: Spec) -> list[str]:
    """The keys with input paths of a run, beside its models."""
    data = [key for data_set in declared.data for key in (data_set.annotations, data_set.media)]
    return [*data, *actions.resolve(declared.reads)(run_spec), *([declared.resuming.key] if declared.resuming else [])]


def _functions(declared: Action, resolved: Spec) -> list[str]:
    """The user functions in a spec, without annotations."""
    keys = [key for key in _read_keys(declared, resolved) if key in FUNCTION_KEYS]
    return [name for key in keys for name in functions_in(value_at(resolved, key))]


def _written_keys(declared: Action) -> list[str]:
    return [declared.output_key, *([f"{declared.decoding}.frame_cache_dir"] if declared.decoding else [])]


def _start(declared: Action, run_spec: Spec) -> str:
    start = value_at(run_spec, declared.resuming.key) if declared.resuming else ""
    return start if isinstance(start, str) else ""


def _local_paths(resolved: Spec, keys: list[str]) -> tuple[Path, ...]:
    """The values of these keys that are file system paths, without empty ones and URLs."""
    values = [value_at(resolved, key) for key in keys]
    paths = [Path(value) for value in values if isinstance(value, str) and value and "://" not in value]
    return tuple(dict.fromkeys(paths))


def _absolute_paths(declared: Action, run_spec: Spec) -> dict[str, Any]:
    keys = (*_read_keys(declared, run_spec), *_written_keys(declared))
    written = {key: value_at(run_spec, key) for key in keys}
    annotations = [data.annotations for data in declared.data]
    return {
        key: absolute_source(value) if key in annotations else str(absolute(value))
        for key, value in written.items()
        if isinstance(value, str) and value and "://" not in value and key not in FUNCTION_KEYS
    } | {key: with_absolute_functions(value) for key, value in written.items() if key in FUNCTION_KEYS}


def _model_identity(name: str) -> str:
    """The identity of a model folder: names, sizes and times of its files. A hub snapshot is identified by its commit
    alone, since parts of it may be missing."""
    folder = Path(name)
    if hub.snapshot_of(folder):
        return repr(name)
    stats = [(path.name, path.stat()) for path in sorted(folder.glob("*")) if path.is_file()]
    return repr((name, [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]))
