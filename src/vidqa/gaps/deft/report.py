"""The loop's report: report.json for programs, report.html with the curve over rounds, slices, frames and cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidqa.core.files import write_json, write_text
from vidqa.core.pages.chart import Line, Mark, draw
from vidqa.core.pages.page import page
from vidqa.data.load import fast_row
from vidqa.evaluation.pages import points
from vidqa.evaluation.results import read_results
from vidqa.evaluation.thumbnails import card_frames
from vidqa.gaps.deft.acceptance import Annotations, ComparisonTable, KindScores, read_table, scores_of
from vidqa.gaps.deft.state import LoopState, RoundState

if TYPE_CHECKING:
    from vidqa.gaps.deft.loop import Loop

SCHEMA = "vidqa.deft_report.v1"
CARDS = 12  # samples of each kind and round with frames
FRAMES = 4
SHOWN = 600  # most characters of one text
ADDING = ("mine", "label", "augment")  # stages that add samples
ADDED = {"mined": "added from the pool", "augmented": "added as altered copies"}
CHANGED = {"fixed": "incorrect before, correct after", "broken": "correct before, incorrect after"}
Row = dict[str, Any]


def write_report(loop: Loop) -> Path:
    """Write both files; returns the path of the page."""
    table = report_of(loop.state)
    write_json(loop.folder / "report.json", table)
    place = loop.folder / "report.html"
    rounds = loop.state.rounds
    html = page(
        "gaps/deft/report.html.j2",
        title=f"DEFT: {loop.folder.name}",
        filters={"points": points},
        table=table,
        curve=_curve(table["rounds"]),
        pictures=[(current.number, _pictures(current)) for current in reversed(rounds) if current.number],
    )
    write_text(place, html)
    return place


def report_of(state: LoopState) -> dict[str, Any]:
    """The content of report.json."""
    rounds = [_round(current) for current in state.rounds]
    kinds = sorted({kind for current in rounds for kind in current["by_kind"]})
    best = state.accepted
    return {
        "schema": SCHEMA,
        "ending": state.ending.model_dump() if state.ending else None,
        "accepted": {**best.model_dump(), "accuracy": rounds[best.round]["accuracy"]} if best else None,
        "rounds": rounds,
        "kinds": kinds,
        "final": {name: _measured(stage.facts) for name, stage in state.closed.items()},
        "hours": round(state.hours, 4),
        "settings": state.settings.model_dump(),
    }


def _measured(facts: Row) -> Row:
    """Accuracy, interval and run of an evaluation, and scores by kind: by the present answer rules, for all rounds."""
    scores = scores_of(facts["run_dir"])
    low, high = scores.accuracy_ci95 or (None, None)
    by_kind = {kind: row.model_dump(include=set(KindScores.model_fields)) for kind, row in scores.by_kind.items()}
    measured = {"accuracy": scores.accuracy, "ci_low": low, "ci_high": high, "n": scores.n}
    return {**measured, "run_dir": facts["run_dir"], "by_kind": by_kind}


def _round(current: RoundState) -> Row:
    stages = current.stages
    facts: dict[str, Row] = defaultdict(dict, {name: dict(stage.facts) for name, stage in stages.items()})
    measured = _measured(facts["evaluate"]) if "evaluate" in stages else {}
    control = _comparison(current, "control_comparison")
    cost = [stage.cost.gpu_seconds or stage.cost.seconds for stage in stages.values()]
    return {
        "round": current.number,
        "accepted": current.accepted,
        "why": current.why,
        "by_kind": {},
        **measured,
        "kpi": _measured(facts["kpi"]) if "kpi" in stages else None,
        "gaps": facts["gaps"].get("gaps"),
        "added": {name: facts[name]["samples"] for name in ADDING if "samples" in facts[name]},
        "train_samples": facts["assemble"].get("samples"),
        "comparison": _comparison(current, "comparison"),
        "control": {**_measured(facts["control evaluate"]), "comparison": control} if control else None,
        "hours": round(sum(cost) / 3600, 4),
        "stages": [{"name": name, "sentence": stage.sentence} for name, stage in stages.items()],
    }


def _comparison(current: RoundState, name: str) -> Row | None:
    path = current.output(name)
    if path is None or not path.is_file():
        return None
    return read_table(path, ComparisonTable).model_dump(include={"verdict", "whole", "slices", "samples"})


def _curve(rounds: Sequence[Row]) -> Any:
    """Accuracy on the selection set by round, with its interval; also of the KPI set and the control, if they exist."""
    measured = [row for row in rounds if row.get("accuracy") is not None]
    kpi = [(row["round"], 100 * row["kpi"]["accuracy"]) for row in rounds if row["kpi"]]
    control = [(row["round"], 100 * row["control"]["accuracy"]) for row in rounds if row["control"]]
    lines = [
        Line("selection set", [(row["round"], 100 * row["accuracy"]) for row in measured], "one", dots=True),
        Line("KPI set", kpi, "two", dots=True),
        Line("random control", control, "three", dots=True),
        Line("95 % interval", [(row["round"], 100 * row["ci_low"]) for row in measured], "pale"),
        Line("95 % interval", [(row["round"], 100 * row["ci_high"]) for row in measured], "pale"),
    ]
    rolled_back = [Mark(row["round"], row["why"], "rolled back", "warn") for row in measured if not row["accepted"]]
    return draw("Accuracy, %", lines, marks=rolled_back, x_name="round", note="Round 0: the initial model.")


def _pictures(current: RoundState) -> list[tuple[str, list[Row]]]:
    """Headings with the cards of samples that a round added, fixed and broke."""
    shown = []
    for name, heading in ADDED.items():
        if (place := current.output(name)) and place.is_file():
            rows = read_table(place, Annotations).root
            shown.append((_heading(heading, len(rows)), [_added(place, row) for row in rows[:CARDS]]))
    compared, results = _comparison(current, "comparison"), current.output("results")
    if compared and results:
        items = {item["sample_id"]: item for item in read_results(results)}
        for name, heading in CHANGED.items():
            ids = [sample for sample in compared["samples"][name] if sample in items]
            cards = [_card(items[sample]["video_id"], items[sample]) for sample in ids[:CARDS]]
            shown.append((_heading(heading, len(ids)), cards))
    return shown


def _heading(what: str, count: int) -> str:
    return f"{count} questions {what}" + (f"; {CARDS} of them" if count > CARDS else "")


def _added(place: Path, row: Row) -> Row:
    fields = fast_row(row)
    item = {"question": fields.question, "gt": fields.answer, "kind": fields.kind, "sample_id": row.get("id")}
    return _card(str(place.parent / str(fields.medium)), item)


def _card(video: str, item: Row) -> Row:
    texts = {name: str(item.get(name) or "")[:SHOWN] for name in ("sample_id", "kind", "question", "gt", "response")}
    return {**texts, **card_frames(video, FRAMES)}
