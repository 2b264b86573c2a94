"""Writes every completion of a run into its folder; see `contract.rollouts`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from vidqa.contract.rollouts import read_rollouts, rollout_file
from vidqa.engine.rl.rollout import Group
from vidqa.engine.rl.update import advantages
from vidqa.planning.samples import Sample

CODEC = pa.Codec("zstd")
SHOWN = 4  # frames of a question that its page shows, over all of its media


class RolloutRecord:
    """Appends the groups of each step. A resumed run cuts off what is behind its checkpoint."""

    def __init__(self, folder: Path, rank: int, step: int) -> None:
        """`step` steps are done; lines of later ones are dropped."""
        self.path = rollout_file(folder, rank)
        if self.path.exists():
            kept = [line for line in read_rollouts(self.path) if line["step"] <= step]
            self.path.write_bytes(b"")
            if kept:
                self._append(kept)

    def write(self, step: int, groups: Sequence[Group], *, divided: bool) -> None:
        """Of the step that is done as the `step`th."""
        lines = []
        for group in groups:
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
                        "logprobs": [round(float(value), 6) for value in drawn.logprobs],
                        "finish_reason": drawn.completion.finish_reason,
                        "text": drawn.completion.text,
                        "reward": drawn.reward.total,
                        "parts": dict(drawn.reward.parts),
                        "advantage": float(advantage),
                    }
                )
        if lines:
            self._append(lines)

    def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        with self.path.open("ab") as file:
            file.write(CODEC.compress(text, asbytes=True))


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
