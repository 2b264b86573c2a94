"""The stages that make the next training set: embeddings, mined and altered samples, assembly, and the check of it."""

from __future__ import annotations

from pathlib import Path

from vidqa import spec
from vidqa.contract.files import parse_json, remove
from vidqa.contract.problem import ProblemError
from vidqa.contract.run_folder import EMBEDDINGS, QUERY_EMBEDDINGS
from vidqa.deft import carrying_out
from vidqa.deft.measuring import data_words, model_words
from vidqa.deft.recipe import train_words
from vidqa.deft.state import Cost
from vidqa.deft.turn import EVALUATE_SPEC, Done, Turn, annotations_in

NOTHING = tuple(f"CURATION_{what}" for what in ("NOTHING_FOUND", "EMPTY_POOL", "NO_GAPS", "NOTHING_NEW"))
MOST_BYTES = 4 << 30  # of a set of annotations
NO_ROWS = ("DATA_EMPTY", "DATA_FILE_MISSING")  # of a folder that is there
NEAR = "DATA_SPLIT_NEAR"  # preflight's warning of files that look alike


def embed(turn: Turn) -> Done:
    """Pool and selection set in the space of the model that the loop starts with, by one job. One that has done just
    this is found again, so that they are computed once for all rounds."""
    pool, selection, asked = str(turn.settings.sets.pool), turn.settings.sets.selection, turn.folder / "embed.toml"
    view = {name: value for name, value in _view(turn).items() if value is not None}
    words = [*model_words(turn.starting_model()), *data_words(pool), *data_words(selection, "query_")]
    words += carrying_out.sets(view)
    carrying_out.script("build_spec", "embed", *words, "--results-dir", turn.runs, "--out", asked)
    try:
        run, _, cost = carrying_out.job("embed", asked, turn.settings.where)
    except ProblemError as none:
        first = none.problems[0]
        if first.code not in NO_ROWS or first.where != str(annotations_in(pool)) or not Path(pool).is_dir():
            raise
        sentence = f"No new samples: the pool is empty. {first.message}: {first.where}."
        return Done(sentence, {}, {}, stop="no new samples")
    outputs = {"pool embeddings": run / EMBEDDINGS, "selection embeddings": run / QUERY_EMBEDDINGS}
    return Done("The pool and the selection set are embedded.", outputs, {}, cost if turn.number == 1 else Cost())


def _view(turn: Turn) -> dict[str, object]:
    """How the evaluation looks at videos and loads its model: a clip is embedded as the model sees it."""
    recipe = spec.keys.flat(spec.load(turn.folder / EVALUATE_SPEC, "evaluate"))
    shared = ("model.dtype", "num_gpus")
    return {key: value for key, value in recipe.items() if key in shared or key.startswith("vision.")}


def mine(turn: Turn) -> Done:
    """Samples of the pool that are like the gaps, none of which an earlier round has tried."""
    folder = _fresh(turn.place / "mined")
    pool = str(turn.settings.sets.pool)
    words: list[object] = ["--gaps", turn.output("gaps"), "--pool", turn.output("pool embeddings")]
    words += ["--query", turn.output("selection embeddings"), "--out", folder, "--round", turn.number]
    words += ["--pool-annotations", annotations_in(pool), "--pool-media", pool] if _is_labelled(pool) else []
    words += [word for place in _tried(turn) for word in ("--tried", place)]
    try:
        found = carrying_out.script("mine_samples", *words, *turn.settings.words.get("mine", [])).data
    except ProblemError as none:
        if none.problems[0].code not in NOTHING:
            raise
        sentence = f"No new samples: the pool holds none that is like the gaps. {none.problems[0].message}."
        return Done(sentence, {}, {"samples": 0}, stop="no new samples")
    if not found["mined"]:
        return _to_label(folder, found["to_label"])
    outputs = {"mined": folder / "mined.json", "mined table": folder / "mined.parquet"}
    outputs |= {"random": folder / "control.json"} if turn.settings.control else {}
    return Done(f"{found['mined']} samples were mined.", outputs, {"samples": found["mined"]})


def _is_labelled(pool: str) -> bool:
    place = annotations_in(pool)
    return place is not None and place.is_file()


def _tried(turn: Turn) -> list[str]:
    """What earlier rounds have mined, whatever became of it."""
    outputs = [each.stages["mine"].outputs for each in turn.state.rounds[: turn.number] if "mine" in each.stages]
    return [each["mined table"].path for each in outputs if "mined table" in each]


def _to_label(folder: Path, count: int) -> Done:
    """What was found has no answers: a person gives them, outside the loop."""
    page = folder / "annotate.html"
    sentence = (
        f"{count} samples were found in the pool, which has no answers. A person has to answer {page} "
        "(scripts/label_samples.py); then begin a loop whose pool is the answered set."
    )
    return Done(sentence, {}, {"samples": 0}, stop="labels needed")


def augment(turn: Turn) -> Done:
    """Altered copies of what was mined, whose answers stay true."""
    folder = _fresh(turn.place / "augmented")
    words: list[object] = ["--annotations", turn.output("mined"), "--out", folder, "--round", turn.number]
    carrying_out.script("augment_samples", *words, *turn.settings.words.get("augment", []))
    made = folder / "augmented.json"
    count = _count(made)
    return Done(f"{count} altered copies were made.", {"augmented": made}, {"samples": count})


def _count(annotations: Path) -> int:
    return len(parse_json(annotations, MOST_BYTES))


def _fresh(folder: Path) -> Path:
    """A folder of the loop's own, without what a stage that was killed has left there."""
    remove(folder, owner=folder.parent)
    return folder


def assemble(turn: Turn) -> Done:
    """The new training set: what the accepted model was trained on, and what was added."""
    added = [place for name in ("mined", "augmented") if (place := turn.output(name))]
    return assembled(turn, added, "train_set", "train set")


def assembled(turn: Turn, added: list[Path], folder: str, name: str) -> Done:
    """The stage ends the loop where nothing new is left to add. Raises the leaks that the assembly finds."""
    base, media = turn.base_set()
    sets, out = turn.settings.sets, _fresh(turn.place / folder)
    words: list[object] = ["--base", base, "--base-media", media, "--add", *added, "--out", out]
    words += ["--round", turn.number]
    for option, place in (("validation", sets.selection), ("kpi", sets.kpi), ("test", sets.test)):
        words += [f"--{option}", annotations_in(place), place] if place else []
    try:
        found = carrying_out.script("assemble_dataset", *words, *turn.settings.words.get("assemble", [])).data
    except ProblemError as none:
        if none.problems[0].code not in NOTHING:
            raise
        sentence = f"No new samples: {none.problems[0].message}."
        return Done(sentence, {}, {"samples": 0}, stop="no new samples")
    rows, origins = found["rows"], ", ".join(f"{count} {origin}" for origin, count in found["by_origin"].items())
    made = {name: out / "annotations.json"}
    return Done(f"{rows} samples to train on: {origins}.", made, {"samples": rows})


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
