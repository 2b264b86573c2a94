"""Ask a model about videos: python scripts/infer.py --model RUN --video clip.mp4 --question "Is the door open?" """

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, run
from vidqa.core.run_folder import run_named

MOST = 200  # answers printed on the terminal; files have all
QUESTIONS = "text file with one question per line, for every --video; or a table (CSV, JSON) of videos and questions"
parser = Parser(
    "Ask a trained model about videos and images, without a spec and without annotations, on a GPU or a CPU.",
    examples=[
        'python scripts/infer.py --model outputs/train/RUN --video clip.mp4 --question "Is the door open?"',
        "python scripts/infer.py --model FOLDER --video clips/ --questions questions.txt --jsonl answers.jsonl",
        "python scripts/infer.py --model RUN --questions questions.csv --csv answers.csv",
        "python scripts/infer.py --model RUN --video long.mp4 --set inference.window_s=30 --set inference.overlap_s=5",
    ],
)
parser.add_argument(
    "--model",
    type=run_named,
    required=True,
    help="a run or job id (best export), an export, or a folder of weights",
)
parser.add_argument("--which", help="export of a run: best, latest, step_N or epoch_N")
parser.add_argument("--video", "--image", nargs="+", action="extend", default=[], metavar="FILE", help="or a folder")
parser.add_argument("--question", action="append", default=[], metavar="TEXT", help="may be repeated")
parser.add_argument("--questions", type=Path, metavar="FILE", help=QUESTIONS)
parser.add_argument("--prompt-file", type=Path, metavar="YAML", help="system_prompt, user_prompt, sampling_params")
parser.add_argument("--reasoning", action="store_true", help="ask the model to reason before it answers")
parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="see parameters_inference.md")
parser.add_argument("--jsonl", type=Path, metavar="FILE", help="write the answers as JSON lines")
parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table: file, question, answer, status, ...")
parser.add_argument("--out", type=Path, metavar="DIR", help="parent folder of the run; the same command resumes it")


def main(options: Namespace) -> Result:
    from vidqa.jobs.local_job import (
        Question,
        ask,
        is_table,
        lines_of,
        problems_of,
        require_table,
        shown,
        write_lines,
        write_table,
    )

    table = options.questions if options.questions and is_table(options.questions) else None
    if table and (options.video or options.question):
        parser.error("the rows of a table name their own videos and questions: leave --video and --question out")
    if not table and not options.video:
        parser.error("name at least one file or folder with --video or --image, or a table with --questions")
    if options.csv:
        require_table(options.csv)  # before the model runs
    questions = [*options.question, *(lines_of(options.questions) if options.questions and not table else [])]
    question = Question(
        options.model,
        tuple(options.video),
        tuple(questions),
        table=table,
        which=options.which,
        sets=tuple(options.set),
        out=options.out,
        prompt_file=options.prompt_file,
        reasoning=options.reasoning,
    )
    rows = ask(question)
    if options.jsonl:
        write_lines(options.jsonl, rows)
    if options.csv:
        write_table(options.csv, rows)
    written = [str(place) for place in (options.jsonl, options.csv, options.out) if place]
    data = {"answers": rows[:MOST], "count": len(rows), "kept_in": written}
    return Result(data, shown(rows[:MOST], len(rows), written), problems_of(rows))


if __name__ == "__main__":
    sys.exit(run(parser, main))
