"""Release of an export as a folder for others: weights, tokenizer and processor, the proof, and a model card.

The weights are written beside the folder, which is renamed once they are proved. An existing folder only gets a new
card, with the newest scores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.cli import refused_writes
from vidqa.core.environment import OF_THE_ENGINE, PARENT, child_environment, python_path
from vidqa.core.files import now, read_object, remove, write_json, write_text
from vidqa.core.problem import JOB_FAILED, Problem, ProblemError
from vidqa.core.run_folder import EXPORT, PROOF, UNFINISHED, RunFolder
from vidqa.data.problems import OUTPUT_EXISTS
from vidqa.families.weights import check_weights
from vidqa.jobs.exports import ExportSource, origin_of, point_to_hub
from vidqa.jobs.model_card import Scores, card_text, scores_of
from vidqa.spec.parent_layers import view_of

CARD = "README.md"
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
    identity = {"run": source.run.path.name, "export": source.export.name, "sha256": source.sha256, "merged": merge}
    facts = read_object(out / EXPORT)
    is_whole = facts.get("made_of") == identity and (out / PROOF).is_file() and not check_weights(out)
    how = "unchanged" if is_whole else "written"
    with refused_writes(out):
        if how == "written":
            _require_free(out, facts, identity)
            facts = _make(source, out, identity, merge=merge)
        return _with_card(source, out, how, facts, merge=merge)


def _require_free(out: Path, facts: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise OUTPUT_EXISTS for a folder with any content but this export, possibly damaged."""
    if out.exists() and not out.is_dir():
        raise OUTPUT_EXISTS.error(out, "it is a file")
    identity_there = facts.get("made_of")
    if not out.is_dir() or not any(out.iterdir()) or identity_there == identity:
        return
    if not isinstance(identity_there, dict):
        raise OUTPUT_EXISTS.error(out, "it contains files that this script did not write")
    kind = "merged" if identity_there.get("merged") else "as it is"
    run, export = identity_there.get("run"), identity_there.get("export")
    raise OUTPUT_EXISTS.error(out, f"it contains the export {export} of the run {run}, {kind}, or an older one")


def _make(source: ExportSource, out: Path, identity: dict[str, Any], *, merge: bool) -> dict[str, Any]:
    """Make and publish the export as `out`; returns its facts."""
    out.parent.mkdir(parents=True, exist_ok=True)
    words = ["--run", source.run.path, "--export", source.export, "--out", out, *(["--merge"] if merge else [])]
    unfinished = out.with_name(f"{UNFINISHED}{out.name}")
    try:
        report = _in_engine([*map(str, words)])
    except ProblemError:
        remove(unfinished, owner=out.parent)
        raise
    facts = {
        "schema_version": 1,
        "step": source.facts.get("step", 0),
        "created": now(),
        "made_of": identity,
        "format": report["format"],
        "trainer_loss": report["proof"]["trainer_loss"],
        "proof_sample": report["proof"]["sample_id"],
        "spec": view_of(source.spec),  # not all of it: the folder is for others, and paths are private
    }
    write_json(unfinished / EXPORT, facts)
    RunFolder.publish(unfinished)
    return facts


def _in_engine(words: list[str]) -> dict[str, Any]:
    """Run the export program of the engine and return its result; its memory is freed when it ends."""
    own = {"PYTHONPATH": python_path(), PARENT: str(os.getpid())}
    environment = child_environment(**own, **OF_THE_ENGINE)
    program = [sys.executable, "-P", "-m", "vidqa.engine.actions.export", *words, "--json"]
    done = subprocess.run(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment)
    failure = JOB_FAILED.error(
        words[-1], f"the process that loads and writes the weights ended with {done.returncode}", LARGER_MACHINE
    )
    try:
        report = json.loads(done.stdout)
        problems = [Problem(**fields) for fields in report["problems"]]
    except (ValueError, TypeError, KeyError) as nothing:
        raise failure from nothing
    if done.returncode:
        raise ProblemError(problems) if problems else failure
    data: dict[str, Any] = report["data"]
    return data


def _with_card(source: ExportSource, out: Path, how: str, facts: dict[str, Any], *, merge: bool) -> Release:
    origin, proof = origin_of(source), read_object(out / PROOF)
    if source.is_adapter and not merge:
        point_to_hub(out, origin)
    scores = scores_of(source, out)
    write_text(out / CARD, card_text(source, origin, out.name, scores, proof, merged=merge))
    return Release(out, how, str(facts.get("format")), proof, scores)
