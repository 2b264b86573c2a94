"""Starts a server; its spec is that of an inference without questions."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from vidqa.core import environment
from vidqa.core.cli import USAGE
from vidqa.jobs.local_job import ACTION, inference_job
from vidqa.jobs.platforms import local
from vidqa.serving._base import served_key
from vidqa.serving.media import Hosts
from vidqa.spec import Layer, parse_set
from vidqa.spec.parent_layers import model_layer

ENGINE = "vidqa.engine.serve"
# Number of the C library's memory arenas. With one per thread, a server grows for thousands of requests, by a third.
ARENAS = "MALLOC_ARENA_MAX"
# The reference generator admits no request while others are answered; and memory is reserved for the longest prompt.
OF_A_SERVER = {"inference.generator": "native", "model.max_length": 32_768}
NO_QUESTION = '{"id": "0", "question": "clients ask"}'


def start(options: Namespace) -> NoReturn:
    """Replace this process by the engine. Raises the problems of the options, the model or this machine."""
    served_key(options.host, environment.serving_key())
    _check(options)
    with TemporaryDirectory(prefix="vidqa-serve-") as folder:
        job = inference_job(serving_layers(options.model, options.which, options.set, Path(folder)), Path(folder))
        variables = local.render(job).environment
        if not environment.has(ARENAS):
            variables[ARENAS] = "2"
        arguments = {
            **vars(options),
            "name": options.name or name_of(options.model),
            "spec": job.spec.read_text("utf-8"),
        }
    words = [sys.executable, "-P", "-m", ENGINE, json.dumps(arguments), *(["--json"] if options.json else [])]
    os.execve(sys.executable, words, environment.child_environment(**variables))


def _check(options: Namespace) -> None:
    try:
        Hosts.parse(options.allow_host)
    except ValueError as wrong:
        raise USAGE.error("--allow-host", str(wrong), "write HOST or HOST:PORT") from wrong
    for folder in options.allow_path:
        if not os.path.isdir(folder):
            raise USAGE.error("--allow-path", f"there is no folder {folder}", "correct its name")


def serving_layers(model: str, which: str | None, sets: Sequence[str], folder: Path) -> list[Layer]:
    """The spec layers for a run (with its frames and system prompt) or a folder of weights, and the user's values on
    top. The required annotations are a file in `folder`. Raises the problems of the named model."""
    questions = folder / "questions.jsonl"
    questions.write_text(NO_QUESTION, encoding="utf-8")
    own = {**OF_A_SERVER, "dataset.annotation_path": str(questions), "results_dir": str(folder), "num_gpus": 1}
    return [Layer("serve.py", own), model_layer(ACTION, model, which), parse_set(sets)]


def name_of(model: str) -> str:
    """The model's name in the API: the last part of the user's name."""
    return Path(model.rstrip("/")).name or "model"
