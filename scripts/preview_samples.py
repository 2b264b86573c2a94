"""Show samples as the model gets them: python scripts/preview_samples.py --spec train.toml --html preview.html"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, command, number, run

parser = Parser(
    "Show samples as the model gets them: rendered chat, planned frames, token counts, and trained text.",
    examples=[
        "python scripts/preview_samples.py --spec train.toml",
        "python scripts/preview_samples.py --spec train.toml --sample clip-1 clip-7 --html preview.html",
    ],
)
parser.add_argument("--spec", type=Path, required=True, help="TOML, YAML or JSON file (scripts/build_spec.py)")
parser.add_argument("--sample", nargs="+", default=[], metavar="ID", help="ids of samples to show")
parser.add_argument("--count", type=number(int, 1), default=3, help="else this many, spread over the set (default 3)")
parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the frames")


def main(options: argparse.Namespace) -> Result:
    from vidqa.core.problem import bounded, raise_errors
    from vidqa.datatools.preview import pick, preview_page, previews, terminal_text
    from vidqa.preflight.inputs import Inputs
    from vidqa.spec.layers import action_of

    inputs = Inputs(options.spec, action_of(options.spec), "local")
    sets = inputs.annotations if options.sample else inputs.annotations[:1]
    wrong = [problem for part in sets for problem in part.problems]
    records = [record for part in sets for record in part.records]
    if not records:
        raise_errors(wrong)
    rendered, problems = previews(inputs.planner, pick(records, options.sample, options.count))
    if inputs.bad_sample_severity == "warning":  # a job leaves them out, too
        problems = [replace(problem, severity="warning") for problem in problems]
    problems = bounded([*problems, *wrong])
    colour = sys.stdout.isatty() and not options.json
    data = {"samples": [preview.as_dict() for preview in rendered], "html": options.html}
    if options.html:
        from vidqa.datatools.outputs import write_page

        write_page(options.html, preview_page(f"Samples of {options.spec}", rendered, problems))
    result = Result(data, terminal_text(rendered, colour), problems, coloured=colour)
    result.next = [command("preflight", "--spec", options.spec, "--platform", "local")]
    return result


if __name__ == "__main__":
    sys.exit(run(parser, main))
