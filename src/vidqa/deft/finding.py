"""The stages that say what to look for: gaps of the accepted model, and labels that a person should look at first."""

from __future__ import annotations

from pathlib import Path

from vidqa.deft import runner
from vidqa.deft.context import AUDIT_ANSWERS, Done, Turn, annotations_in
from vidqa.deft.state import Fact
from vidqa.deft.tables import AuditQueue, read_table


def gaps(turn: Turn) -> Done:
    """What the accepted model gets wrong on the selection set, by slices; and whose labels are doubtful."""
    place, selection = turn.place, turn.settings.sets.selection
    files = {"gaps": place / "gaps.parquet", "slices": place / "slices.json", "audit queue": place / "audit.json"}
    words: list[object] = ["--results-dir", turn.accepted.evaluation, "--gaps-parquet", files["gaps"]]
    words += ["--kpi-ann-path", annotations_in(selection), "--kpi-media-path", selection]
    words += ["--slices", files["slices"], "--audit", files["audit queue"]]
    words += [word for run in _other_evaluations(turn) for word in ("--other-results", run)]
    if (embedded := turn.output("selection embeddings")) is not None:
        words += ["--embeddings", embedded]
    if (answers := turn.folder / AUDIT_ANSWERS).is_file():
        words += ["--audit-answers", answers]
    data = runner.script("analyze_gaps", *words, *turn.settings.words.get("gaps", [])).data
    count, types = data["gaps"], {name: count for name, count in data["by_error_type"].items() if count}
    facts: dict[str, Fact] = {"gaps": count, **types}
    sentence = f"{count} gaps among {data['results']} results: " + ", ".join(f"{n} {name}" for name, n in types.items())
    sentence += f". {data['slices_say']}"
    if count:
        return Done(sentence, files, facts)
    return Done("No gaps are left on the selection set: there is nothing to look for.", files, facts, stop="no gaps")


def _other_evaluations(turn: Turn) -> list[str]:
    """The evaluations of this selection set by other models of the loop: several models against a label say more than
    one."""
    runs = [str(each.stages["evaluate"].facts["run_dir"]) for each in turn.state.rounds if "evaluate" in each.stages]
    return [run for run in runs if run != turn.accepted.evaluation and (Path(run) / "results.json").is_file()]


def audit(turn: Turn) -> Done:
    """Ask a person about labels that are probably wrong: mining looks for what is like a gap, not like a mistake.

    Raises DEFT_TABLE."""
    queue = read_table(Path(str(turn.output("audit queue"))), AuditQueue)
    asked = [suspect for suspect in queue.items if suspect.probability >= turn.settings.audit_from]
    open_items = [suspect for suspect in asked if not suspect.verdict]
    facts: dict[str, Fact] = {"asked": len(asked), "open": len(open_items)}
    if not open_items:
        return Done(f"No suspected label error is open; {len(asked)} were answered.", {}, facts)
    if turn.settings.audit == "report":
        return Done(f"{len(open_items)} labels are suspected to be wrong; nobody was asked about them.", {}, facts)
    page = turn.place / "audit.html"
    sentence = (
        f"{len(open_items)} labels of the selection set are suspected to be wrong. A person has to look at {page}, "
        "answer, save, and give the saved file with --audit-answers."
    )
    return Done(sentence, {}, facts, stop="audit needed", waits=True)
