"""Find the exact export or checkpoint in a run folder from which another run starts.

    find_export(run, "best")         <run>/safetensors/epoch_3
    find_checkpoint(run, "step_40")  <run>/checkpoints/step_40

Runs of this program, of cosmos-rl and of TAO's container are supported: names step_N, epoch_N and final; the folders
safetensors/ and checkpoints/ in the run folder itself, or below <run_id>/<timestamp>/; best links that are relative,
absolute on another machine, or name step_N where epoch_N was kept, in the run folder, in its folder `best` or in one
beside it. Only `which="latest"` returns the latest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from vidqa.core.files import read_object
from vidqa.spec.problems import NO_RUN

ADAPTER = "adapter_config.json"
EXPORTS = "safetensors"  # the folder of a run's exports
KINDS = (EXPORTS, "checkpoints")
FINAL = "final"  # the last export of a run of cosmos-rl
NAME = re.compile(rf"^((step|epoch)_(\d+)|{FINAL})$")


def find_export(run_folder: Path | str, which: str = "best") -> Path:
    """The folder of exported weights or of an adapter. `which` is best, latest, step_N, epoch_N or final.

    Raises SPEC_PARENT_RUN if there is no run, more than one, or no such export in it.
    """
    return _find(Path(run_folder), which, EXPORTS, _is_export)


def find_checkpoint(run_folder: Path | str, which: str = "best") -> Path:
    """The folder of a resumable checkpoint, such as checkpoints/step_40. Raises SPEC_PARENT_RUN."""
    return _find(Path(run_folder), which, "checkpoints", _is_checkpoint)


def run_folder_of(run_folder: Path | str) -> Path:
    """The only folder at or below `run_folder` that holds safetensors/ or checkpoints/. Raises SPEC_PARENT_RUN."""
    top = Path(os.path.expanduser(run_folder))
    level = [top]
    for _ in range(3):  # the folder, and <run_id>/<timestamp> below it
        runs = [folder for folder in level if any(os.path.isdir(folder / kind) for kind in KINDS)]
        if len(runs) == 1:
            return runs[0]
        if runs:
            named = ", ".join(sorted(str(run) for run in runs)[:10])
            raise NO_RUN.error(top, f"it holds {len(runs)} runs: {named}", "name one of them")
        # A folder `best` beside runs holds only links.
        level = [inner for folder in level for inner in _folders(folder) if inner.name != "best"]
    if not os.path.isdir(top):
        raise NO_RUN.error(top, "there is no such folder or job", "correct its name")
    raise NO_RUN.error(top, "there is no safetensors or checkpoints folder in it", "give a run that saves weights")


def _folders(folder: Path) -> list[Path]:
    return [inner for inner in folder.iterdir() if inner.is_dir()] if os.path.isdir(folder) else []


def _find(top: Path, which: str, kind: str, complete: Callable[[Path], bool]) -> Path:
    home = run_folder_of(top)
    saves = {folder.name: folder for folder in _folders(home / kind) if NAME.match(folder.name) and complete(folder)}
    if not saves:
        remedy = "continue the run to its next save; one with train.ckpt.export_safetensors = true has exports"
        raise NO_RUN.error(home / kind, "there is no complete save in it", remedy)
    listing = f"it has: {', '.join(sorted(saves, key=_order))}"
    if which == "best":
        recorded = list(dict.fromkeys([*_linked_best(home), *_noted_best(home)]))
        save = next((saves[name] for name in [*recorded, *_twins(home, saves)] if name in saves), None)
        if save is None and not recorded:
            raise NO_RUN.error(home, f"the run records no best; {listing}", "name one of these, or ask for latest")
        if save is None:
            raise NO_RUN.error(home, f"best is {recorded[0]} and is not kept; {listing}")
        return save
    if which == "latest":
        return saves[_latest(saves)]
    if which not in saves:
        raise NO_RUN.error(home / kind, f"there is no {which}; {listing}")
    return saves[which]


def _linked_best(home: Path) -> list[str]:
    """The names of the best save according to the run's links."""
    names = []
    own = [home / "best", *(home / kind / "best" for kind in KINDS), *(home / "best" / kind for kind in KINDS)]
    for link in [*own, *(home.parent / "best" / kind for kind in KINDS)]:
        # A link beside the run may belong to another run in the same folder.
        if link.is_symlink() and (link in own or home.name in link.readlink().parts):
            names += [part for part in reversed(link.readlink().parts) if NAME.match(part)][:1]
    return names


def _noted_best(home: Path) -> list[str]:
    """The names of the best save according to best.json: its own name, and its step."""
    best = read_object(home / "best.json")
    return [name for name in (str(best.get("name")), f"step_{best.get('step')}") if NAME.match(name)]


def _twins(home: Path, names_kept: Iterable[str]) -> list[str]:
    """epoch_7 if a link says step_7, and the reverse: other programs record one name and keep the other.

    Applied only if the run keeps no name of the recorded kind, and never to our own runs, which record exact names:
    elsewhere step 7 and epoch 7 are two states.
    """
    if (home / "run.json").is_file():
        return []
    other = {"step": "epoch", "epoch": "step"}
    kinds = {name.partition("_")[0] for name in names_kept}
    named = [name.partition("_") for name in _linked_best(home) if name != FINAL]
    return [f"{other[kind]}_{number}" for kind, _, number in named if kind not in kinds]


def _order(name: str) -> tuple[str, int]:
    kind, _, number = name.partition("_")
    return kind, int(number or 0)


def _latest(saves: dict[str, Path]) -> str:
    """The final save if there is one; by number if all names are of one kind, else by time of writing."""
    if FINAL in saves:
        return FINAL
    if len({name.partition("_")[0] for name in saves}) == 1:
        return max(saves, key=_order)
    return max(saves, key=lambda name: (saves[name].stat().st_mtime, _order(name)))


def _is_export(folder: Path) -> bool:
    """Whether a folder has weights and their config; shards alone are an incomplete export or a staged input."""
    has_weights = any(folder.glob("*.safetensors"))
    return has_weights and ((folder / "config.json").is_file() or (folder / ADAPTER).is_file())


def _is_checkpoint(folder: Path) -> bool:
    policy = folder / "policy"
    return policy.is_dir() and any(policy.iterdir())
