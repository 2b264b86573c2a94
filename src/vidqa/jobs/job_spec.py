"""What a spec asks of this machine: its models as folders, its paths absolute, and fingerprints of what goes in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vidqa import actions, spec, storage
from vidqa.actions import Action
from vidqa.contract import environment
from vidqa.contract.cli import command
from vidqa.contract.problem import Problem
from vidqa.dataset import check_records, open_source
from vidqa.jobs.records import JobRecord
from vidqa.platforms.mounts import media_folders
from vidqa.platforms.site import is_unseen
from vidqa.spec.action import require_action
from vidqa.spec.keys import SpecT, value_at, with_values
from vidqa.spec.models import Spec
from vidqa.storage import hub
from vidqa.storage.problems import TO_STAGE


@dataclass(frozen=True)
class JobSpec:
    """A spec as written and as the job gets it. `models` maps dotted keys to the names that were written.

    What a launch has to fetch first, `resolved` names where it will be: in the folders `to_come`, once the commands of
    `fetch` have run.
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
    to_come: tuple[Path, ...] = ()
    fetch: tuple[str, ...] = ()
    settings: Any = None

    @property
    def declared(self) -> Action:
        """What its action is."""
        return actions.action(self.action)

    @property
    def output_dir(self) -> Path:
        """The folder in which the run makes its own."""
        return Path(value_at(self.resolved, self.declared.output_key))

    @property
    def model(self) -> str:
        """The model's name as the user wrote it; empty where the action has none."""
        return next(iter(self.models.values()), "")

    @property
    def model_folder(self) -> str:
        return next((str(value_at(self.resolved, key)) for key in self.models), "")

    @property
    def reads(self) -> tuple[Path, ...]:
        """What the spec names that the job reads, absolute: models, annotations, media, the checkpoint it starts
        from."""
        keys = _read_keys(self.declared, self.spec)
        return tuple(dict.fromkeys((*_local_paths(self.resolved, [*self.models, *keys]), *self.to_come)))

    def media_elsewhere(self) -> list[Path]:
        """The folders of media that the annotations name outside of what the spec names. Every annotation is read for
        it; records that are wrong are left for preflight and the engine."""
        return media_folders((path for path, _ in self._media), [*self.reads, *self.writes])

    def media_named(self) -> list[Path]:
        """The folders of media that the annotations name by absolute paths."""
        return sorted({Path(written).parent for _, written in self._media if os.path.isabs(written)})

    @cached_property
    def _media(self) -> set[tuple[str, str]]:
        """The file of each medium, and what the annotations say."""
        files: set[tuple[str, str]] = set()
        for data in self.declared.data:
            path = str(value_at(self.resolved, data.annotations))
            if path and not storage.is_remote(path) and not is_unseen(self.settings, path):
                records, _ = check_records(path, str(value_at(self.resolved, data.media)), need_answers=False)
                files |= {(ref.path, ref.written) for record in records for ref in record.media}
        return files

    @property
    def needs(self) -> tuple[str, ...]:
        """The secrets without which something that the spec asks for is not done: trackers and uploads."""
        return self.declared.secrets(self.resolved)

    @property
    def writes(self) -> tuple[Path, ...]:
        """The folders that the job writes: its output and its caches."""
        _, *caches = keys = _written_keys(self.declared)
        found = _local_paths(self.resolved, keys)
        return found if any(value_at(self.resolved, key) for key in caches) else (*found, environment.cache_folder())

    @property
    def resumes(self) -> bool:
        """Whether the run goes on in the folder of an earlier one, if there is one."""
        resuming = self.declared.resuming
        return resuming is not None and value_at(self.spec, resuming.key) is True

    @property
    def start(self) -> str:
        """The checkpoint of another run that it starts from, as the spec names it; empty where there is none."""
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
    """Load a spec and resolve what it names.

    Of models of the hub `fetch` brings the small files (`fetch_weights` the others); without it, they are named by
    where a launch will put them. `folders` are those of the models, where they are known. What the platform's
    `settings` declare to be on the cluster alone is taken as it is written. Raises ProblemError.
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
    found = {key: folder_of(key, name) for key, name in models.items()}
    resolved = with_values(written, {**_absolute_paths(declared, written), **found})
    sets = _sets_of_buckets(declared, resolved, storage.stage_set if fetch else storage.expected_set)
    resolved = with_values(resolved, sets)
    not_here = [Path(path) for path in sets.values() if not os.path.exists(path)]
    to_stage = [TO_STAGE.at(path, "a launch puts them there before its job", severity="warning") for path in not_here]
    annotations = [path for data in declared.data if (path := str(value_at(resolved, data.annotations)))]
    unread = [path for path in annotations if Path(path) in not_here or is_unseen(settings, path)]
    data = [path if path in unread else open_source(path).fingerprint() for path in annotations]
    absent = [each for each in expected.values() if not each.is_here]
    return JobSpec(
        action=action,
        spec_path=spec_path.absolute(),
        spec=written,
        resolved=resolved,
        models=models,
        spec_fingerprint=spec.fingerprint(written_anew(written)),
        inputs_fingerprint=_hash_of([*data, _start(declared, resolved), *map(_model_identity, found.values())]),
        warnings=[*loaded.warnings, *(problem for each in expected.values() for problem in each.problems), *to_stage],
        to_come=(*(path for each in absent for path in _snapshot_and_blobs(each.folder)), *not_here),
        fetch=tuple(each.fetch for each in absent)
        + (command("preflight", "--spec", spec_path, "--only", "data"),) * bool(to_stage),
        settings=settings,
    )


def _snapshot_and_blobs(folder: Path) -> tuple[Path, Path]:
    """In the hub's cache a snapshot is links to the model's blobs."""
    return folder, (folder / "../../blobs").resolve()


def fetch_weights(asked: JobSpec) -> None:
    """Bring the weights of the hub's models into the folders that `asked` names: of those commits, wherever the branch
    is by now. Raises what hub.resolve_model does."""
    for key, name in asked.models.items():
        folder = Path(str(value_at(asked.resolved, key)))
        if hub.is_hub_name(name) and hub.is_snapshot(folder):
            hub.resolve_model(hub.at_commit(name, folder.name), token=environment.hf_token())


def spec_of(record: JobRecord) -> Path:
    """The spec that a job got, in its run folder."""
    return Path(record.run_dir) / "spec.toml"


def job_spec_of(record: JobRecord, settings: Any = None) -> JobSpec:
    """What the job of a record was asked, from the run folder's own spec, to go on where it ended. Its checkpoints
    come before any that it started from."""
    asked = load_job_spec(record.action, spec_of(record), fetch=True, settings=settings)
    begun = any((Path(record.run_dir) / "checkpoints").glob("*_*"))
    resuming = asked.declared.resuming
    goes_on = resuming and (begun or not isinstance(value_at(asked.spec, resuming.key), str))
    changes = {resuming.key: True} if resuming and goes_on else {}
    return replace(
        asked,
        spec_path=Path(record.spec),
        spec=with_values(asked.spec, changes),
        resolved=with_values(asked.resolved, changes),
        models={key: record.model if not at else name for at, (key, name) in enumerate(asked.models.items())},
        spec_fingerprint=record.spec_fingerprint,
    )


def model_names(asked: Spec) -> dict[str, str]:
    """The models of a spec by dotted key, the revision joined to a hub name; the one that is trained or asked first."""
    names: dict[str, str] = {}
    for key in actions.action_for(asked).models:
        if key.only_with and not value_at(asked, key.only_with):
            continue
        name, revision = value_at(asked, key.name), value_at(asked, key.revision) if key.revision else ""
        joins = revision and hub.is_hub_name(name) and "@" not in name
        names[key.name] = f"{name}@{revision}" if joins else name
    return names


def with_absolute_paths(asked: SpecT) -> SpecT:
    """The same spec for a program that works in another folder: the paths that it names in full, models among them."""
    models = {key.name: value_at(asked, key.name) for key in actions.action_for(asked).models}
    folders = {key: os.path.abspath(name) for key, name in models.items() if name and os.path.isdir(name)}
    return with_values(asked, {**_absolute_paths(actions.action_for(asked), asked), **folders})


def process_count(asked: Spec) -> int:
    """How many engine processes a spec asks for."""
    return actions.action_for(asked).processes(asked)


def written_anew(asked: SpecT) -> SpecT:
    """The same spec of a run that does not go on with an earlier one: going on asks for the same outcome."""
    resuming = actions.action_for(asked).resuming
    goes_on = resuming is not None and value_at(asked, resuming.key) is True
    return with_values(asked, {resuming.key: False}) if resuming and goes_on else asked


def _sets_of_buckets(declared: Action, resolved: Spec, bring: Callable[[str, str], tuple[str, str]]) -> dict[str, str]:
    """The paths of a spec's data that lie in a bucket, by dotted key, as `bring` gives them."""
    found: dict[str, str] = {}
    for data in declared.data:
        addresses = str(value_at(resolved, data.annotations)), str(value_at(resolved, data.media))
        if any(map(storage.is_remote, addresses)):
            found |= dict(zip((data.annotations, data.media), bring(*addresses), strict=True))
    return found


def _read_keys(declared: Action, asked: Spec) -> list[str]:
    """The keys that hold a path that a run reads, beside its models."""
    data = [key for each in declared.data for key in (each.annotations, each.media)]
    return [*data, *actions.resolve(declared.reads)(asked), *([declared.resuming.key] if declared.resuming else [])]


def _written_keys(declared: Action) -> list[str]:
    return [declared.output_key, *([f"{declared.decoding}.frame_cache_dir"] if declared.decoding else [])]


def _start(declared: Action, asked: Spec) -> str:
    start = value_at(asked, declared.resuming.key) if declared.resuming else ""
    return start if isinstance(start, str) else ""


def _local_paths(resolved: Spec, keys: list[str]) -> tuple[Path, ...]:
    """The values of these keys that are paths on a file system: neither empty, nor addresses, nor names of the hub."""
    values = [value_at(resolved, key) for key in keys]
    paths = [Path(value) for value in values if isinstance(value, str) and value and "://" not in value]
    return tuple(dict.fromkeys(paths))


def _absolute_paths(declared: Action, asked: Spec) -> dict[str, str]:
    keys = (*_read_keys(declared, asked), *_written_keys(declared), *declared.interpreters(asked))
    written = {key: value_at(asked, key) for key in keys}
    return {
        key: os.path.abspath(os.path.expanduser(value))
        for key, value in written.items()
        if isinstance(value, str) and value and "://" not in value
    }


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
