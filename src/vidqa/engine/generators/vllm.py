"""vLLM in its own environment: a process of another interpreter answers, and this process feeds it.

vLLM pins other versions of torch and transformers than the trainer, so it is not imported here. The process gets
planned token ids, frames of the planned size and their times, and does not sample videos itself; a prompt that becomes
other tokens is an error. Constraints and candidates become requests for one token each, with the prompt in vLLM's
cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.contract.problem import ProblemError
from vidqa.engine.families import torch_half
from vidqa.engine.generators._base import Generator, Request, Result, Settings, ready
from vidqa.engine.generators.choosing import Draft
from vidqa.engine.generators.vllm_process import Process
from vidqa.engine.memory_policy import share_of_gpu
from vidqa.engine.model.stored import stored_tensors
from vidqa.engine.problems import ENGINE_VLLM_ADAPTER, ENGINE_VLLM_PROMPT
from vidqa.families import adapters, family_of, quantization_of, require_plain_weights
from vidqa.families.model_files import read_json
from vidqa.planning.samples import Planner
from vidqa.video.types import FramePlan

ROWS_ON_GPU = 64  # the least number of prompts that a GPU answers at a time
SHARE_OF_GPU = 0.9  # of its memory
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the values that vLLM accepts for max_lora_rank
# Parts of adapters that vLLM does not support, or that older versions ignore silently.
NOT_TAKEN = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias", "layer_replication")
Tokens = tuple[int, ...]  # tokens after the prompt


@dataclass(eq=False)
class VllmRow:
    """A prompt being answered, called `name` in the process. `found` has the log-probability of the last token of each
    prefix of a candidate."""

    name: str
    draft: Draft
    found: dict[Tokens, float] = field(default_factory=dict)

    @property
    def request(self) -> Request:
        return self.draft.request

    def scores(self) -> tuple[float, ...]:
        found = self.found
        return tuple(sum(found[each[:end]] for end in range(1, len(each) + 1)) for each in self.request.candidates)


class VllmSession:
    """Answers with the model of `process`. `pending` has the row of each request to vLLM and, for a scored candidate,
    the prefix."""

    def __init__(self, process: Process, settings: Settings) -> None:
        self.process, self.planner = process, settings.planner
        self.longest = min(settings.longest, process.longest)
        self.most = _rows(settings)
        self.rows: dict[str, VllmRow] = {}
        self.pending: dict[str, tuple[VllmRow, Tokens]] = {}

    def generate(self, requests: Iterable[Request | None]) -> Iterator[list[Result]]:
        source, more = iter(requests), True
        try:
            while more or self.rows:
                results: list[Result] = []
                while more and not results and len(self.rows) < self.most:
                    try:
                        request = next(source)
                    except StopIteration:
                        more = False
                        break
                    if request is None:
                        break
                    results += self._admit(request)
                if self.rows:
                    results += self._step()
                if results or (more and not self.rows):
                    yield results
        finally:  # the caller stopped reading; errors of an ended process are already raised
            with suppress(ProblemError):
                for row in list(self.rows.values()):
                    self._leave(row)

    def close(self) -> None:
        self.process.close()

    def _admit(self, request: Request) -> list[Result]:
        """Submit a prompt. Returns the result of a prompt that cannot be answered."""
        frames = ready(request, self.longest)
        if isinstance(frames, Result):
            return [frames]
        depth = self.planner.geometry.video.temporal_patch_size
        media = [
            # Every frame of a patch gets the patch's time: vLLM takes the mean of its first and its last one.
            {
                "kind": plan.kind,
                "shape": array.shape,
                "times_s": np.repeat(plan.patch_times_s, depth).tolist(),
                "fps": self._fps(plan),
            }
            for plan, array in zip(request.plans, frames, strict=True)
        ]
        row = VllmRow(self.process.name(), Draft(request, None, 0.0, 0))
        self.rows[row.name] = row
        token_ids, planned = contracted(request, self.planner), request.token_ids.tolist()
        self.process.tell({"hold": row.name, "token_ids": token_ids, "planned": planned, "media": media}, frames)
        if request.candidates:
            self._ask_for(row, request.candidates[0][:1])
        elif request.constraint:
            self._ask_next(row)
        else:
            self._ask(row, (), (), sampling_of(request), last=True)
        return []

    def _fps(self, plan: FramePlan) -> float:
        """Frames per second for vLLM. Where rope positions tell the time, it has a patch's seconds from them; else one
        frame a second makes a frame's number its time."""
        by_rope = self.planner.geometry.positions_per_s and plan.grid[0] > 1
        return self.planner.geometry.video.temporal_patch_size / plan.patch_times_s[1] if by_rope else 1.0

    def _ask(self, row: VllmRow, more: Tokens, of: Tokens, sampling: dict[str, Any], *, last: bool = False) -> None:
        name = self.process.name()
        self.pending[name] = row, of
        self.process.tell({"ask": name, "of": row.name, "more": more, "sampling": sampling, "last": last})

    def _ask_for(self, row: VllmRow, beginning: Tokens) -> None:
        """Request the log-probability of the last token of a prefix, by allowing only that token."""
        sampling = {"max_tokens": 1, "temperature": 0.0, "allowed_token_ids": [beginning[-1]], "logprobs": 0}
        self._ask(row, beginning[:-1], beginning, sampling)

    def _ask_next(self, row: VllmRow) -> None:
        """Request one more token of a constrained answer."""
        constraint, answer = row.request.constraint, row.draft.token_ids
        assert constraint
        allowed = constraint.allowed(tuple(answer)).nonzero()[:, 0].tolist()
        sampling = sampling_of(row.request, place=len(answer))
        self._ask(row, tuple(answer), (), {**sampling, "max_tokens": 1, "allowed_token_ids": allowed})

    def _step(self) -> list[Result]:
        """Handle the next message of the process."""
        results = []
        for name, token_ids, logprobs, likeliest, reason in self.process.hear()["steps"]:
            row, beginning = self.pending.get(name, (None, ()))
            if row is None:  # the row was cancelled
                continue
            if reason:
                del self.pending[name]
            if reason not in (None, "stop", "length"):
                problem = ENGINE_VLLM_PROMPT.at(row.request.id, reason)
                result: Result | None = Result(row.request.id, "error", problems=(problem,))
            elif beginning:
                result = self._scored(row, beginning, logprobs[0])
            else:
                result = self._written(row, token_ids, logprobs, likeliest, reason)
            if result:
                self._leave(row)
                results.append(result)
        return results

    def _scored(self, row: VllmRow, beginning: Tokens, logprob: float) -> Result | None:
        request = row.request
        if request.cancelled():
            return Result(request.id, "cancelled")
        row.found[beginning] = logprob
        beginnings = dict.fromkeys(each[:end] for each in request.candidates for end in range(1, len(each) + 1))
        if len(row.found) == len(beginnings):
            return Result(request.id, "scored", scores=row.scores())
        if len(row.found) == 1:  # the prompt is in vLLM's cache now
            for other in beginnings:
                if other not in row.found:
                    self._ask_for(row, other)
        return None

    def _written(
        self, row: VllmRow, token_ids: Any, logprobs: Any, likeliest: Any, reason: str | None
    ) -> Result | None:
        for place, token in enumerate(token_ids):
            logprob = logprobs[place] if logprobs else 0.0
            row.draft.add(token, logprob, tuple(map(tuple, likeliest[place])) if likeliest else ())
            if result := row.draft.result():
                return result
        if row.request.constraint and reason:
            self._ask_next(row)
        return None

    def _leave(self, row: VllmRow) -> None:
        del self.rows[row.name]
        for name in [name for name, (other, _) in self.pending.items() if other is row]:
            del self.pending[name]
            self.process.tell({"cancel": name})
        self.process.tell({"forget": row.name})


def contracted(request: Request, planner: Planner) -> list[int]:
    """The prompt for vLLM: one placeholder for each medium, which vLLM expands."""
    token_ids, chat, start = request.token_ids.tolist(), planner.chat, 0
    for plan in request.plans:
        slot, expansion = chat.slot_ids[plan.kind], chat.expansion(plan).tolist()
        start = token_ids.index(slot, start) - expansion.index(slot)
        token_ids[start : start + len(expansion)] = [slot]
        start += 1
    return token_ids


def sampling_of(request: Request, place: int = 0) -> dict[str, Any]:
    """The sampling parameters for vLLM, from `place` of the answer on."""
    sampling = request.sampling
    digest = hashlib.sha256(f"{sampling.seed} {request.draws or request.id} {place}".encode()).digest()
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": int.from_bytes(digest[:7], "big") if sampling.temperature > 0 else None,
        "stop_token_ids": list(request.stop_ids),
        "logprobs": request.top_logprobs if request.logprobs or request.top_logprobs else None,
    }


def _rows(settings: Settings) -> int:
    return max(settings.batch_size, ROWS_ON_GPU) if settings.device.type == "cuda" else settings.batch_size


def _open(settings: Settings) -> VllmSession:
    folder = settings.base or settings.folder
    on_cpu = settings.device.type == "cpu"
    options: dict[str, Any] = {
        "model": str(folder),
        "dtype": str(settings.dtype).removeprefix("torch."),
        "max_model_len": settings.longest,
        "max_num_seqs": _rows(settings),
        "gpu_memory_utilization": SHARE_OF_GPU * (1.0 if on_cpu else share_of_gpu(settings.device)),
        "enforce_eager": on_cpu,
    }
    family, adapter = torch_half(family_of(folder)), None
    if quantization_of(folder).get("kv_cache_scheme") and not on_cpu:
        options["kv_cache_dtype"] = "fp8"  # with the scales of the folder
    if family.vllm_model:
        options |= {"hf_overrides": {"architectures": [family.vllm_model]}, "model_impl": "vllm"}
    if settings.base:
        require_plain_weights(settings.base, "an adapter is put on")
        adapter = settings.folder
        options |= {"enable_lora": True, "max_lora_rank": _rank(adapter, family.decoder_layers)}
    process = Process(settings.vllm_python, settings.device, adapter=adapter and str(adapter), **options)
    return VllmSession(process, settings)


def _rank(adapter: Path, layers: str) -> int:
    """The max_lora_rank for vLLM, which adapts modules inside `layers`. Raises ENGINE_VLLM_ADAPTER if it would ignore a
    part of the adapter."""
    adapters.check_adapter(adapter)
    config = read_json(adapter, adapters.CONFIG)
    parts = [name for name in NOT_TAKEN if config.get(name)]
    parts += sorted(name for name in stored_tensors(adapter) if f".{layers}." not in name or ".lora_" not in name)
    rank = config.get("r", 8)
    if rank > RANKS[-1]:
        parts.append(f"rank {rank}")
    if parts:
        raise ENGINE_VLLM_ADAPTER.error(adapter, f"it has {', '.join(parts[:3])}{', ...' if len(parts) > 3 else ''}")
    return next(each for each in RANKS if each >= rank)


VLLM = Generator("vllm", _open)
