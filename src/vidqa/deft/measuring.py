"""The stages that measure: evaluations on the selection, KPI and test set, and the comparison of two."""

from __future__ import annotations

from vidqa.contract.files import write_json
from vidqa.deft import carrying_out
from vidqa.deft.problems import DEFT_GATE, DEFT_SETTING
from vidqa.deft.state import Cost, Fact
from vidqa.deft.tables import scores_of
from vidqa.deft.turn import EVALUATE_SPEC, Done, Turn, annotations_in, media_of
from vidqa.pages.page import percent
from vidqa.spec.parent_layers import model_layer


def evaluate(turn: Turn) -> Done:
    """The model of this round on the selection set; in round 0 what the loop starts with."""
    model = str(turn.fact("train", "run_dir")) if turn.number else turn.starting_model()
    return _evaluate(turn, model, turn.settings.sets.selection, "evaluate")


def kpi(turn: Turn) -> Done:
    """The accepted model on the KPI set: reported, and nothing else."""
    return _evaluate(turn, turn.accepted.model, str(turn.settings.sets.kpi), "kpi")


def test(turn: Turn) -> Done:
    """The accepted model on the test set, once."""
    return _evaluate(turn, turn.accepted.model, str(turn.settings.sets.test), "test")


def control_evaluate(turn: Turn) -> Done:
    """The model that was trained on random samples, on the selection set."""
    return _evaluate(turn, str(turn.fact("control train", "run_dir")), turn.settings.sets.selection, "control_evaluate")


def _evaluate(turn: Turn, model: str, folder: str, name: str) -> Done:
    asked = turn.place / f"{name}.toml"
    words = ["--override", turn.folder / EVALUATE_SPEC, *data_words(folder), "--results-dir", turn.runs, "--out", asked]
    carrying_out.script("build_spec", "evaluate", *model_words(model), *words)
    run, facts, cost = carrying_out.job("evaluate", asked, turn.settings.where)
    scores = scores_of(run)
    if scores.accuracy is None or scores.accuracy_ci95 is None:
        raise DEFT_GATE.error(folder, "none of its questions has an expected answer", "give the set answers")
    kind, kinds = turn.settings.stop.target_kind, scores.by_kind
    if name == "evaluate" and kind is not None and kind not in kinds:
        message = f"no question of {folder} is of the kind {kind!r}: the target could never be reached"
        raise DEFT_SETTING.error("stop.target_kind", message, f"name one of {', '.join(kinds)}: run_deft.py init again")
    low, high = scores.accuracy_ci95
    facts |= {"model": model, "accuracy": scores.accuracy, "ci_low": low, "ci_high": high, "n": scores.n}
    return Done(str(scores.headline), {_RESULTS[name]: run / "results.json"}, facts, cost)


_RESULTS = {
    "evaluate": "results",
    "kpi": "KPI results",
    "test": "test results",
    "control_evaluate": "control results",
}


def model_words(model: str) -> list[str]:
    """A run (its best export, also an adapter), a folder of weights, or a name of the hub, over what a recipe names."""
    keys = {"model.enable_lora": False, **model_layer("evaluate", model).table}
    return carrying_out.sets({key: value for key, value in keys.items() if key.startswith("model.")})


def data_words(folder: str, which: str = "") -> list[str]:
    """A set as an evaluation names it: its folder, or an annotation file with the media beside it. `which` begins the
    names of the keys of an embedding's second set."""
    keys = {"annotation_path": str(annotations_in(folder)), "media_dir": media_of(folder)}
    return carrying_out.sets({f"dataset.{which}{name}": value for name, value in keys.items()})


def compare(turn: Turn) -> Done:
    """This round's evaluation with that of the best model before it."""
    return _compare(turn, str(turn.fact("evaluate", "run_dir")), "comparison")


def control_compare(turn: Turn) -> Done:
    """What the chosen samples gained over as many random ones."""
    return _compare(turn, str(turn.fact("evaluate", "run_dir")), "control_comparison", before="control evaluate")


def _compare(turn: Turn, after: str, name: str, before: str = "") -> Done:
    first = str(turn.fact(before, "run_dir")) if before else turn.accepted.evaluation
    page, table = turn.place / f"{name}.html", turn.place / f"{name}.json"
    result = carrying_out.script("compare", first, after, "--html", page)
    found = {key: value for key, value in result.data.items() if key != "html"}
    write_json(table, found)
    whole = found["whole"]
    sentence = (
        f"{found['verdict']}: {percent(whole['before'])} -> {percent(whole['after'])}, "
        f"{whole['fixed']} fixed and {whole['broken']} broken of {whole['n']} questions (p = {whole['p_value']:.3g})"
    )
    facts: dict[str, Fact] = {"verdict": found["verdict"], "difference": whole["difference"], "p": whole["p_value"]}
    return Done(sentence, {name: table, f"{name} page": page}, facts, Cost())
