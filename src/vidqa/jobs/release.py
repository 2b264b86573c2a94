"""Release of an export for others: weights, tokenizer and processor, the proof, and a model card.

The weights are written beside the folder, which is renamed once they are proved. An existing folder only gets a new
card, with the newest scores. An upload to the hub needs no folder: an export is linked, with the same card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vidqa.core.cli import refused_writes
from vidqa.core.environment import OF_THE_ENGINE, PARENT, child_environment, python_path
from vidqa.core.files import read_object, remove, write_json, write_text
from vidqa.core.problem import JOB_FAILED, Problem, ProblemError
from vidqa.core.run_folder import EXPORT, PROOF, UNFINISHED, UPLOADS, RunFolder
from vidqa.data.hub_card import CARD
from vidqa.data.problems import OUTPUT_EXISTS
from vidqa.families.weights import check_weights
from vidqa.jobs.exports import ExportSource, export_source, name_base, origin_of
from vidqa.jobs.model_card import Scores, card_text, scores_of
from vidqa.spec.parent_layers import view_of
from vidqa.spec.run_lookup import ADAPTER

LARGER_MACHINE = (
    "read its output; if it was killed, the whole model did not fit into memory: run it on a larger machine"
)


@dataclass(frozen=True)
class Release:
    """A release. `how`: "written", or "unchanged" if only the card is new. `proof`: losses; `scores`: the card's."""

    folder: Path
    how: str
    format: str
    proof: dict[str, Any]
    scores: list[Scores]


def write_release(source: ExportSource, out: Path, *, merge: bool) -> Release:
    """Export again into `out`; with `merge` an adapter is merged into its base. Raises OUTPUT_EXISTS, ENV_FILE_REFUSED,
    JOB_FAILED, and the problems of the weights or of the proof's sample."""
    merge = merge and source.is_adapter
    facts, there = _facts(source, merge=merge), read_object(out / EXPORT).get("made_of")
    is_whole = there == facts["made_of"] and (out / PROOF).is_file() and not check_weights(out)
    with refused_writes(out):
        if not is_whole:
            _require_free(out, there, facts["made_of"])
            _make(source, out, facts, merge=merge)
        scores = _describe(source, out, out.name, merge=merge)
    kind = "merged" if merge else "adapter" if source.is_adapter else "weights"
    return Release(out, "unchanged" if is_whole else "written", kind, read_object(out / PROOF), scores)


@contextmanager
def for_others(export: Path, repository: str) -> Iterator[Path]:
    """A temporary folder of links to the files of an export, to publish under a name. In an export of a run the model
    card and facts for others replace its own; of adapters the path of the base model is removed."""
    with TemporaryDirectory(prefix="vidqa-hub-") as temporary:
        folder = Path(temporary)
        for path in export.iterdir():
            if path.is_file() and not path.name.startswith(".") and path.name != UPLOADS:
                (folder / path.name).symlink_to(path.resolve())
        if source := export_source(export.resolve()):
            write_json(folder / EXPORT, _facts(source, merge=False))
            _describe(source, folder, repository, merge=False)
        if os.path.isabs(str(read_object(folder / ADAPTER).get("base_model_name_or_path"))):
            name_base(folder)  # a bare folder name would be looked up on the hub
        yield folder


def _facts(source: ExportSource, *, merge: bool) -> dict[str, Any]:
    """The export.json for others. Of the spec it has what decides the model's input: paths are private."""
    identity = {"run": source.run.path.name, "export": source.export.name, "sha256": source.sha256, "merged": merge}
    step, view = source.facts.get("step", 0), view_of(source.spec)
    facts = {"schema_version": 1, "step": step, "made_of": identity, "spec": view}
    return facts if merge else {**facts, "weights": source.facts.get("weights", {})}  # of an adapter's base, too


def _require_free(out: Path, there: Any, identity: dict[str, Any]) -> None:
    """Raise OUTPUT_EXISTS for a folder with any content but this export, possibly damaged; `there` is the identity of
    the export in it, if any."""
    if out.exists() and not out.is_dir():
        raise OUTPUT_EXISTS.error(out, "it is a file")
    if not out.is_dir() or not any(out.iterdir()) or there == identity:
        return
    if not isinstance(there, dict):
        raise OUTPUT_EXISTS.error(out, "it contains files that this script did not write")
    kind, run, export = "merged" if there.get("merged") else "as it is", there.get("run"), there.get("export")
    raise OUTPUT_EXISTS.error(out, f"it contains the export {export} of the run {run}, {kind}, or an older one")


def _make(source: ExportSource, out: Path, facts: dict[str, Any], *, merge: bool) -> None:
    """Make the export with its `facts` and publish it as `out`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    words = ["--run", source.run.path, "--export", source.export, "--out", out, *(["--merge"] if merge else [])]
    unfinished = out.with_name(f"{UNFINISHED}{out.name}")
    try:
        _run_in_engine([*map(str, words)])
    except ProblemError:
        remove(unfinished, owner=out.parent)
        raise
    write_json(unfinished / EXPORT, facts)
    RunFolder.publish(unfinished)


def _run_in_engine(words: list[str]) -> None:
    """Run the export program of the engine, whose memory is freed when it ends."""
    own = {"PYTHONPATH": python_path(), PARENT: str(os.getpid())}
    environment = child_environment(**own, **OF_THE_ENGINE)
    program = [sys.executable, "-P", "-m", "vidqa.engine.actions.export", *words, "--json"]
    done = subprocess.run(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment)
    failure = JOB_FAILED.error(
        words[-1], f"the process that loads and writes the weights ended with {done.returncode}", LARGER_MACHINE
    )
    try:
        problems = [Problem(**fields) for fields in json.loads(done.stdout)["problems"]]
    except (ValueError, TypeError, KeyError) as nothing:
        raise failure from nothing
    if done.returncode:
        raise ProblemError(problems) if problems else failure


def _describe(source: ExportSource, folder: Path, name: str, *, merge: bool) -> list[Scores]:
    """Write the model card of `folder`, under the title `name`; an adapter names its base as the hub does. Returns the
    scores in the card."""
    origin = origin_of(source)
    if origin.repository and not merge:
        name_base(folder, origin.repository, origin.revision)
    scores = scores_of(source, folder)
    write_text(folder / CARD, card_text(source, origin, name, scores, read_object(folder / PROOF), merged=merge))
    return scores
