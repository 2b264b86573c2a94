"""What the table of actions says in files that are written by hand: the parts of them that are generated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from vidqa.actions import COMING, every
from vidqa.actions._base import Action


def in_config(text: str) -> str:
    """config.json, the contract for programs, with the table of actions in it."""
    table = {each.name: _entry(each) for each in every()}
    table |= {name: {"implemented": False, "automl": False} for name in COMING}
    made = json.dumps({"actions": table}, indent=2)[len("{\n") : -len("\n}")]
    return re.sub(r'^  "actions": \{.*?^  \}', lambda _: made, text, flags=re.MULTILINE | re.DOTALL)


def _entry(action: Action) -> dict[str, Any]:
    name, place = action.name, "--spec SPEC --platform local --json"
    commands = {
        "build_spec": " ".join(
            ["python scripts/build_spec.py", name, *filter(None, [action.built_from]), "--out SPEC --json"]
        ),
        "preflight": f"python scripts/preflight.py {place}",
        "launch": f"python scripts/launch.py {name} {place}",
    }
    if action.is_searched:
        commands = {"route": "python scripts/route_train.py --automl-policy auto --json", **commands}
    return {
        "implemented": True,
        "automl": action.is_searched,
        "schema": f"schemas/{name}.schema.json",
        "template": f"references/spec_template_{name}.yaml",
        "parameters": f"references/parameters_{name}.md",
        "commands": commands,
        "dataset_keys": {key: data.needed for data in action.data for key in (data.annotations, data.media)},
        "model_key": action.models[0].name if action.models else None,
        "results_key": action.output_key,
        "resume_key": action.resuming.key if action.resuming else None,
    }


def in_info(text: str) -> str:
    """references/skill_info.yaml, with where each action starts and what its spec may hold."""
    lines = [
        f"  {each.name}:\n    entry: scripts/launch.py {each.name}\n    spec: schemas/{each.name}.schema.json\n"
        for each in every()
    ]
    return re.sub(r"^actions:.*\n(?: +.*\n)+", lambda _: f"actions:\n{''.join(lines)}", text, flags=re.MULTILINE)


def in_skill(text: str) -> str:
    """SKILL.md, with a row that names the pages of keys."""
    pages = ", ".join(f"`references/parameters_{each.name}.md`" for each in every())
    return re.sub(r"^\| `references/parameters_.*?\|", lambda _: f"| {pages} |", text, flags=re.MULTILINE)


# The files by their path, with what writes the generated part of each into its text.
PARTS: dict[str, Callable[[str], str]] = {
    "config.json": in_config,
    "references/skill_info.yaml": in_info,
    "SKILL.md": in_skill,
}
