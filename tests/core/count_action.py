"""An action as a package beside vidqa brings it: counts the tokens of an annotation file."""

from pathlib import Path

from vidqa.core.actions import Action, DataSet, ModelKey, Resuming
from vidqa.core.files import read_object, write_json
from vidqa.core.problem import Exit
from vidqa.core.run_folder import RunFolder
from vidqa.data import load_records
from vidqa.families.chat import load_chat
from vidqa.spec._field import Positive, Table, key, table
from vidqa.spec.models import Spec


class Counted(Table):
    annotation_path: str = key("", "Annotations", "JSON or JSONL file with the records.")
    media_dir: str = key("", "Media", "Folder that the annotations' file names are relative to.")


class CountSpec(Spec):
    """Counting the tokens of an annotation file."""

    count: Counted = table(Counted, "Data", "What is counted.")
    tokenizer: str = key("", "Tokenizer", "The model whose tokenizer counts.")
    results_dir: str = key("counts", "Results folder", "Folder in which the run makes its own folder.")
    at_once: Positive = key(1000, "At once", "Records after which a run stops, to be continued.")
    go_on: bool = key(False, "Continue", "Keep what an earlier, stopped run has already counted.")


def count(spec: CountSpec, run: RunFolder) -> int:
    """Carry out a CountSpec in `run`. Returns 0, or 6 where records are left."""
    path = run.path / "counts.json"
    counts = read_object(path) if spec.go_on else {}
    records = load_records(spec.count.annotation_path, spec.count.media_dir, need_answers=False)
    left = [record for record in records if record.id not in counts]
    now = left[: spec.at_once]
    outlines = load_chat(Path(spec.tokenizer)).outlines(now)
    counts |= {record.id: outline.tokens for record, outline in zip(now, outlines, strict=True)}
    write_json(path, counts)
    print(f"counted {len(now)} records", flush=True)
    run.write_status("RUNNING", step=len(counts), total_steps=len(records))
    return Exit.OK if len(now) == len(left) else Exit.NOT_DONE


COUNT = Action(
    name="count",
    spec=CountSpec,
    tables=("count", "tokenizer"),
    output_key="results_dir",
    models=(ModelKey("tokenizer"),),
    data=(DataSet("counted", "count.annotation_path", "count.media_dir", root="eval"),),
    shorthand={"n": "at_once"},
    resuming=Resuming("go_on", must_exist=True),
    needs_answers=False,
    checks="count_checks:CHECKS",
    outcome="count_checks:outcome",
    program="count_action:count",
)
