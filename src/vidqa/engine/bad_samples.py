"""Samples that fail while the engine runs: reported once, and known on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from vidqa.core.cli import note
from vidqa.core.problem import Exit, Problem, ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.distributed import World
from vidqa.engine.problems import ENGINE_BAD_SAMPLE
from vidqa.video.problems import VIDEO_DECODE_TIMEOUT


class BadSamples:
    """Every rank calls `report` at the same places. With on_bad_sample "fail" it ends the run on all of them; with
    "quarantine" the samples are left out and named in the log and in quarantine.json. A problem of the machine ends the
    run either way, under its own code; so does a decode timeout where ranks share a pack, since the other ranks may
    have learned from that video."""

    def __init__(self, run: RunFolder, world: World, on_bad_sample: str) -> None:
        self.run, self.world, self.fails = run, world, on_bad_sample == "fail"
        self.reported: dict[Problem, None] = {}

    def report(self, own: Sequence[Problem]) -> None:
        """Gather this rank's problems with the others'. Raises ENGINE_BAD_SAMPLE, MEDIA_DECODER_KILLED."""
        everyone = [problem for problems in self.world.gather(list(own)) for problem in problems]
        new = [problem for problem in dict.fromkeys(everyone) if problem not in self.reported]
        met_alone = self.world.context.size > 1 and any(problem.code == VIDEO_DECODE_TIMEOUT.name for problem in new)
        end_if_bad(new, fails=self.fails or met_alone)
        self.reported.update(dict.fromkeys(new))
        if new and self.world.is_main:
            for problem in new:
                note(f"left out: {problem.code} at {problem.where}: {problem.message}")
            self.run.write_quarantine(list(self.reported))


def end_if_bad(problems: Sequence[Problem], *, fails: bool) -> None:
    """Raises problems of the machine as they are; if a bad sample `fails` the run, the others as ENGINE_BAD_SAMPLE."""
    outside = [problem for problem in problems if problem.exit_code != Exit.INPUT]
    if outside:
        raise ProblemError(outside)
    if fails and problems:
        raise ProblemError(ENGINE_BAD_SAMPLE.at(p.where, f"{p.code}: {p.message}", p.remedy) for p in problems)
