"""Supervised fine-tuning, then reinforcement learning, of a randomly initialised model, with the gain of each.

    python benchmarks/rl_sft_to_rl.py --out DIR --gpus 2

A Qwen3-VL of 53 million random parameters and the demo's synthetic clips. Some clips have annotated answers: the
model learns from them the form of answers and some of their content. On the other clips it learns from rewards alone.
Both models answer the same held-out clips of the same four events, and compare.py's comparison says whether the second
is better. DIR/shown has curves, reports and comparison.json. `--set rl:train.optm_lr=3e-5` changes the spec of
one job (sft, rl, sft-evaluation, rl-evaluation); --tiny rehearses it on a CPU.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("src", "workflow")]

from ledger import Ledger, arguments, rounded, table
from processes import finish, start
from rl_cases import REWARD

from demo.clips import write_demo_set
from vidqa.core.files import write_json
from vidqa.core.pages.training import report
from vidqa.core.pages.training_data import read_training
from vidqa.core.run_folder import RunFolder
from vidqa.evaluation.comparison import compare
from vidqa.evaluation.pages import comparison_text
from vidqa.spec import Layer, dump, parse_set, resolve
from vidqa.spec.parent_layers import parent_layer

ANSWER_TOKENS = 8
UNTAUGHT = "diagonal"  # the demo's planted weakness: no training clip moves like that
VISION = {"nframes": 8, "total_pixels": 4 * 64 * 64}  # 16 tokens
TEXT = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 10, "num_attention_heads": 8}
TOWER = {"depth": 6, "hidden_size": 384, "intermediate_size": 1536, "num_heads": 6, "deepstack_visual_indexes": [1, 3]}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run: training clips, of which `sft` have annotated answers, held-out clips of each event, and
    steps with their questions."""

    clips: int = 4000
    sft: int = 1200
    of_event: int = 96
    held: int = 200  # questions that choose the best export, from clips of the training set
    sft_steps: int = 240  # five epochs: more would leave no doubt in its answers, and nothing to explore
    sft_questions: int = 64
    rl_steps: int = 300
    rl_questions: int = 64
    answers: int = 8


TINY = Sizes(clips=24, sft=12, of_event=2, held=4, sft_steps=3, sft_questions=4, rl_steps=2, rl_questions=4, answers=4)


def write_model(folder: Path, corpus: Sequence[str], *, tiny: bool) -> int:
    """Write a model folder with random weights; returns the number of parameters. Heads are 64 wide."""
    from vidqa.engine.families.tiny_qwen3_vl import (
        Qwen3VLForConditionalGeneration,
        tiny_config,
        tiny_processor,
        write_folder,
    )

    processor = tiny_processor(corpus)
    config = tiny_config(processor.tokenizer)
    if not tiny:
        values = config.to_dict()
        rope = {**values["text_config"]["rope_parameters"], "mrope_section": [12, 10, 10]}
        values["text_config"] |= {**TEXT, "num_key_value_heads": 4, "head_dim": 64, "rope_parameters": rope}
        values["text_config"].pop("layer_types", None)
        values["vision_config"] |= {**TOWER, "out_hidden_size": TEXT["hidden_size"]}
        config = type(config)(**values)
    write_folder(folder, processor, config, Qwen3VLForConditionalGeneration, 0, 1.0)
    return sum(parameter.numel() for parameter in Qwen3VLForConditionalGeneration(config).parameters())


def write_sets(folder: Path, sizes: Sizes) -> list[str]:
    """Write sft.json, rl.json and held.json, of disjoint clips, to train/, and asked.json to eval/; returns corpus."""
    write_demo_set(folder, sizes.clips, 0, per_event=sizes.of_event)
    records = json.loads((folder / "train" / "annotations.json").read_text())
    clips = list(dict.fromkeys(record["video"] for record in records))
    held = sizes.sft + sizes.held // 2
    parts = {"sft": clips[: sizes.sft], "held": clips[sizes.sft : held], "rl": clips[held:]}
    for name, chosen in parts.items():
        write_json(folder / "train" / f"{name}.json", [record for record in records if record["video"] in set(chosen)])
    kpi_records = json.loads((folder / "eval" / "annotations.json").read_text())
    write_json(folder / "eval" / "asked.json", [record for record in kpi_records if record["kind"] != UNTAUGHT])
    return (folder / "corpus.txt").read_text(encoding="utf-8").splitlines()


class Pipeline:
    """The jobs, one after the other, each under torchrun on all GPUs."""

    def __init__(self, options: Any, sizes: Sizes) -> None:
        self.options, self.sizes, self.tiny = options, sizes, options.tiny
        self.data, self.model = options.out / "data", options.out / "model"
        self.seconds: dict[str, float] = {}

    def run(self, name: str, action: str, values: Mapping[str, Any], layers: Sequence[Layer] = ()) -> Path:
        """Run a job; returns its run folder. Its failure ends the program."""
        run = self.options.out / "runs" / name
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        own = [pair.removeprefix(f"{name}:") for pair in self.options.set if pair.startswith(f"{name}:")]
        spec = resolve(action, [*layers, Layer(name, dict(values)), parse_set(own)]).spec
        (run / "spec.toml").write_text(dump(spec), encoding="utf-8")
        RunFolder(run).update_run(action=action)  # as a launch does: later jobs take their spec from it
        ranks = ("-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", str(self.options.gpus))
        job = ("-m", "vidqa.engine", action, "--spec", str(run / "spec.toml"), "--run-dir", str(run))
        started = start(["-P", *ranks, *job], run / "log.txt", self.options.timeout)
        finish([started])
        if started.failure:
            sys.exit(f"{name}: {started.failure}")
        self.seconds[name] = started.seconds or 0.0
        print(f"{name}: {self.seconds[name]:.0f} s", flush=True)
        return run

    def _learning(self, annotations: str) -> dict[str, Any]:
        """The keys of both trainings."""
        train = self.data / "train"
        return {
            "policy.parallelism.dp_replicate_size": self.options.gpus,
            "policy.parallelism.dp_shard_size": 1,
            "custom.train_dataset.annotation_path": str(train / annotations),
            "custom.train_dataset.media_path": str(train),
            "custom.vision": VISION,
            "train.output_dir": str(self.options.out / "runs"),
            "train.param_dtype": "float32" if self.tiny else "bfloat16",
            "train.optm_betas": [0.9, 0.99],
            "train.train_policy.dataloader_num_workers": 1 if self.tiny else 6,
            "train.epoch": 1000,
            "train.ckpt.save_freq_in_epoch": 0,
            "policy.model_gradient_checkpointing": False,
            "engine.frame_cache_dir": str(self.options.out / "cache"),
        }

    def sft(self) -> Path:
        return self.run(
            "sft",
            "train",
            {
                **self._learning("sft.json"),
                "policy.model_name_or_path": str(self.model),
                "train.train_batch_per_replica": self.sizes.sft_questions // self.options.gpus,
                "train.max_num_steps": self.sizes.sft_steps,
                "train.optm_lr": 3e-4,
                "train.optm_warmup_steps": 0.1,
                "engine.pack_tokens": 8192,
            },
        )

    def rl(self, sft: Path) -> Path:
        held = {"annotation_path": str(self.data / "train" / "held.json"), "media_path": str(self.data / "train")}
        return self.run(
            "rl",
            "grpo",
            {
                **self._learning("rl.json"),
                "custom.val_dataset": held,
                "train.train_batch_per_replica": self.sizes.rl_questions * self.sizes.answers,
                "train.max_num_steps": self.sizes.rl_steps,
                "train.optm_lr": 2e-4,
                "train.optm_warmup_steps": 10,
                "train.train_policy.reward_function": self._reward(),
                "rollout.n_generation": self.sizes.answers,
                "rollout.max_response_length": ANSWER_TOKENS,
                "validation.enable": True,
                "validation.val_before_train": True,
                "validation.freq": max(1, self.sizes.rl_steps // 8),
                "engine.stop.truncated_above": 1.0,
                "engine.pack_tokens": 8192,
            },
            [parent_layer("grpo", sft, None)],
        )

    def _reward(self) -> str:
        """The reward function. An untrained model answers nothing correctly: a rehearsal uses another reward."""
        if not self.tiny:
            return "accuracy"
        (self.options.out / "reward.py").write_text(REWARD, encoding="utf-8")
        return f"{self.options.out / 'reward.py'}:odd"

    def evaluate(self, name: str, run: Path) -> Path:
        return self.run(
            name,
            "evaluate",
            {
                "dataset.annotation_path": str(self.data / "eval" / "asked.json"),
                "dataset.media_dir": str(self.data / "eval"),
                "model.dtype": "float32" if self.tiny else "bfloat16",
                "generation.max_tokens": ANSWER_TOKENS,
                "evaluation.batch_size": 64,
                "metrics.names": [],
                "engine.frame_cache_dir": str(self.options.out / "cache"),
                "num_gpus": self.options.gpus,
                "results_dir": str(self.options.out / "runs"),
            },
            [parent_layer("evaluate", run, None)],
        )


def curve(run: Path, names: Sequence[str]) -> list[dict[str, float]]:
    """The metrics `names` of a run, step by step."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: event[name] for name in ("step", *names) if name in event} for event in events]


def main() -> None:
    parser = arguments(__doc__, gpus=2, timeout=300)
    parser.add_argument("--sft-clips", type=int, help="clips with answers to imitate (1200)")
    parser.add_argument("--sft-steps", type=int, help="optimizer steps of fine-tuning (240)")
    parser.add_argument("--rl-steps", type=int, help="steps of reinforcement learning (300)")
    options = parser.parse_args()
    options.out = options.out.resolve()
    chosen = {"sft": options.sft_clips, "sft_steps": options.sft_steps, "rl_steps": options.rl_steps}
    sizes = replace(TINY if options.tiny else Sizes(), **{name: value for name, value in chosen.items() if value})
    began = time.monotonic()
    corpus = write_sets(options.out / "data", sizes)
    parameters = write_model(options.out / "model", corpus, tiny=options.tiny)
    print(f"{parameters / 1e6:.1f} million parameters; clips and model: {time.monotonic() - began:.0f} s", flush=True)

    pipeline = Pipeline(options, sizes)
    sft = pipeline.sft()
    before = pipeline.evaluate("sft-evaluation", sft)
    rl = pipeline.rl(sft)
    after = pipeline.evaluate("rl-evaluation", rl)
    comparison = compare(before, after, "kind")

    shown = options.out / "shown"
    shutil.rmtree(shown, ignore_errors=True)
    shown.mkdir()
    write_json(shown / "comparison.json", comparison.as_dict())
    write_json(shown / "sft-curve.json", curve(sft, ("train/loss",)))
    of_rl = (
        "rollout/reward",
        "reward/accuracy",
        "val/accuracy",
        "train/entropy",
        "rollout/groups_equal",
        "perf/step_s",
    )
    write_json(shown / "rl-curve.json", curve(rl, of_rl))
    for run in (sft, rl):
        (shown / f"{run.name}.html").write_text(report(read_training(run)), encoding="utf-8")
    row = {
        "parameters": parameters,
        "gpus": options.gpus,
        **{key: vars(sizes)[key] for key in ("clips", "sft", "sft_steps", "rl_steps", "rl_questions", "answers")},
        "accuracy_sft": comparison.whole.before,
        "accuracy_rl": comparison.whole.after,
        "difference": comparison.whole.difference,
        "ci95": list(comparison.whole.ci95),
        "p_value": comparison.whole.p_value,
        "questions": comparison.whole.n,
        "verdict": comparison.sentence,
        "slices": [{"kind": one.name, "n": one.n, "sft": one.before, "rl": one.after} for one in comparison.slices],
        "rl_curve": curve(rl, ("reward/accuracy", "val/accuracy"))[:: max(1, sizes.rl_steps // 20)],
        "seconds": {**pipeline.seconds, "whole": time.monotonic() - began},
    }
    Ledger("rl_sft_to_rl", options).add(row)
    print(comparison_text(comparison))
    print(table(rounded(row["slices"])))
    print(table(rounded([row["seconds"]])))


if __name__ == "__main__":
    main()
