"""In place of vllm_worker.py, by the interpreter that has vLLM: says what vLLM would give to its model.

What it says stands where a worker says why it refuses a prompt: {"token_ids": [...], "patches": sha256} as JSON.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams

PROGRAM = Path(__file__).resolve().parents[2] / "src/vidqa/engine/generators/vllm_worker.py"
found = importlib.util.spec_from_file_location("vllm_worker", PROGRAM)
vllm_worker = importlib.util.module_from_spec(found)
sys.modules["vllm_worker"] = vllm_worker  # where its dataclasses look for themselves
found.loader.exec_module(vllm_worker)
vllm_worker.ENGINE["mm_processor_cache_gb"] = 0  # what is cached is not shown


class Showing(vllm_worker.Worker):
    def _ask(self, name: str, message: dict[str, Any]) -> None:
        prompt = self.prompts.pop(message["of"])
        told = {"prompt_token_ids": prompt.token_ids, "multi_modal_data": prompt.media}
        tasks = self.engine.get_supported_tasks()
        made = self.engine.input_processor.process_inputs(name, told, SamplingParams(), supported_tasks=tasks)
        (feature,) = made.mm_features
        patches = feature.data["pixel_values_videos"].data
        if patches.dtype == torch.uint8:  # vLLM's model normalises them itself, here with the tiny model's numbers
            patches = (patches.float() - 127.5) / 127.5
        digest = hashlib.sha256(patches.contiguous().numpy().tobytes()).hexdigest()
        given = {"token_ids": made.prompt_token_ids, "patches": digest}
        self._say(steps=[[name, [], [], [], json.dumps(given)]])


vllm_worker.Worker = Showing
vllm_worker.main()
