"""Studies whose trials take no time, for tests of what controls them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.platforms import stand_in
from vidqa.automl.controller import control
from vidqa.automl.history import History
from vidqa.automl.journal import read
from vidqa.automl.plan import PlanRequest, write
from vidqa.jobs.launch import unchecked

RATE = "train.optm_lr"


def install(set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let jobs run the stand-in of a training."""
    set_attribute(stand_in, "ENGINE", Path(__file__).with_name("stand_in_trial.py"))
    stand_in.install(set_attribute)


def write_study(
    folder: Path,
    *sets: str,
    manner: str = "well",
    fixed: tuple[str, ...] = (),
    algorithm: str = "random",
    max_trials: int = 4,
    max_concurrent: int = 2,
) -> Path:
    """A study of the learning rate alone, planned and not started."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model/config.json").write_text("{}")
    turns = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "this"}]
    records = [{"id": f"r{number}", "conversations": turns} for number in range(24)]
    (folder / "annotations.json").write_text(json.dumps(records))
    path = folder / "train.toml"
    path.write_text(
        f"""
        [policy]
        model_name_or_path = "{folder / "model"}"
        [custom.train_dataset]
        annotation_path = "{folder / "annotations.json"}"
        media_path = "{folder}"
        [engine]
        validation_generate = 4
        [logging]
        experiment_name = "{manner}"
        [validation]
        enable = true
        [train]
        optm_lr = 1e-5
        epoch = 4
        train_batch_per_replica = 4
        [train.train_policy.dataset]
        test_size = 0.5
        """
    )
    kept = (
        "train.train_batch_per_replica=4",
        "train.optm_weight_decay=0.0",
        "train.optm_decay_type=cosine",
        "train.epoch=4",
    )
    numbers = {"algorithm": algorithm, "trials": max_trials, "concurrent": max_concurrent}
    sets = ("finals.seeds=[]", *sets)
    asked = PlanRequest(
        path, range=(f"{RATE}=1e-6..1e-2:log",), fix=(*kept, "train.epoch=4", *fixed), set=sets, **numbers
    )
    write(folder / "study", asked)
    return folder / "study"


def carry_out(study: Path) -> History:
    return control(study, unchecked)


def history(study: Path) -> History:
    return read(study).history


def attempts(run_dir: Path) -> int:
    """How often the stand-in of a training has started in a run folder."""
    return len((run_dir / "attempts").read_text().splitlines())


def gpus_over_time(study: Path, found: History) -> list[Counter[str]]:
    """After each job that began or ended, how many there were on each GPU."""
    now, seen = Counter[str](), []
    for event in read(study).log.events:
        if event["event"] == "submitted":
            now.update(event["gpus"])
        elif event["event"] == "ended":
            now.subtract(found.work[event["work"]].gpus)
        else:
            continue
        seen.append(+now)
    return seen


def outcome(found: History) -> list[tuple]:
    """What may not depend on where and when the jobs ran."""
    return [(trial.number, trial.proposer, trial.values, trial.state, trial.measured) for trial in found.trials]


if __name__ == "__main__":  # a controller that tests may kill: python small_studies.py STUDY
    install()
    carry_out(Path(sys.argv[1]))
