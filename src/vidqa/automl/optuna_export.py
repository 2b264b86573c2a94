"""A study as a journal file of optuna, written once from ours: optuna-dashboard FOLDER/optuna.log

optuna's own file is for looking only. Whatever is written to it changes nothing here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vidqa.contract._optional import require
from vidqa.contract.files import remove
from vidqa.automl.history import Entry, History
from vidqa.automl.moves import State
from vidqa.automl.parameters import Parameter
from vidqa.automl.study import Study

EXTRA = "automl"
STATES: dict[State, str] = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}


def export(study: Study, history: History, path: Path) -> None:
    """Write the file anew. Trials that have not ended are left out."""
    optuna, journal = require("optuna", EXTRA), require("optuna.storages.journal", EXTRA)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    remove(path, owner=study.folder)
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))
    goals = study.settings.as_goals
    made = optuna.create_study(
        storage=storage, study_name=study.folder.name, directions=[goal.direction for goal in goals]
    )
    made.set_user_attr("goals", [goal.metric for goal in goals])
    made.add_trials([_trial(study, entry) for entry in history.trials if entry.state in STATES])


def _trial(study: Study, entry: Entry) -> Any:
    optuna = require("optuna", EXTRA)
    kind = optuna.trial.TrialState[STATES[entry.state]]
    known = [each for each in study.space.parameters if each.name in entry.values]
    return optuna.trial.create_trial(
        state=kind,
        values=entry.measured[-1].objectives if entry.state == "complete" else None,
        params={each.name: _value(each, entry.values[each.name]) for each in known},
        distributions={each.name: _distribution(each, entry.values[each.name]) for each in known},
        user_attrs={"number": entry.number, "proposer": entry.proposer, "why": entry.why, "repairs": entry.repairs},
        intermediate_values={measured.steps: measured.objectives[0] for measured in entry.measured},
    )


def _value(each: Parameter, value: Any) -> Any:
    return json.dumps(value) if each.options else value


def _distribution(each: Parameter, value: Any) -> Any:
    """A range, widened to the template's value where that lies outside: optuna refuses what it does not hold."""
    kinds = require("optuna.distributions", EXTRA)
    if each.options:
        return kinds.CategoricalDistribution(tuple(dict.fromkeys(map(json.dumps, (*each.options, value)))))
    assert each.low is not None and each.high is not None
    low, high = min(each.low, value), max(each.high, value)
    whole = isinstance(value, int) and each.kind == "int"
    return kinds.IntDistribution(low, high) if whole else kinds.FloatDistribution(low, high, log=each.log and low > 0)
