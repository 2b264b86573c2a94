"""Serve a model to OpenAI's clients: python scripts/serve.py --model RUN --port 8000"""

import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, number, run
from vidqa.core.run_folder import run_named


def choices(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        raise ArgumentTypeError(f"{text!r} is not a list of at least two different answers, such as yes,no")
    return names


parser = Parser(
    "Answer questions about videos and images over HTTP, for OpenAI's clients; by default only on this machine.",
    examples=[
        "python scripts/serve.py --model outputs/train/RUN --port 8000",
        "python scripts/serve.py --model FOLDER --host 0.0.0.0 --allow-path /data/videos",
    ],
)
add = parser.add_argument
add("--model", type=run_named, required=True, metavar="RUN", help="a run or job id (best export), an export, weights")
add("--which", help="export of a run: best, latest, step_N or epoch_N")
add("--set", action="append", default=[], metavar="KEY=VALUE", help="keys of references/parameters_inference.md")
add("--name", metavar="NAME", help="model name for clients; default: the last part of --model")
add("--host", default="127.0.0.1", metavar="ADDRESS", help="0.0.0.0 for all machines; needs VIDQA_API_KEY")
add("--port", type=number(int, 0, 65535), default=8000, metavar="P", help="default 8000; 0 is any free port")
add("--allow-path", action="append", default=[], metavar="DIR", help="folder that file:// URLs may read")
add("--allow-host", action="append", default=[], metavar="HOST", help="HOST or HOST:PORT that http(s):// URLs may name")
add("--choices", default=[], type=choices, metavar="A,B", help="answers for requests without a format, such as yes,no")
add("--queue", type=number(int, 1), default=64, metavar="N", help="maximum waiting requests (default 64)")
add("--max-body-mb", type=number(int, 1), default=100, metavar="N", help="maximum request size (default 100)")
add("--max-media-mb", type=number(int, 1), default=256, metavar="N", help="maximum file or download size (default 256)")


def main(options: Namespace) -> NoReturn:
    """Replace this process by the engine: signals reach it, and its output is the result."""
    from vidqa.serving.start import start

    start(options)


if __name__ == "__main__":
    sys.exit(run(parser, main))
