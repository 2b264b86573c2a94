"""Writes every completion of a run into its folder; see `contract.rollouts`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from vidqa.core.files import replacing
from vidqa.core.run_folder import rank_of, read_rollouts, rollout_file, rollout_files
from vidqa.engine.rl.rollout import Group
from vidqa.engine.rl.update import advantages
from vidqa.planning.samples import Sample

CODEC = pa.Codec("zstd")
SHOWN = 4  # frames of a question that its page shows, over all of its media


class RolloutRecord:
    """Appends the groups of each step. A resumed run cuts off what is behind its checkpoint."""

    def __init__(self, folder: Path, rank: int, step: int, ranks: int) -> None:
        """`step` steps are done; lines of later ones are dropped, also from the files of ranks that there are no more:
        each rank looks after its own file and after every `ranks`th one behind it."""
        self.path = rollout_file(folder, rank)
        for path in rollout_files(folder):
            if rank_of(path) % ranks == rank:
                cut_off(path, step)

    def write(self, step: int, groups: Sequence[Group], dropped: Sequence[Group], *, divided: bool) -> None:
        """Of the step that is done as the `step`th: groups that it learned from, and those that dapo dropped."""
        lines = []
        for place, group in enumerate([*groups, *dropped]):
            shares = advantages(group.rewards, divided=divided)
            for number, (drawn, advantage) in enumerate(zip(group.drawn, shares, strict=True)):
                lines.append(
                    {
                        "step": step,
                        "slot": group.question.slot,
                        "id": group.question.sample.record.id,
                        "question": group.question.sample.record.question,
                        "answer": group.question.sample.record.answer,
                        "media": _media(group.question.sample),
                        "completion": number,
                        "token_ids": list(drawn.token_ids),
                        "logprobs": [float(str(value)) for value in drawn.logprobs],
                        "finish_reason": drawn.completion.finish_reason,
                        "text": drawn.completion.text,
                        "reward": drawn.reward.total,
                        "parts": dict(drawn.reward.parts),
                        "advantage": float(advantage),
                        "dropped": place >= len(groups),
                    }
                )
        if lines:
            with self.path.open("ab") as file:
                file.write(frame_of(lines))


def frame_of(lines: Sequence[dict[str, Any]]) -> bytes:
    """The compressed frame of a step."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    return CODEC.compress(text, asbytes=True)


def cut_off(path: Path, step: int) -> None:
    """Drop what a file holds of steps later than `step`: the file is then what it was after that step, byte by byte."""
    steps = groupby((line for line in read_rollouts(path) if line["step"] <= step), key=lambda line: line["step"])
    with replacing(path) as shortened, shortened.open("wb") as file:
        file.writelines(frame_of(list(lines)) for _, lines in steps)


def _media(sample: Sample) -> list[dict[str, Any]]:
    """The files of a question's media with a few of the frames that the model saw of each, evenly spread."""
    count = max(1, SHOWN // max(1, len(sample.plans)))
    return [
        {
            "path": ref.path,
            "member": ref.member,
            "frames": [plan.indices[i * len(plan.indices) // count] for i in range(min(count, len(plan.indices)))],
        }
        for ref, plan in list(zip(sample.record.media, sample.plans, strict=True))[:SHOWN]
    ]
