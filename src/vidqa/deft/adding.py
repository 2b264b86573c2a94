"""The stages that make the next training set: embeddings, mined and altered samples, assembly, and the check of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from vidqa import spec
from vidqa.contract.files import read_json
from vidqa.deft import carrying_out
from vidqa.deft.measuring import data_words, model_words
from vidqa.deft.recipe import train_words
from vidqa.deft.state import Cost
from vidqa.deft.turn import EVALUATE_SPEC, Done, Turn

EMBEDDINGS = "embeddings.parquet"
NEAR = "DATA_SPLIT_NEAR"  # preflight's warning of files that look alike


def embed(turn: Turn) -> Done:
    """Pool and selection set in the space of the model that the loop starts with. A job that has done just this is
    found again, so that it is computed once for all rounds."""
    outputs: dict[str, Path] = {}
    spent = Cost()
    view = {name: value for name, value in _view(turn).items() if value is not None}
    for name, folder in (("selection", turn.settings.sets.selection), ("pool", str(turn.settings.sets.pool))):
        asked = turn.folder / f"embed_{name}.toml"
        words = [*model_words(turn.starting_model()), *data_words(folder), "--results-dir", turn.runs, "--out", asked]
        sets = [word for key, value in view.items() for word in ("--set", f"{key}={value}")]
        carrying_out.script("build_spec", "embed", *words, *sets)
        run, _, cost = carrying_out.job("embed", asked, turn.settings.where)
        outputs[f"{name} embeddings"] = run / EMBEDDINGS
        if turn.number == 1:
            spent = Cost(seconds=spent.seconds + cost.seconds, gpu_seconds=spent.gpu_seconds + cost.gpu_seconds)
    return Done("The pool and the selection set are embedded.", outputs, {}, spent)


def _view(turn: Turn) -> dict[str, object]:
    """How the evaluation looks at videos and loads its model: a clip is embedded as the model sees it."""
    recipe = spec.keys.flat(spec.load(turn.folder / EVALUATE_SPEC, "evaluate"))
    shared = ("model.dtype", "num_gpus")
    return {key: value for key, value in recipe.items() if key in shared or key.startswith("vision.")}


def mine(turn: Turn) -> Done:
    """Samples of the pool that are like the gaps, none of which an earlier round has tried."""
    folder = _fresh(turn.place / "mined")
    words: list[object] = ["--gaps", turn.output("gaps"), "--pool", turn.output("pool embeddings")]
    words += ["--query", turn.output("selection embeddings"), "--out", folder]
    carrying_out.script("mine_samples", *words, *turn.settings.words.get("mine", []))
    return _added(turn, folder / "mined.json", "mined")


def augment(turn: Turn) -> Done:
    """Altered copies of what was mined, whose answers stay true."""
    folder = _fresh(turn.place / "augmented")
    words: list[object] = ["--annotations", turn.output("mined"), "--out", folder]
    carrying_out.script("augment_samples", *words, *turn.settings.words.get("augment", []))
    return _added(turn, folder / "annotations.json", "augmented")


def _fresh(folder: Path) -> Path:
    """A folder of the loop's own, without what a stage that was killed has left there."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _added(turn: Turn, annotations: Path, name: str) -> Done:
    count = len(read_json(annotations))
    if count:
        return Done(f"{count} samples were {name}.", {name: annotations}, {"samples": count})
    sentence = "The pool holds no new sample that is like the gaps."
    return Done(sentence, {name: annotations}, {"samples": 0}, stop="no new samples")


def assemble(turn: Turn) -> Done:
    """The new training set: what the accepted model was trained on, and what was added."""
    added = [place for name in ("mined", "augmented") if (place := turn.output(name))]
    return assembled(turn, added, "train_set", "train set")


def assembled(turn: Turn, added: list[Path], folder: str, name: str) -> Done:
    """Raises the leaks that the assembly finds."""
    base, media = turn.base_set()
    sets = turn.settings.sets
    measured = [place for place in (sets.selection, sets.kpi, sets.test) if place]
    words: list[object] = [
        "--base",
        base,
        "--base-media",
        media,
        "--round",
        turn.number,
        "--out",
        _fresh(turn.place / folder),
    ]
    words += [word for place in added for word in ("--add", place)]
    words += [word for place in measured for word in ("--apart-from", place)]
    carrying_out.script("assemble_dataset", *words, *turn.settings.words.get("assemble", []))
    made = turn.place / folder / "annotations.json"
    count, before = len(read_json(made)), len(read_json(base))
    return Done(f"{count} samples to train on, {before} before.", {name: made}, {"samples": count, "before": before})


def validate(turn: Turn) -> Done:
    """The spec of this round's training, and its preflight: it refuses what is trained on and measured on."""
    return validated(turn, "train set", "train", "training spec")


def validated(turn: Turn, made: str, stem: str, output: str) -> Done:
    """Raises what preflight finds wrong."""
    asked = turn.place / f"{stem}.toml"
    carrying_out.script("build_spec", "train", *train_words(turn, Path(str(turn.output(made))), asked))
    sets, platform = turn.settings.sets, turn.settings.where.platform
    found = [carrying_out.script("preflight", "--spec", asked, "--platform", platform, "--kpi-root", sets.selection)]
    for folder in filter(None, (sets.kpi, sets.test)):
        found.append(carrying_out.script("preflight", "--spec", asked, "--only", "leaks", "--kpi-root", folder))
    alike = sum(problem.code == NEAR for result in found for problem in result.problems)
    looks = f"; {alike} of its sets look alike in places, see leaks.json" if alike else ""
    return Done(f"Preflight has passed{looks}.", {output: asked}, {"warnings": alike})
