"""Candidates that are scored as a request's answer.

What is read of a candidate is its tokens without the last one; candidates that begin alike are read once. Most are one
token long: then the prompt alone is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vidqa.engine.generators._base import Request, Result

Head = tuple[int, ...]  # what is read of some candidates behind the prompt


def heads_of(request: Request) -> list[Head]:
    """What has to be read behind the prompt to score its candidates."""
    heads = dict.fromkeys(candidate[:-1] for candidate in request.candidates)
    return [head for head in heads if head] or [()]


def scored(request: Request, heads: Sequence[Head], logits: Sequence[torch.Tensor]) -> Result:
    """The result, from float32 logits [tokens of the head + 1, V] behind the prompt's last token and those of each
    head."""
    tables: Mapping[Head, torch.Tensor] = {head: rows.log_softmax(-1) for head, rows in zip(heads, logits, strict=True)}
    sums = []
    for candidate in request.candidates:
        table = tables[candidate[:-1]] if candidate[:-1] in tables else tables[heads[0]]
        token_ids = torch.tensor(candidate, device=table.device)
        sums.append(table[: len(candidate)].gather(1, token_ids[:, None]).sum())
    return Result(request.id, "scored", scores=tuple(torch.stack(sums).tolist()))
