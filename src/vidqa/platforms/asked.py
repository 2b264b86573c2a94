"""What a spec asks of this machine: its models as folders, its paths absolute, and fingerprints of what goes in."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidqa import environment, hub, spec, storage
from vidqa.data import check_records
from vidqa.data.reader import annotation_file
from vidqa.platforms.mounts import media_folders
from vidqa.platforms.records import JobRecord
from vidqa.problem import Problem
from vidqa.spec.action import require_action
from vidqa.spec.models import SPECS, EvaluateSpec, Spec, TrainSpec

# Every key that holds a path or is one by its value. Empty ones and addresses ("s3://...") stay as they are.
PATH_KEYS = {
    "train": (
        "custom.train_dataset.annotation_path",
        "custom.train_dataset.media_path",
        "custom.val_dataset.annotation_path",
        "custom.val_dataset.media_path",
        "train.output_dir",
        "train.resume",
        "engine.frame_cache_dir",
    ),
    "evaluate": ("dataset.annotation_path", "dataset.media_dir", "results_dir", "engine.frame_cache_dir"),
}
WRITTEN_KEYS = ("train.output_dir", "results_dir", "engine.frame_cache_dir")
# The annotations of an action, with the key of their media.
MEDIA_OF = {
    "train": {
        "custom.train_dataset.annotation_path": "custom.train_dataset.media_path",
        "custom.val_dataset.annotation_path": "custom.val_dataset.media_path",
    },
    "evaluate": {"dataset.annotation_path": "dataset.media_dir"},
}


@dataclass(frozen=True)
class Asked:
    """A spec as written and as the job gets it. `models` maps dotted keys to the names that were written.

    `spec_fingerprint` is of the spec as written; `inputs_fingerprint` covers the annotations, the models' files and
    the checkpoint that a run starts from.
    """

    action: str
    spec_path: Path
    spec: Spec
    resolved: Spec
    models: dict[str, str]
    spec_fingerprint: str
    inputs_fingerprint: str
    warnings: list[Problem]

    @property
    def output_dir(self) -> Path:
        """The folder in which the run makes its own."""
        resolved = self.resolved
        return Path(resolved.train.output_dir if isinstance(resolved, TrainSpec) else resolved.results_dir)

    @property
    def model(self) -> str:
        """The model's name as the user wrote it."""
        return next(iter(self.models.values()))

    @property
    def model_folder(self) -> str:
        return str(value_at(self.resolved, next(iter(self.models))))

    @property
    def reads(self) -> tuple[Path, ...]:
        """What the spec names that the job reads, absolute: models, annotations, media, the checkpoint it starts
        from."""
        keys = [key for key in PATH_KEYS[self.action] if key not in WRITTEN_KEYS]
        return _local_paths(self.resolved, [*self.models, *keys])

    def media_elsewhere(self) -> list[Path]:
        """The folders of media that the annotations name outside of what the spec names. Every annotation is read for
        it; records that are wrong are left for preflight and the engine."""
        files: dict[str, None] = {}
        for key, media in MEDIA_OF[self.action].items():
            path = str(value_at(self.resolved, key))
            if path and not storage.is_remote(path):
                records, _ = check_records(path, str(value_at(self.resolved, media)), need_answers=False)
                files |= dict.fromkeys(ref.path for record in records for ref in record.media)
        return media_folders(files, [*self.reads, *self.writes])

    @property
    def writes(self) -> tuple[Path, ...]:
        """The folders that the job writes: its output and its caches."""
        found = _local_paths(self.resolved, [key for key in PATH_KEYS[self.action] if key in WRITTEN_KEYS])
        return found if value_at(self.resolved, "engine.frame_cache_dir") else (*found, environment.cache_folder())

    @property
    def resumes(self) -> bool:
        """Whether the run goes on in the folder of an earlier one, if there is one."""
        asked = self.spec
        return asked.train.resume is True if isinstance(asked, TrainSpec) else asked.evaluation.skip_saved


def ask(
    action: str, spec_path: Path, *, fetch: bool, target: str = "native", folders: dict[str, Path] | None = None
) -> Asked:
    """Load a spec and resolve what it names; of models of the hub only the small files are fetched (`fetch_weights`
    brings the others), and without `fetch` they stay names. `folders` are those of the models, where they are known.
    Raises ProblemError."""
    layer = spec.read_layer(spec_path)
    require_action(layer, spec_path, action)
    loaded = spec.resolve(action, [layer], target)
    written = loaded.spec
    models = model_names(written)
    found = {
        key: name if hub.is_hub_name(name) and not fetch else str(folders[key] if folders else _small_files(name))
        for key, name in models.items()
    }
    resolved = with_values(action, written, {**_absolute_paths(action, written), **found})
    if fetch:
        resolved = with_values(action, resolved, _staged(action, resolved))
    annotations = [str(value_at(resolved, key)) for key in MEDIA_OF[action]]
    data = [_content_hash(annotation_file(path)) for path in annotations if path and not storage.is_remote(path)]
    start = resolved.train.resume if isinstance(resolved, TrainSpec) else ""
    return Asked(
        action=action,
        spec_path=spec_path.absolute(),
        spec=written,
        resolved=resolved,
        models=models,
        spec_fingerprint=_spec_fingerprint(action, written),
        inputs_fingerprint=_hash_of(
            [*data, start if isinstance(start, str) else "", *map(_model_identity, found.values())]
        ),
        warnings=loaded.warnings,
    )


def _small_files(name: str) -> Path:
    return hub.resolve_model(name, token=environment.hf_token(), weights=False)


def fetch_weights(asked: Asked) -> None:
    """Bring the weights of the hub's models into the folders that `asked` names. Raises what hub.resolve_model does."""
    for name in asked.models.values():
        if hub.is_hub_name(name):
            hub.resolve_model(name, token=environment.hf_token())


def spec_of(record: JobRecord) -> Path:
    """The spec that a job got, in its run folder."""
    return Path(record.run_dir) / "spec.toml"


def ask_again(record: JobRecord) -> Asked:
    """What the job of a record was asked, from the run folder's own spec, to go on where it ended. Its checkpoints
    come before any that it started from."""
    asked = ask(record.action, spec_of(record), fetch=True)
    begun = any((Path(record.run_dir) / "checkpoints").glob("*_*"))
    changes: dict[str, Any] = {}
    if record.action == "evaluate":
        changes["evaluation.skip_saved"] = True
    elif begun or not isinstance(value_at(asked.spec, "train.resume"), str):
        changes["train.resume"] = True
    return replace(
        asked,
        spec_path=Path(record.spec),
        spec=with_values(record.action, asked.spec, changes),
        resolved=with_values(record.action, asked.resolved, changes),
        models={**asked.models, next(iter(asked.models)): record.model},
        spec_fingerprint=record.spec_fingerprint,
    )


def model_names(asked: Spec) -> dict[str, str]:
    """The models of a spec by dotted key, the revision joined to a hub name; the one that is trained or asked first."""
    if isinstance(asked, TrainSpec):
        name, revision = asked.policy.model_name_or_path, asked.policy.model_revision
        joined = f"{name}@{revision}" if revision and hub.is_hub_name(name) and "@" not in name else name
        return {"policy.model_name_or_path": joined}
    names = {"model.model_name": asked.model.model_name}
    if asked.model.enable_lora:
        names["model.base_model_path"] = asked.model.base_model_path
    return names


def process_count(asked: Spec) -> int:
    """How many engine processes a spec asks for: its mesh, or the GPUs of an evaluation."""
    if isinstance(asked, EvaluateSpec):
        return asked.num_gpus
    return asked.policy.parallelism.dp_shard_size * asked.policy.parallelism.dp_replicate_size


def value_at(asked: Spec, key: str) -> Any:
    value: Any = asked
    for name in key.split("."):
        value = getattr(value, name)
    return value


def with_values(action: str, asked: Spec, values: dict[str, Any]) -> Spec:
    """A copy of a spec with other values at some dotted keys."""
    tables = asked.model_dump()
    for key, value in values.items():
        *path, name = key.split(".")
        table = tables
        for part in path:
            table = table[part]
        table[name] = value
    return SPECS[action].model_validate(tables)


def _staged(action: str, resolved: Spec) -> dict[str, str]:
    """The data sets of a spec, fetched where they lie in a bucket."""
    found: dict[str, str] = {}
    for annotation_key, media_key in MEDIA_OF[action].items():
        paths = storage.stage_set(str(value_at(resolved, annotation_key)), str(value_at(resolved, media_key)))
        found |= dict(zip((annotation_key, media_key), paths, strict=True))
    return found


def _local_paths(resolved: Spec, keys: list[str]) -> tuple[Path, ...]:
    """The values of these keys that are paths on a file system: neither empty, nor addresses, nor names of the hub."""
    values = [value_at(resolved, key) for key in keys]
    paths = [Path(value) for value in values if isinstance(value, str) and value and "://" not in value]
    return tuple(dict.fromkeys(paths))


def _absolute_paths(action: str, asked: Spec) -> dict[str, str]:
    written = {key: value_at(asked, key) for key in PATH_KEYS[action]}
    return {
        key: os.path.abspath(os.path.expanduser(value))
        for key, value in written.items()
        if isinstance(value, str) and value and "://" not in value
    }


def _spec_fingerprint(action: str, written: Spec) -> str:
    """Going on with saved answers asks for the same scores as starting anew."""
    if isinstance(written, EvaluateSpec):
        written = with_values(action, written, {"evaluation.skip_saved": False})
    return spec.fingerprint(written)


def _content_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _model_identity(name: str) -> str:
    """Names, sizes and times of a model folder's files: another training into the same folder is another model. A
    snapshot of the hub is named by its commit, however much of it is here."""
    folder = Path(name)
    if hub.is_snapshot(folder):
        return repr(name)
    stats = [(path.name, path.stat()) for path in sorted(folder.glob("*")) if path.is_file()]
    return repr((name, [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]))


def _hash_of(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
