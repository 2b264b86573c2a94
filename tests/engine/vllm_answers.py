"""Greedy answers of vLLM to planned prompts, by an interpreter that has vLLM and not this project.

    .vllm/bin/python -I vllm_answers.py MODEL DTYPE PROMPTS.json ANSWERS.json

PROMPTS.json: [{"id", "token_ids" (one placeholder a medium), "planned" (the ids after expansion), "stop_ids",
"max_tokens", "media": [{"kind", "file" (uint8 [n, 3, h, w] as .npy), "times_s"}]}]. ANSWERS.json: {"id": [token ids,
their log-probabilities]}. Ends with an assertion where vLLM expands a prompt to other ids than were planned.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from vllm import LLM, SamplingParams


def medium(about: dict[str, Any]) -> Any:
    """Frames of their planned size and times, which vLLM neither samples nor resizes."""
    frames = np.load(about["file"]).transpose(0, 2, 3, 1)
    if about["kind"] == "image":
        return Image.fromarray(frames[0])
    times_s = about["times_s"]  # one frame a second makes a frame's number its time
    metadata = {
        "fps": 1.0,
        "duration": times_s[-1] + 1,
        "total_num_frames": len(times_s),
        "frames_indices": times_s,
        "video_backend": "planned",
        "do_sample_frames": False,
    }
    return np.ascontiguousarray(frames), metadata


def main(model: str, dtype: str, prompts_file: str, answers_file: str) -> None:
    prompts = json.loads(Path(prompts_file).read_text())
    llm = LLM(
        model,
        dtype=dtype,
        max_model_len=4096,
        max_num_seqs=8,
        enforce_eager=True,
        mm_processor_kwargs={"do_resize": False},
        generation_config="vllm",
    )
    inputs, sampling = [], []
    for prompt in prompts:
        media: dict[str, list[Any]] = {}
        for about in prompt["media"]:
            media.setdefault(about["kind"], []).append(medium(about))
        inputs.append({"prompt_token_ids": prompt["token_ids"], "multi_modal_data": media})
        sampling.append(
            SamplingParams(
                temperature=0.0,
                max_tokens=prompt["max_tokens"],
                stop_token_ids=prompt["stop_ids"],
                ignore_eos=True,  # stop ids are given
                logprobs=0,
                detokenize=False,
            )
        )
    answers = {}
    for prompt, output in zip(prompts, llm.generate(inputs, sampling), strict=True):
        assert list(output.prompt_token_ids) == prompt["planned"], f"{prompt['id']}: other ids than planned"
        (answer,) = output.outputs
        token_ids = list(answer.token_ids)
        logprobs = [step[token].logprob for token, step in zip(token_ids, answer.logprobs, strict=True)]
        answers[prompt["id"]] = [token_ids, logprobs]
    Path(answers_file).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
