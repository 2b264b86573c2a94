"""The stages that make the next training set: embeddings, mined and altered samples, assembly, and the check of it."""

from __future__ import annotations

from pathlib import Path

from vidqa import spec
from vidqa.contract.files import remove
from vidqa.contract.problem import ProblemError
from vidqa.contract.run_folder import EMBEDDINGS, QUERY_EMBEDDINGS
from vidqa.deft import runner
from vidqa.deft.context import EVALUATE_SPEC, LABELS, Done, Turn, annotations_in, is_labelled, media_of
from vidqa.deft.measuring import data_words, model_words
from vidqa.deft.recipe import train_words
from vidqa.deft.state import Cost
from vidqa.deft.tables import Annotations, read_table

NOTHING = tuple(f"CURATION_{what}" for what in ("NOTHING_FOUND", "EMPTY_POOL", "NO_GAPS", "NOTHING_NEW"))
NO_ROWS = ("DATA_EMPTY", "DATA_FILE_MISSING")  # of a folder that is there
LEAKING = "leaking"  # why assemble_dataset.py leaves a row out
NEAR = "DATA_SPLIT_NEAR"  # preflight's warning of files that look alike


def embed(turn: Turn) -> Done:
    """Pool and selection set in the space of the model that the loop starts with, by one job. One that has done just
    this is found again, so that they are computed once for all rounds."""
    pool, selection, asked = str(turn.settings.sets.pool), turn.settings.sets.selection, turn.folder / "embed.toml"
    view = {name: value for name, value in _view(turn).items() if value is not None}
    words = [*model_words(turn.starting_model()), *data_words(pool), *data_words(selection, "query_")]
    words += runner.sets(view)
    runner.script("build_spec", "embed", *words, "--results-dir", turn.runs, "--out", asked)
    try:
        run, _, cost = runner.job("embed", asked, turn.settings.where)
    except ProblemError as none:
        first = none.problems[0]
        if first.code not in NO_ROWS or first.where != str(annotations_in(pool)) or not Path(pool).exists():
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
    words += ["--pool-annotations", annotations_in(pool), "--pool-media", media_of(pool)] if is_labelled(pool) else []
    words += [word for place in _tried(turn) for word in ("--tried", place)]
    try:
        found = runner.script("mine_samples", *words, *turn.settings.words.get("mine", [])).data
    except ProblemError as none:
        if none.problems[0].code not in NOTHING:
            raise
        sentence = f"No new samples: the pool holds none that is like the gaps. {none.problems[0].message}."
        return Done(sentence, {}, {"samples": 0}, stop="no new samples")
    outputs = {"mined table": folder / "mined.parquet"}
    if not found["mined"]:
        count = found["to_label"]
        sentence = f"{count} samples of the pool were mined. They have no answers."
        return Done(sentence, {**outputs, "tasks": folder / "tasks.json"}, {"samples": 0, "to label": count})
    outputs |= {"mined": folder / "mined.json"}
    outputs |= {"random": folder / "control.json"} if turn.settings.control else {}
    return Done(f"{found['mined']} samples were mined.", outputs, {"samples": found["mined"]})


def _tried(turn: Turn) -> list[str]:
    """What earlier rounds have mined, whatever became of it."""
    outputs = [each.stages["mine"].outputs for each in turn.state.rounds[: turn.number] if "mine" in each.stages]
    return [each["mined table"].path for each in outputs if "mined table" in each]


def label(turn: Turn) -> Done:
    """A person's answers to what was mined without answers; the loop waits for them. Raises CURATION_LABELS."""
    tasks, answers, out = turn.output("tasks"), turn.place / LABELS, turn.place / "labelled.json"
    if tasks is None:
        return Done("All that was mined has answers.")
    asked = f"A person has to answer {tasks.with_name('annotate.html')}, save, and give the saved file with --labels."
    count = turn.fact("mine", "to label")
    if not answers.is_file():
        return Done(f"Samples that were mined without answers: {count}. {asked}", stop="labels needed", waits=True)
    remove(out, owner=turn.place)
    counts = runner.script("label_samples", "--tasks", tasks, "--labels", answers, "--out", out).data
    labelled = counts["labelled"]
    if not labelled:
        return Done(f"None of the {count} samples is answered in {answers}. {asked}", stop="labels needed", waits=True)
    sentence = f"{labelled} of {count} mined samples were answered by a person."
    return Done(sentence, {"mined": out}, {"samples": labelled})


def augment(turn: Turn) -> Done:
    """Altered copies of what was mined, whose answers stay true."""
    folder = _fresh(turn.place / "augmented")
    words: list[object] = ["--annotations", turn.output("mined"), "--out", folder, "--round", turn.number]
    runner.script("augment_samples", *words, *turn.settings.words.get("augment", []))
    made = folder / "augmented.json"
    count = len(read_table(made, Annotations).root)
    return Done(f"{count} altered copies were made.", {"augmented": made}, {"samples": count})


def _fresh(folder: Path) -> Path:
    """A folder of the loop's own, without what a stage that was killed has left there."""
    remove(folder, owner=folder.parent)
    return folder


def assemble(turn: Turn) -> Done:
    """The new training set: what the accepted model was trained on, and what was added."""
    added = [place for name in ("mined", "augmented") if (place := turn.output(name))]
    return assembled(turn, added, "train_set", "train set")


def assembled(turn: Turn, added: list[Path], folder: str, name: str) -> Done:
    """The stage ends the loop where nothing new is left to add. Samples that leak are left out and counted."""
    base, media = turn.base_set()
    sets, out = turn.settings.sets, _fresh(turn.place / folder)
    words: list[object] = ["--base", base, "--base-media", media, "--add", *added, "--out", out]
    words += ["--round", turn.number]
    for option, place in (("validation", sets.selection), ("kpi", sets.kpi), ("test", sets.test)):
        words += [f"--{option}", annotations_in(place), place] if place else []
    try:
        found = runner.script("assemble_dataset", *words, *turn.settings.words.get("assemble", [])).data
    except ProblemError as none:
        if none.problems[0].code not in NOTHING:
            raise
        sentence = f"No new samples: {none.problems[0].message}."
        return Done(sentence, {}, {"samples": 0}, stop="no new samples")
    rows, origins = found["rows"], ", ".join(f"{count} {origin}" for origin, count in found["by_origin"].items())
    files = {name: out / "annotations.json"}
    leaking = found["left_out"].get(LEAKING, 0)
    shown = f" Left out, as they show what a measured set shows: {leaking} ({out / 'leaks.json'})." if leaking else ""
    return Done(f"{rows} samples to train on: {origins}.{shown}", files, {"samples": rows, "leaking": leaking})


def validate(turn: Turn) -> Done:
    """The spec of this round's training, and its preflight: it refuses what is trained on and measured on."""
    return validated(turn, "train set", "train", "training spec")


def validated(turn: Turn, made: str, stem: str, output: str) -> Done:
    """Raises what preflight finds wrong."""
    asked = turn.place / f"{stem}.toml"
    runner.script("build_spec", "train", *train_words(turn, Path(str(turn.output(made))), asked))
    sets, platform = turn.settings.sets, turn.settings.where.platform
    found = [runner.script("preflight", "--spec", asked, "--platform", platform, "--kpi-root", sets.selection)]
    for folder in filter(None, (sets.kpi, sets.test)):
        found.append(runner.script("preflight", "--spec", asked, "--only", "leaks", "--kpi-root", folder))
    alike = sum(problem.code == NEAR for result in found for problem in result.problems)
    looks = f"; {alike} of its sets look alike in places, see leaks.json" if alike else ""
    return Done(f"Preflight has passed{looks}.", {output: asked}, {"warnings": alike})
