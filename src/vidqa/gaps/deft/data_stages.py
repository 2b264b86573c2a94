"""The stages up to the next training set: embeddings, gaps, audit, mined and altered samples, assembly, preflight.

Each stage imports its dependencies itself, so that `run_deft.py status` starts fast.
"""

from __future__ import annotations

from pathlib import Path

from vidqa import spec
from vidqa.core.files import remove
from vidqa.core.problem import ProblemError, raise_errors
from vidqa.core.run_folder import EMBEDDINGS, QUERY_EMBEDDINGS
from vidqa.gaps.deft import runner
from vidqa.gaps.deft.acceptance import AuditQueue, read_table
from vidqa.gaps.deft.context import (
    AUDIT_ANSWERS,
    EVALUATE_SPEC,
    LABELS,
    TRAIN_SPEC,
    StageContext,
    StageResult,
    annotations_in,
    is_labelled,
    media_of,
)
from vidqa.gaps.deft.runner import Request
from vidqa.gaps.deft.state import Cost, Fact
from vidqa.spec.parent_layers import evaluated_model
from vidqa.spec.run_lookup import find_export

NOTHING = "CURATION_NOTHING_NEW"  # the code for the lack of new samples
NO_ROWS = ("DATA_EMPTY", "DATA_FILE_MISSING")  # of a folder that exists
LEAKING = "leaking"  # the reason of an assembly for dropping a row
NEAR = "DATA_SPLIT_NEAR"  # preflight's warning of similar files


def embed(context: StageContext) -> StageResult:
    """Embed pool and selection set with the starting model, in one job. Later rounds find it completed."""
    pool, selection = context.settings.sets.pool, context.settings.sets.selection
    recipe = spec.keys.flat(spec.load(context.folder / EVALUATE_SPEC, "evaluate"))
    view = {  # a clip is embedded from the frames that the model gets
        key: value
        for key, value in recipe.items()
        if value is not None and (key in ("model.dtype", "num_gpus") or key.startswith("vision."))
    }
    keys = {**evaluated_model(context.starting_model()), **data_keys(pool), **data_keys(selection, "query_"), **view}
    request = Request("embed", results_dir=str(context.runs), sets=runner.settings_words(keys))
    recipe_path = runner.write_recipe(request, context.folder / "embed.toml")
    try:
        run, _, cost = runner.job("embed", recipe_path, context.settings.where)
    except ProblemError as error:
        first = error.problems[0]
        if first.code not in NO_ROWS or first.where != str(annotations_in(pool)) or not Path(pool).exists():
            raise
        sentence = f"No new samples: the pool is empty. {first.message}: {first.where}."
        return StageResult(sentence, stop="no new samples")
    outputs = {"pool embeddings": run / EMBEDDINGS, "selection embeddings": run / QUERY_EMBEDDINGS}
    embedded = {earlier.output("pool embeddings") for earlier in context.state.rounds[: context.number]}
    once = Cost() if run / EMBEDDINGS in embedded else cost  # an earlier round has counted it
    return StageResult("The pool and the selection set are embedded.", outputs, {}, once)


def data_keys(folder: str, which: str = "") -> dict[str, object]:
    """Spec keys of a set: a folder, or an annotation file beside its media. `which` is the key prefix of an embedding's
    second set."""
    return {
        f"dataset.{which}annotation_path": str(annotations_in(folder)),
        f"dataset.{which}media_dir": media_of(folder),
    }


def gaps(context: StageContext) -> StageResult:
    """Find the accepted model's errors on the selection set, by slices, and doubtful labels."""
    from vidqa.gaps.analysis.report import GapAnalysis, find_gaps

    place, selection = context.place, context.settings.sets.selection
    files = {"gaps": place / "gaps.parquet", "slices": place / "slices.json", "audit queue": place / "audit.json"}
    answers = context.folder / AUDIT_ANSWERS
    options = {
        "results-dir": context.accepted.evaluation,
        "gaps-parquet": files["gaps"],
        "kpi-ann-path": annotations_in(selection),
        "kpi-media-path": selection,
        "slices": files["slices"],
        "audit": files["audit queue"],
        "other-results": _other_evaluations(context),
        "embeddings": context.output("selection embeddings"),
        "audit-answers": answers if answers.is_file() else None,
    }
    fields = runner.announced_options("analyze_gaps", options, context.settings.words.get("gaps", []))
    data = find_gaps(GapAnalysis(**fields)).data
    count, types = data["gaps"], {name: count for name, count in data["by_error_type"].items() if count}
    facts: dict[str, Fact] = {"gaps": count}
    by_type = ", ".join(f"{n} {name}" for name, n in types.items())
    sentence = f"{count} gaps among {data['results']} results: {by_type}. {data['slices_say']}"
    if count:
        return StageResult(sentence, files, facts)
    sentence = "No gaps are left on the selection set: there is nothing to look for."
    return StageResult(sentence, files, facts, stop="no gaps")


def _other_evaluations(context: StageContext) -> list[Path]:
    """Evaluations of the selection set by other models of the loop: several models are stronger evidence."""
    rounds = [earlier.stages["evaluate"] for earlier in context.state.rounds if "evaluate" in earlier.stages]
    runs = [str(stage.facts["run_dir"]) for stage in rounds]
    return [Path(run) for run in runs if run != context.accepted.evaluation and (Path(run) / "results.json").is_file()]


def audit(context: StageContext) -> StageResult:
    """Ask a person about suspected label errors: mining should search for gaps, not for annotation errors. Raises
    DEFT_GATE."""
    queue = read_table(context.require("audit queue"), AuditQueue)
    suspects = [suspect for suspect in queue.items if suspect.probability >= context.settings.audit_from]
    open_items = [suspect for suspect in suspects if not suspect.verdict]
    if not open_items:
        answered = f"; {len(suspects)} such labels were answered" if suspects else ""
        sentence = f"No label is wrong with a probability of {context.settings.audit_from:g} or more{answered}."
        return StageResult(sentence)
    if context.settings.audit == "report":
        sentence = f"{len(open_items)} labels are suspected to be wrong, and were not reviewed (audit = report)."
        return StageResult(sentence)
    sentence = (
        f"{len(open_items)} labels of the selection set are suspected to be wrong. A person has to look at "
        f"{context.place / 'audit.html'}, answer, save, and give the saved file with --audit-answers."
    )
    return StageResult(sentence, stop="audit needed", waits=True)


def mine_pool(context: StageContext) -> StageResult:
    """Mine samples of the pool that are similar to the gaps and were not tried in an earlier round."""
    from vidqa.gaps.curation.mining import Mining, mine

    folder, pool = _empty(context.place / "mined"), context.settings.sets.pool
    options: dict[str, object] = {
        "gaps": context.require("gaps"),
        "pool": context.require("pool embeddings"),
        "query": context.require("selection embeddings"),
        "out": folder,
        "round": context.number,
        "tried": _mined_tables(context),
    }
    if is_labelled(pool):
        options |= {"pool-annotations": annotations_in(pool), "pool-media": media_of(pool)}
    fields = runner.announced_options("mine_samples", options, context.settings.words.get("mine", []))
    try:
        mined = mine(Mining(**fields))
    except ProblemError as error:
        message = _nothing(error)
        sentence = f"No new samples: the pool holds none that is like the gaps. {message}."
        return StageResult(sentence, {}, {"samples": 0}, stop="no new samples")
    outputs = {"mined table": folder / "mined.parquet"}
    if context.settings.control and (control := folder / "control.json").is_file():
        outputs["random"] = control
    count, unanswered, tasks = len(mined.annotations), len(mined.tasks), folder / "tasks.json"
    if not count:
        sentence = f"{unanswered} samples of the pool were mined. They have no answers."
        return StageResult(sentence, {**outputs, "tasks": tasks}, {"samples": 0, "to label": unanswered})
    others = f" {unanswered} others have no answer and are left out ({tasks})." if unanswered else ""
    outputs |= {"mined": folder / "mined.json"}
    return StageResult(f"{count} samples were mined.{others}", outputs, {"samples": count})


def _nothing(error: ProblemError) -> str:
    """The message of a NOTHING problem; raises any other problem."""
    if error.problems[0].code != NOTHING:
        raise error
    return error.problems[0].message


def _mined_tables(context: StageContext) -> list[Path]:
    """The tables of earlier rounds, accepted or not."""
    rounds = context.state.rounds[: context.number]
    outputs = [earlier.stages["mine"].outputs for earlier in rounds if "mine" in earlier.stages]
    return [Path(files["mined table"].path) for files in outputs if "mined table" in files]


def label(context: StageContext) -> StageResult:
    """Import a person's answers to mined samples without answers; the loop waits for them. Raises CURATION_INPUT."""
    from vidqa.datatools.outputs import json_list, write_new
    from vidqa.gaps.curation.labels import labelled

    tasks, answers, out = context.output("tasks"), context.place / LABELS, context.place / "labelled.json"
    if tasks is None:
        return StageResult("All mined samples have answers.")
    ask = f"A person has to answer {tasks.with_name('annotate.html')}, save, and give the saved file with --labels."
    count = context.fact("mine", "to label")
    if not answers.is_file():
        sentence = f"Samples that were mined without answers: {count}. {ask}"
        return StageResult(sentence, stop="labels needed", waits=True)
    remove(out, owner=context.place)
    runner.announce("label_samples", "--tasks", tasks, "--labels", answers, "--out", out)
    rows, _ = labelled(tasks, answers)
    write_new({out: json_list(rows)})
    if not rows:
        sentence = f"None of the {count} samples is answered in {answers}. {ask}"
        return StageResult(sentence, stop="labels needed", waits=True)
    sentence = f"{len(rows)} of {count} mined samples were answered by a person."
    return StageResult(sentence, {"mined": out}, {"samples": len(rows)})


def augment_mined(context: StageContext) -> StageResult:
    """Write label-preserving variants of the mined samples."""
    from vidqa.gaps.curation.augmentation import ANNOTATIONS, GENERATED, Augmentation, augment

    folder = _empty(context.place / "augmented")
    options = {"annotations": context.require("mined"), "out": folder, "round": context.number}
    fields = runner.announced_options("augment_samples", options, context.settings.words.get("augment", []))
    rows, problems = augment(Augmentation(**fields))
    sentence = f"{len(rows)} altered copies were made."
    if problems:
        sentence += f" {len(problems)} clips have none, such as {problems[0].where}: {problems[0].message}."
    path = folder / (GENERATED if fields["generator"] else ANNOTATIONS)
    return StageResult(sentence, {"augmented": path}, {"samples": len(rows)})


def _empty(folder: Path) -> Path:
    """A folder of the loop, cleared of the files of a killed stage."""
    remove(folder, owner=folder.parent)
    return folder


def assemble_set(context: StageContext, inputs: tuple[str, ...], folder: str, output: str) -> StageResult:
    """Add the samples of `inputs` to the set of the accepted model. Samples that leak are dropped and counted; the loop
    ends if none is left."""
    from vidqa.gaps.curation.assembly import Assembly, assemble

    base, media = context.base_set()
    sets, out = context.settings.sets, _empty(context.place / folder)
    options = {
        "base": base,
        "base-media": media,
        "add": [path for name in inputs if (path := context.output(name))],
        "out": out,
        "round": context.number,
        "validation": _protected(sets.selection),
        "kpi": _protected(sets.kpi),
        "test": _protected(sets.test),
    }
    fields = runner.announced_options("assemble_dataset", options, context.settings.words.get("assemble", []))
    try:
        counts = assemble(Assembly(**fields)).as_dict()
    except ProblemError as error:
        return StageResult(f"No new samples: {_nothing(error)}.", {}, {"samples": 0}, stop="no new samples")
    rows, origins = counts["rows"], ", ".join(f"{count} {origin}" for origin, count in counts["by_origin"].items())
    left_out = ", ".join(f"{count} {reason}" for reason, count in counts["left_out"].items())
    facts: dict[str, Fact] = {"samples": rows, "leaking": counts["left_out"].get(LEAKING, 0)}
    sentence = f"{rows} samples to train on: {origins}.{f' Left out: {left_out}.' if left_out else ''}"
    return StageResult(sentence, {output: out / "annotations.json"}, facts)


def _protected(folder: str | None) -> tuple[str, ...]:
    return (str(annotations_in(folder)), folder) if folder else ()


def validate(context: StageContext, train_set: str, stem: str, output: str) -> StageResult:
    """Write the spec of a training on `train_set` and check it, also for leaks. Raises preflight's problems."""
    from vidqa.preflight.report import preflight

    annotations = context.require(train_set)
    keys = {
        "custom.train_dataset.annotation_path": str(annotations),
        "custom.train_dataset.media_path": str(annotations.parent),
        "train.resume": False,
    }
    request = Request(
        "train",
        overrides=(context.folder / TRAIN_SPEC,),
        results_dir=str(context.runs),
        model=_weights(context.accepted.model) if context.settings.continue_from == "last" else None,
        sets=(*runner.settings_words(keys), *context.settings.train),
    )
    path = runner.write_recipe(request, context.place / f"{stem}.toml")
    sets, platform = context.settings.sets, context.settings.where.platform
    checks: list[tuple[str, str | None, str]] = [(platform, None, sets.selection)]
    checks += [("local", "leaks", folder) for folder in (sets.kpi, sets.test) if folder]
    alike: dict[str, None] = {}
    for where, group, folder in checks:
        only = ("--only", group) if group else ("--platform", where)
        runner.announce("preflight", "--spec", path, *only, "--kpi-root", folder)
        problems = preflight(path, where, group=group, kpi_root=Path(folder)).problems
        raise_errors(problems)
        alike |= {p.where.replace("kpi", Path(folder).name): None for p in problems if p.code == NEAR}
    shown = f"; some clips look alike in {'; in '.join(alike)}" if alike else ""
    return StageResult(f"Preflight has passed{shown}.", {output: path}, {"warnings": len(alike)})


def _weights(model: str) -> str:
    """The folder of weights, or of an adapter, for the start of a training."""
    if not (Path(model) / "safetensors").is_dir():
        return model
    return str(find_export(model))
