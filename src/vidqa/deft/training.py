"""The stages that train: the round's model, by one training or by a study; and the control's, by one training."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vidqa.contract.cli import note
from vidqa.deft import runner
from vidqa.deft.adding import assembled, validated
from vidqa.deft.context import Done, Turn, fingerprint
from vidqa.deft.problems import DEFT_GATE
from vidqa.deft.state import Cost


def train(turn: Turn) -> Done:
    """The round's training; where the loop was asked to search, the best training of a study around it."""
    return _searched(turn) if turn.settings.study else _trained(turn, "training spec")


def _trained(turn: Turn, asked: str) -> Done:
    run, facts, cost = runner.job("train", Path(str(turn.output(asked))), turn.settings.where)
    return Done(f"Trained: {run}", {}, facts, cost)


def _searched(turn: Turn) -> Done:
    """A study in the round's folder; one that was interrupted goes on. Raises DEFT_GATE where it has no winner."""
    from vidqa.studies import starting
    from vidqa.studies.journal import controller_of
    from vidqa.studies.study import history_of

    asked = Path(str(turn.output("training spec")))
    of = f"{fingerprint(asked)} {fingerprint(turn.output('train set'))}"
    folder = turn.place / f"study-{hashlib.sha256(of.encode()).hexdigest()[:8]}"
    if controller_of(folder):
        starting.follow(folder, None, note)
    if not (folder / "study.toml").is_file() or not history_of(folder)[0].created:
        words = [*_place(turn), *turn.settings.study]
        runner.script("run_automl", "plan", "--study", folder, "--spec", asked, *words)
    if not history_of(folder)[0].finished:
        runner.script("run_automl", "start", "--study", folder, "--wait")
    history = history_of(folder)[0]
    if not history.finished or history.winner is None:
        raise DEFT_GATE.error(folder, f"the study has no winner: {history.stopped or 'all of its trials have failed'}")
    runner.script("run_automl", "report", "--study", folder)
    best, cost = history.trials[history.winner], Cost(seconds=history.seconds, gpu_seconds=history.gpu_seconds)
    run = best.metrics["train_run"]
    sentence = f"Trained: {run}, trial {best.number} of {len(history.trials)} of the study in {folder}"
    return Done(sentence, {}, {"run_dir": run, "study": str(folder)}, cost)


def _place(turn: Turn) -> list[str]:
    """Where the trials run, as a study is told."""
    given = turn.settings.where.model_dump(exclude={"platform"}, exclude_defaults=True)
    sets = {"platform": turn.settings.where.platform, **{f"resources.{key}": each for key, each in given.items()}}
    return runner.sets(sets)


def control_assemble(turn: Turn) -> Done:
    """As many random samples of the pool as were mined, in place of these."""
    return assembled(turn, [Path(str(turn.output("random")))], "control_set", "control set")


def control_validate(turn: Turn) -> Done:
    """The spec of the control's training, and its preflight."""
    return validated(turn, "control set", "control_train", "control training spec")


def control_train(turn: Turn) -> Done:
    """The control's training."""
    return _trained(turn, "control training spec")
