"""The vLLM process: run by the interpreter with vLLM, it imports only vLLM, its dependencies and families' own models.

    PYTHON -I vllm_worker.py DESCRIPTOR

Over the pipe DESCRIPTOR it receives the settings, prompts to hold, and requests about them, and sends the output of
every step. Messages are JSON, followed by messages with the bytes of their arrays. The process ends with the pipe.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import vllm
from PIL import Image
from vllm import EngineArgs, LLMEngine, SamplingParams, exceptions
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind

ENGINE = {
    "mm_processor_kwargs": {"do_resize": False},  # frames have their planned size
    "generation_config": "vllm",  # a model folder's own sampling settings would be part of no recipe
    "max_logprobs": 20,
    "disable_log_stats": True,
}
SAMPLING = {
    "output_kind": RequestOutputKind.DELTA,
    "detokenize": False,
    "ignore_eos": True,  # stop ids are given
}

REFUSAL = getattr(exceptions, "VLLMClientError", ValueError)  # older versions raise ValueError


# Families' own models, in files that import only vLLM and its dependencies and register them. At module level, since
# processes that vLLM spawns import this file.
FAMILIES = Path(__file__).resolve().parents[1] / "families"
sys.path.append(str(FAMILIES))
for path in sorted(FAMILIES.glob("*_in_vllm.py")):
    importlib.import_module(path.stem)


@dataclass
class Prompt:
    """Token ids with one placeholder for each medium, the media, and the planned token ids to verify."""

    token_ids: list[int]
    media: dict[str, list[Any]]
    planned: list[int]


class Worker:
    """`expected` has the planned token ids of requests that vLLM has not returned yet."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.prompts: dict[str, Prompt] = {}
        self.expected: dict[str, list[int]] = {}
        settings = self._read()
        adapter = settings.pop("adapter")
        self.lora = LoRARequest("adapter", 1, adapter) if adapter else None
        self.engine = LLMEngine.from_engine_args(EngineArgs(**settings, **ENGINE))
        versions = {module.__name__: module.__version__ for module in (vllm, torch, transformers)}
        self._say(longest=self.engine.model_config.max_model_len, versions=versions)

    def work(self) -> None:
        while True:
            while self.pipe.poll(0 if self.engine.has_unfinished_requests() else None):
                self._take(self._read())
            self._say(steps=[self._step_row(output) for output in self.engine.step()])

    def _take(self, message: dict[str, Any]) -> None:
        if "hold" in message:
            media: dict[str, list[Any]] = {}
            for medium in message["media"]:
                media.setdefault(medium["kind"], []).append(self._medium(medium))
            self.prompts[message["hold"]] = Prompt(message["token_ids"], media, message["planned"])
        elif "ask" in message:
            self._ask(message["ask"], message)
        elif "cancel" in message:
            self.expected.pop(message["cancel"], None)
            self.engine.abort_request([message["cancel"]])
        elif "forget" in message:
            self.prompts.pop(message["forget"], None)
        elif "end" in message:
            raise EOFError

    def _ask(self, name: str, message: dict[str, Any]) -> None:
        of, more = message["of"], message["more"]
        prompt = self.prompts.pop(of) if message["last"] else self.prompts[of]
        inputs = {"prompt_token_ids": [*prompt.token_ids, *more], "multi_modal_data": prompt.media}
        try:
            sampling = SamplingParams(**message["sampling"], **SAMPLING)
            self.engine.add_request(name, inputs, sampling, lora_request=self.lora)
        except (ValueError, REFUSAL) as refused:  # refused by vLLM, such as a medium above its limits
            self._say(steps=[[name, [], [], [], str(refused)]])
            return
        self.expected[name] = [*prompt.planned, *more]

    def _medium(self, header: dict[str, Any]) -> Any:
        frames = np.frombuffer(self.pipe.recv_bytes(), np.uint8).reshape(header["shape"]).transpose(0, 2, 3, 1)
        if header["kind"] == "image":
            return Image.fromarray(frames[0])
        times_s = header["times_s"]
        metadata = {
            "fps": header["fps"],
            "duration": times_s[-1] + 1,
            "total_num_frames": len(times_s),
            "frames_indices": times_s,
            "video_backend": "planned",
            "do_sample_frames": False,
        }
        return np.ascontiguousarray(frames), metadata

    def _step_row(self, output: Any) -> list[Any]:
        """The output of a step for one prompt: its name, token ids, their log-probabilities, the likeliest tokens with
        theirs, and the finish reason or null."""
        name, (answer,) = output.request_id, output.outputs
        planned = self.expected.pop(name, None)
        if planned is not None and (found := list(output.prompt_token_ids)) != planned:
            self._take({"cancel": name})
            differ = sum(a != b for a, b in zip(found, planned, strict=False))
            return [name, [], [], [], f"vLLM has {len(found)} tokens, planned are {len(planned)}; {differ} differ"]
        token_ids, steps = list(answer.token_ids), answer.logprobs or []
        chosen = [step[token].logprob for token, step in zip(token_ids, steps, strict=False)]
        ranked = [sorted(step.items(), key=lambda item: item[1].rank) for step in steps]
        likeliest = [[[token, each.logprob] for token, each in step] for step in ranked]
        return [name, token_ids, chosen, likeliest, answer.finish_reason]

    def _read(self) -> Any:
        return json.loads(self.pipe.recv_bytes())

    def _say(self, **message: Any) -> None:
        self.pipe.send_bytes(json.dumps(message).encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    pipe = Connection(int(sys.argv[1]))
    try:
        Worker(pipe).work()
    except (EOFError, ConnectionError):
        return
    except Exception as failed:  # noqa: BLE001  any error of vLLM goes to the parent
        traceback.print_exc()
        pipe.send_bytes(json.dumps({"failed": f"{type(failed).__name__}: {failed}"}).encode())
        sys.exit(1)


if __name__ == "__main__":
    main()
