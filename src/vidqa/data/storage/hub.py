"""Resolve the name of a model to a local folder, fetching it from the Hugging Face hub if necessary.

    resolve_model("hf_model://nvidia/Cosmos-Reason2-8B@main", token=environment.hf_token())

This happens once, before a job starts; the job itself runs offline.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vidqa.core import environment
from vidqa.core.files import content_hash
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.problems import (
    DENIED,
    DISK_SPACE,
    HUB_ANSWER,
    NOT_FOUND,
    TO_FETCH,
    UNREACHABLE,
)

PREFIX, DATA_SET_PREFIX = "hf_model://", "hf_dataset://"
DATA_SET = "check the spelling: organisation/name, on the hub under datasets; as a path hf_dataset://organisation/name"
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]  # config, tokenizer, chat template, processor
WEIGHTS = ["*.safetensors"]
PAUSES_S = (2.0, 5.0)  # between attempts: there is one more attempt than pauses
TIMEOUT_S = 10.0  # for one response of the hub
UNKNOWN = "COMMIT"  # placeholder in a path while the commit is unknown
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubName(NamedTuple):
    """`repository` is organisation/name; `revision` is a branch, tag or commit, None for the default branch."""

    repository: str
    revision: str | None


def is_hub_name(name: str) -> bool:
    return name.startswith(PREFIX)


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def repo_type(name: str) -> str:
    """The hub's repo_type of a name: model or dataset."""
    return "dataset" if name.startswith(DATA_SET_PREFIX) else "model"


def snapshot_of(folder: Path) -> str:
    """organisation/name if a folder is one commit of a model in the hub's cache, where files never change; else ""."""
    cached = folder.parent.parent.name
    in_cache = folder.parent.name == "snapshots" and cached.startswith("models--")
    return cached.removeprefix("models--").replace("--", "/", 1) if in_cache else ""


def parse(name: str) -> HubName:
    """Parse "hf_model://organisation/name[@revision]", or a data set's name, into repository and revision. Raises
    STORAGE_NOT_FOUND."""
    repository, _, revision = name.rpartition("://")[2].partition("@")
    if not _NAME.fullmatch(repository):
        raise NOT_FOUND.error(name, f"{repository!r} is not of the form organisation/name")
    return HubName(repository, revision or None)


def at_commit(name: str, commit: str) -> str:
    """A "hf_model://" name with its revision replaced by a commit."""
    return f"{PREFIX}{parse(name).repository}@{commit}"


class Expected(NamedTuple):
    """The folder that `resolve_model` will return, whether its weights are there already, problems of resolving it, and
    the shell command that fetches it; "" if it is there, or its commit is unknown."""

    folder: Path
    is_here: bool
    problems: list[Problem]
    fetch: str


def resolve_model(name: str, *, token: str | None, weights: bool = True) -> Path:
    """Resolve a model to its local folder: an existing folder, or the fetched snapshot of a "hf_model://" name.

    Without `weights` only the small files are fetched, which is enough for planning. If the hub cannot be reached, a
    snapshot in its cache is used. Raises STORAGE_NOT_FOUND, STORAGE_DENIED, STORAGE_UNREACHABLE, ENV_DISK_SPACE.
    """
    if not is_hub_name(name):
        return _local_folder(name)
    try:
        ask(name, token=token)
    except ProblemError as refused:
        cached = _cached(name, weights) if refused.problems[0].code == UNREACHABLE.name else None
        if cached is None:
            raise
        return cached
    return download(name, parse(name).revision, _files(weights), token, ignore="*/*")


def expect(name: str, *, token: str | None) -> Expected:
    """Predict the folder of a "hf_model://" name. The hub is asked once for the commit; nothing is fetched.

    No response is a warning, because the hub may respond at launch; a refusal is an error. Raises STORAGE_NOT_FOUND
    for an invalid name.
    """
    repository, problems = parse(name).repository, []
    try:
        commit: str | None = ask(name, token=token, pauses_s=())
    except ProblemError as refused:
        commit, problems = _cached_commit(name), refused.problems
    is_silent = any(problem.code == UNREACHABLE.name for problem in problems)
    folder = snapshots(name) / (commit or UNKNOWN)
    if commit and _cached(at_commit(name, commit), weights=True):
        return Expected(folder, True, [] if is_silent else problems, "")
    if is_silent:
        problems = [replace(problem, severity="warning") for problem in problems]
    where = f"into {folder}" if commit else f"and {UNKNOWN} stands for the commit, which is not known yet"
    remedy = None if commit else "No action needed: a launch downloads it. Until then, a dry run's command cannot run."
    warning = TO_FETCH.at(name, f"a launch fetches it before the job starts, {where}", remedy, severity="warning")
    return Expected(folder, False, [*problems, warning], _fetch_command(repository, commit) if commit else "")


def _cached_commit(name: str) -> str | None:
    """The commit of a revision without asking the hub: the revision itself, or the latest fetched commit."""
    revision = parse(name).revision
    if revision and is_commit(revision):
        return revision
    cached = _cached(name, weights=False)
    return cached.name if cached else None


def snapshots(name: str) -> Path:
    """The folder of a repository's snapshots in the hub's cache, one for each commit."""
    from huggingface_hub import constants, file_download

    folder = file_download.repo_folder_name(repo_id=parse(name).repository, repo_type=repo_type(name))
    return Path(constants.HF_HUB_CACHE).absolute() / folder / "snapshots"


def _fetch_command(repository: str, commit: str) -> str:
    """The shell command that fetches the same files as `resolve_model`."""
    program = str(Path(sys.executable).with_name("hf"))
    patterns = [word for pattern in _files(True) for word in ("--include", pattern)]
    return shlex.join([program, "download", repository, "--revision", commit, *patterns, "--exclude", "*/*"])


def ask(name: str, *, token: str | None, pauses_s: Sequence[float] | None = None) -> str:
    """Ask the hub for the commit of a model's or data set's name, after checking that the token may read it.

    A few kilobytes at most; preflight calls it. If the hub does not respond, it is asked again after each pause.
    Raises STORAGE_DENIED, STORAGE_NOT_FOUND, STORAGE_UNREACHABLE, HUB_ANSWER.
    """
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled

    pauses_s = PAUSES_S if pauses_s is None else pauses_s
    for pause in (*pauses_s, None):
        try:
            return _ask_once(name, token)
        except OfflineModeIsEnabled as offline:
            raise UNREACHABLE.error(name, "HF_HUB_OFFLINE forbids asking the hub") from offline
        except HTTPError as failed:
            refused = refusal(name, failed, len(pauses_s) + 1)
            if pause is None or refused.code != UNREACHABLE.name:
                raise ProblemError([refused]) from failed
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _ask_once(name: str, token: str | None) -> str:
    import huggingface_hub

    api = huggingface_hub.HfApi(endpoint=environment.hf_endpoint(), token=token)
    repository, revision = parse(name)
    with answer_of(repository):
        info = api.repo_info(repository, revision=revision, timeout=TIMEOUT_S, repo_type=repo_type(name))
        if getattr(info, "gated", False):  # the page of a gated repository is public, its files need access
            api.auth_check(repository, repo_type=repo_type(name))
        if not isinstance(info.sha, str) or not is_commit(info.sha):  # becomes the name of a folder
            raise ValueError(f"{info.sha!r} is not a commit")
    return info.sha


@contextmanager
def answer_of(repository: str) -> Iterator[None]:
    """Raise HUB_ANSWER for a response that the hub's client, or this module, cannot parse."""
    from huggingface_hub.errors import HTTPError

    try:
        yield
    except HTTPError:  # some are ValueErrors, too
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as unreadable:
        raise HUB_ANSWER.error(repository, f"{type(unreadable).__name__}: {unreadable}") from unreadable


def file_fault(path: Path, size: int, sha256: str | None, blob: str | None) -> str:
    """Compare a file with the hub's listing: its size, and the SHA-256 of a large file or git's hash `blob` of others.
    Returns an error message, "" if they match. Hashes of large files are cached."""
    try:
        actual = path.stat().st_size if not path.is_symlink() else -1
        if actual != size:
            return f"it has {actual:,} bytes, the hub lists {size:,}"
        if sha256:
            digest = content_hash(path)
        else:
            digest = hashlib.sha1(b"blob %d\0" % size + path.read_bytes(), usedforsecurity=False).hexdigest()
    except OSError as refused:
        return f"it cannot be read: {refused.strerror}"
    listed = sha256 or blob
    return "" if listed in (None, digest) else f"its hash is {digest}, the hub lists {listed}"


def _local_folder(name: str) -> Path:
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):
        return folder.resolve()
    if os.path.exists(folder):
        raise NOT_FOUND.error(name, "this is a file; a model is a folder", "give the folder of the model")
    may_be_of_hub = _NAME.fullmatch(name) and not name.startswith(".")
    remedy = f"check the path; to fetch it from the hub write {PREFIX}{name}" if may_be_of_hub else "check the path"
    raise NOT_FOUND.error(name, f"there is no folder {folder.absolute()}", remedy)


def _cached(name: str, weights: bool) -> Path | None:
    """The snapshot that an earlier run fetched; None if there is none, or if it lacks the requested weights."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, revision = parse(name)
    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=_files(weights), ignore_patterns="*/*", local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    return Path(folder) if not weights or any(Path(folder).glob("*.safetensors")) else None


def download(
    name: str,
    revision: str | None,
    patterns: Sequence[str],
    token: str | None,
    *,
    ignore: str | None = None,
    folder: Path | None = None,
) -> Path:
    """Fetch the files that match the patterns into the hub's cache, or into `folder`; returns the folder.
    Raises STORAGE_DENIED, STORAGE_NOT_FOUND, STORAGE_UNREACHABLE, ENV_DISK_SPACE."""
    import huggingface_hub
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError

    try:
        fetched = huggingface_hub.snapshot_download(
            parse(name).repository,
            repo_type=repo_type(name),
            revision=revision,
            endpoint=environment.hf_endpoint(),
            token=token,
            allow_patterns=list(patterns),
            ignore_patterns=ignore,
            local_dir=folder,
        )
    except (HTTPError, LocalEntryNotFoundError) as failed:
        raise ProblemError([refusal(name, failed)]) from failed
    except OSError as failed:
        raise DISK_SPACE.error(name, f"storing it failed: {failed}") from failed
    return Path(fetched)


def _files(weights: bool) -> list[str]:
    return SMALL_FILES + WEIGHTS if weights else SMALL_FILES


def refusal(name: str, failed: BaseException, attempts: int = 1) -> Problem:
    """The problem of a failed request, by the hub's HTTP status if it responded."""
    hub = environment.hf_endpoint() or "https://huggingface.co"
    kind, page = ("model", "") if repo_type(name) == "model" else ("data set", "datasets/")
    status = _status(failed)
    if status in (401, 403):
        token = "the token in HF_TOKEN has no access" if environment.hf_token() else "HF_TOKEN is not set"
        return DENIED.at(
            name,
            f"{hub} answered {status}: the {kind} is gated, private, or does not exist, and {token}",
            f"check the spelling, accept the agreement at {hub}/{page}{parse(name).repository}, set HF_TOKEN, "
            "run this again",
        )
    if status == 404:
        return NOT_FOUND.at(name, f"{hub} answered 404: no such {kind} or revision", DATA_SET if page else None)
    answer = f"answered {status}" if status else f"did not answer ({type(failed).__name__})"
    remedy = "check the network and HF_ENDPOINT, then run this again: it continues" if page else None
    return UNREACHABLE.at(name, f"{hub} {answer}, after {attempts} attempt{'s' * (attempts > 1)}", remedy)


def _status(failed: BaseException | None) -> int | None:
    """The HTTP status of an error, or of one of its causes."""
    while failed is not None:
        response: Any = getattr(failed, "response", None)
        if response is not None:
            return int(response.status_code)
        failed = failed.__cause__
    return None
