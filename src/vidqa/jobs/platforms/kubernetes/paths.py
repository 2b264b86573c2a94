"""Maps the launcher's paths to paths of the pods, by the volumes that hold them.

Paths of the spec become the pod's in the spec of the pods and in the manifest. The launcher's copy, the record and
everything that the launcher reads keep its own paths. Without `launcher_path`, both are the same.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import tomli_w

from vidqa.core import environment
from vidqa.core.problem import Problem
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.kubernetes.site import KubernetesSite, Volume
from vidqa.jobs.platforms.mounts import with_targets
from vidqa.jobs.platforms.problems import NOT_SEEN, PATH_UNSEEN
from vidqa.jobs.platforms.site import is_unseen

HUB_FOLDER = "models--"  # prefix of model folders in the hub's cache


def site_of(job: Job) -> KubernetesSite:
    return job.settings or KubernetesSite.model_validate({})


def seen_at(site: KubernetesSite, path: Path) -> PurePosixPath | None:
    """The pod's path of a file or folder of the launcher; None where no volume holds it."""
    volume = _volume_of(site, path)
    return None if volume is None else PurePosixPath(volume.mount_path, os.path.relpath(path, volume.here))


def in_pod(job: Job) -> Job:
    """The job with its paths, and those of its spec, as its pods see them."""
    site = site_of(job)
    if not any(volume.launcher_path for volume in site.volumes):
        return job
    there = {str(path): str(seen_at(site, path) or path) for path in (*job.reads, *job.writes)}
    return replace(
        job,
        run_dir=Path(seen_at(site, job.run_dir) or job.run_dir),
        reads=tuple(Path(there[str(path)]) for path in job.reads),
        writes=tuple(Path(there[str(path)]) for path in job.writes),
        spec_toml=tomli_w.dumps(_replaced(tomllib.loads(job.spec_toml), there)) if job.spec_toml else "",
    )


def cache_folder(site: KubernetesSite) -> PurePosixPath | None:
    """The pods' path of the launcher's cache; None where no volume holds it, and each pod has a temporary one."""
    return seen_at(site, environment.cache_folder())


def path_problems(job: Job) -> list[Problem]:
    """Errors for paths that pods do not find or cannot write; warnings for targets of links in input folders."""
    site = site_of(job)
    own = environment.cache_folder() if cache_folder(site) is None else None
    named, written = dict.fromkeys([*job.reads, *job.writes, job.run_dir]), {*job.writes, job.run_dir}
    own_problems = [_problem(site, path, path in written) for path in named if path != own]
    linked = dict.fromkeys(place for path in job.reads for place in with_targets(path) if place not in named)
    maybe = [_problem(site, path, is_written=False) for path in linked]
    warnings = [replace(problem, severity="warning") for problem in maybe if problem]
    if unseen := [str(path) for path in named if is_unseen(site, path)]:
        warnings.append(NOT_SEEN.at("cluster_paths", ", ".join(unseen), severity="warning"))
    return [
        problem for problem in [*own_problems, *(_misnamed(site, path) for path in job.named)] if problem
    ] + warnings


def _problem(site: KubernetesSite, path: Path, is_written: bool) -> Problem | None:
    volume, there = _volume_of(site, path), seen_at(site, path)
    if volume is None or there is None:
        held = ", ".join(volume.here for volume in site.volumes) or "none"
        return PATH_UNSEEN.at(path, f"no volume holds it; they hold: {held}", _remedy_for_the_hub(path))
    nearest = max((v for v in site.volumes if there.is_relative_to(v.mount_path)), key=lambda v: len(v.mount_path))
    if nearest is not volume:
        return PATH_UNSEEN.at(path, f"in the pod it would be {there}, over which {nearest.mount_path} is mounted")
    if is_written and volume.read_only:
        return PATH_UNSEEN.at(path, f"it is written, and {volume.mount_path} is mounted read-only")
    return None


def _misnamed(site: KubernetesSite, path: Path) -> Problem | None:
    """A folder that annotations name by an absolute path, which no launcher changes."""
    there = seen_at(site, path)
    if there is None or there == PurePosixPath(path):
        return None  # a folder that no volume holds is named already
    remedy = "Name media in the annotations relative to media_path, or give both sides the same path."
    return PATH_UNSEEN.at(path, f"annotations name media there by absolute paths, and in the pod it is {there}", remedy)


def _remedy_for_the_hub(path: Path) -> str | None:
    """The fix for a hub model, which lies in the cache of huggingface_hub."""
    name = next((part for part in path.parts if part.startswith(HUB_FOLDER)), None)
    if name is None:
        return None
    cache = Path(*path.parts[: path.parts.index(name)])
    return (
        f"Give the volume that holds the hub's cache launcher_path = '{cache}' in site.toml, or let HF_HOME name a "
        "folder of a volume."
    )


def _volume_of(site: KubernetesSite, path: Path) -> Volume | None:
    """The volume with the longest folder that holds a path of the launcher."""
    target = Path(os.path.normpath(path))
    holding = [volume for volume in site.volumes if target.is_relative_to(volume.here)]
    return max(holding, key=lambda volume: len(volume.here), default=None)


def _replaced(value: Any, there: dict[str, str]) -> Any:
    """A table of a spec with these paths replaced."""
    if isinstance(value, dict):
        return {key: _replaced(inner, there) for key, inner in value.items()}
    return there.get(value, value) if isinstance(value, str) else value
