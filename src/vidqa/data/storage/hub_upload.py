"""Uploads an export to a model repository of the Hugging Face hub, private unless the user agrees to a public one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidqa.core import environment
from vidqa.core.files import content_hash
from vidqa.data.problems import DAMAGED, DENIED, HUB_PUBLIC, UNREACHABLE

BLOCK = 8 << 20


def upload_export(
    folder: Path, name: str, message: str, *, token: str | None, public: bool, without: str
) -> dict[str, Any]:
    """Commit the files of an export, but the one called `without`, to organisation/name, or to a name alone in the
    token's own namespace; made where it is not there. {"repository", "commit", "files", "bytes"}.

    Files that the hub has already are not sent again. Raises STORAGE_HUB_PUBLIC, STORAGE_DENIED,
    STORAGE_UNREACHABLE, STORAGE_DAMAGED.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    api = huggingface_hub.HfApi(endpoint=environment.hf_endpoint(), token=token)
    huggingface_hub.utils.disable_progress_bars()
    try:
        name = str(api.create_repo(name, private=not public, exist_ok=True).repo_id)
        if not public and not api.model_info(name).private:
            raise HUB_PUBLIC.error(name, "it is public")
        commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, ignore_patterns=[without])
        files = _files(folder, without)
        damaged = _differences(api, name, str(commit.oid), folder, files)
    except OfflineModeIsEnabled as offline:
        raise UNREACHABLE.error(
            name, "HF_HUB_OFFLINE forbids asking the hub", "unset it and run this again"
        ) from offline
    except HfHubHTTPError as answer:
        remedy = "set HF_TOKEN to a token that may write there, and run: python scripts/upload.py RUN"
        raise DENIED.error(name, _short(answer, token), remedy) from answer
    except (HTTPError, OSError) as away:
        raise UNREACHABLE.error(name, f"{type(away).__name__}: {_short(away, token)}") from away
    except ValueError as refused:  # a name that no repository may have
        raise DENIED.error(name, _short(refused, token), "correct the name") from refused
    if damaged:
        raise DAMAGED.error(name, f"differs from {folder}: {', '.join(damaged[:10])}")
    sizes = [path.stat().st_size for path in files]
    return {
        "repository": name,
        "commit": str(commit.oid),
        "export": folder.name,
        "files": len(sizes),
        "bytes": sum(sizes),
    }


def _files(folder: Path, without: str) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).as_posix() != without)
    return sorted(path for path in files if ".cache" not in path.parts)


def _differences(api: Any, name: str, commit: str, folder: Path, files: Sequence[Path]) -> list[str]:
    """The files of the folder that the hub does not have in that commit, bit by bit."""
    there = {entry.path: entry for entry in api.list_repo_tree(name, recursive=True, revision=commit)}
    return [relative for path in files if not _agrees(path, there.get(relative := path.relative_to(folder).as_posix()))]


def _agrees(path: Path, there: Any) -> bool:
    """Large files carry their SHA-256, others the name that git gives their content."""
    if there is None or there.size != path.stat().st_size:
        return False
    if there.lfs is not None:
        return bool(there.lfs.sha256 == content_hash(path))
    content = path.read_bytes()
    return bool(there.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())


def _short(failed: BaseException, token: str | None) -> str:
    text = " ".join(str(failed).split())[:300]
    return text.replace(token, "<HF_TOKEN>") if token else text
