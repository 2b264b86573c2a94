"""The conformance suite on a real SLURM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms.conformance import *  # noqa: F403
from tests.platforms.conformance import Rig
from tests.platforms.slurm_cluster import SlurmCluster
from vidqa.jobs.platforms._base import Rendered
from vidqa.jobs.platforms.processes import PROC, engine_processes, job_processes
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources

pytestmark = pytest.mark.slurm
# test_slurm_training.py has the same on two nodes, and one of them is lost on the way.
del test_a_real_training_is_cancelled_and_goes_on_as_if_it_had_not_been  # noqa: F821


@pytest.fixture
def rig(slurm: SlurmCluster) -> Rig:
    def number(record: JobRecord) -> str:
        return slurm.ask("squeue", "--noheader", "--states=all", f"--name=vidqa-{record.job_id}", "--format=%A")

    def remains(record: JobRecord) -> list[str]:
        queued = slurm.ask("squeue", "--noheader", f"--name=vidqa-{record.job_id}")
        return [*queued.splitlines(), *map(str, job_processes(record.job_id))]

    def shown(record: JobRecord) -> str:
        commands = [(PROC / str(process.pid) / "cmdline").read_text() for process in job_processes(record.job_id)]
        asked = ("show", "job", number(record), "--details"), ("write", "batch_script", number(record), "-")
        return "\n".join([*commands, *(slurm.ask("scontrol", *words) for words in asked)])

    def lose(record: JobRecord) -> None:
        slurm.forget(number(record))

    def ran(record: JobRecord, rendered: Rendered) -> None:
        assert (
            slurm.ask("scontrol", "write", "batch_script", number(record), "-") == rendered.files["job.sbatch"].strip()
        )
        (engine,) = engine_processes(record.job_id)
        words = (PROC / str(engine.pid) / "cmdline").read_text().split("\0")[:-1]
        assert " ".join(words) in rendered.files["node.sh"].replace("'", "")
        assert Path(record.run_dir, "node.sh").read_text() == rendered.files["node.sh"]

    return Rig("slurm", Resources(), remains, shown, lose, ran, limit_s=400)
