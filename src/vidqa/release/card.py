"""The model card of an export: README.md as model hubs show it, from what the run, its spec and its scores say.

No path of this machine goes into it: the card is published with the weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vidqa.contract.files import read_object
from vidqa.evaluation.text import as_text
from vidqa.families.model_card import front_matter_text
from vidqa.release.origin import Origin
from vidqa.release.scores import Scores
from vidqa.release.source import ExportSource
from vidqa.spec import effective_batch
from vidqa.spec.grpo_rules import reward_weights, temperature_of
from vidqa.spec.models import GrpoSpec

HUB = "https://huggingface.co/"
NO_SCORES = "**Not evaluated.** No evaluation of these weights was found beside the run."
ORDER = ("license", "license_name", "license_link", "base_model", "base_model_relation", "library_name", "pipeline_tag")
FULL_USE = """from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("{name}", dtype="auto")
processor = AutoProcessor.from_pretrained("{name}")"""
ADAPTER_USE = """from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoProcessor

base = AutoModelForImageTextToText.from_pretrained("{base}", dtype="auto")
model = PeftModel.from_pretrained(base, "{name}")
processor = AutoProcessor.from_pretrained("{name}")"""


@dataclass(frozen=True)
class Card:
    """`name` is that of the folder; `merged` says that an adapter went into its base; `proof` is proof.json."""

    source: ExportSource
    origin: Origin
    name: str
    merged: bool
    scores: Sequence[Scores]
    proof: Mapping[str, Any]

    @property
    def stays_adapter(self) -> bool:
        return self.source.is_adapter and not self.merged

    def text(self) -> str:
        parts = [self._front(), f"# {_plain(self.name)}", self._what(), "## Scores", *self._scores()]
        parts += ["## Training", _table(("", ""), self._training()), *self._prompt()]
        parts += ["## Proof", self._proof(), "## Use", self._use(), "## License", self._license()]
        return "\n\n".join(parts) + "\n"

    def _front(self) -> str:
        base = self.origin.repository or self.origin.ancestor
        table = {
            **self.origin.license,
            **({"base_model": [base], "base_model_relation": self._relation()} if base else {}),
            "library_name": "peft" if self.stays_adapter else "transformers",
            "pipeline_tag": "image-text-to-text",
            "tags": ["video", "video-question-answering", *self._kinds()],
        }
        return front_matter_text(table)

    def _kinds(self) -> list[str]:
        kinds = ["lora"] if self.source.is_adapter else []
        return kinds + (["reinforcement-learning", "grpo"] if isinstance(self.source.spec, GrpoSpec) else [])

    def _relation(self) -> str:
        return "adapter" if self.stays_adapter else "finetune"

    def _what(self) -> str:
        repository = self.origin.repository
        base = f"[{repository}]({HUB}{repository})" if repository else f"the local model `{_plain(self.origin.name)}`"
        if self.origin.parent:
            base += f" (run {_plain(self.origin.parent)})"
        form = "It was trained in full; nothing else is needed."
        if self.stays_adapter:
            form = "This folder holds LoRA adapters, which need that model beside them."
        elif self.merged:
            form = "It was trained with LoRA; the adapters are merged into the weights, and nothing else is needed."
        how = "refined by reinforcement learning (GRPO)" if isinstance(self.source.spec, GrpoSpec) else "fine-tuned"
        return f"A model that answers questions about videos, {how} from {base}. {form}"

    def _scores(self) -> list[str]:
        if not self.scores:
            return [NO_SCORES]
        head = ("questions", "samples", "accuracy [95 % interval]", "base model", "most common answer")
        rows = [
            (
                _plain(scores.export.name),
                f"{scores.export.metrics.get('n')}",
                _accuracy(scores.export.metrics),
                _accuracy(scores.base.metrics) if scores.base else "not evaluated",
                _share(scores.export.metrics.get("majority_accuracy")),
            )
            for scores in self.scores
        ]
        about = "Every score is on questions with known answers; intervals are by video."
        return [_table(head, rows), f"{about} {self._settings()}"]

    def _settings(self) -> str:
        """How the answers were generated."""
        ways = {str(scores.export.recipe.get("generation", {})): scores.export.recipe for scores in self.scores}
        parts = []
        for recipe in ways.values():
            generation, frames = recipe.get("generation", {}), recipe.get("frames", {})
            shown = _sampling(frames.get("fps"), frames.get("nframes"))
            most, temperature, dtype = (generation.get(key) for key in ("max_tokens", "temperature", "dtype"))
            parts.append(f"{shown}, at most {most} tokens, temperature {temperature}, {dtype}")
        return f"Asked with {'; '.join(parts)}."

    def _training(self) -> list[tuple[str, str]]:
        spec, run = self.source.spec, self.source.run
        facts, plan, train = run.read_run(), read_object(run.path / "plan.json"), spec.train
        best = read_object(run.path / "best.json")
        order = self.source.facts.get("order", {})
        vision, lora = spec.custom.vision, spec.policy.lora
        rows: dict[str, object] = {
            "data fingerprint": facts.get("data_fingerprint") or order.get("data_fingerprint"),
            "samples": plan.get("train_samples") or order.get("samples"),
            "steps": self.source.facts.get("step"),
            "epochs asked for": train.epoch,
            **(_policy(spec) if isinstance(spec, GrpoSpec) else {"samples a step": effective_batch(spec)}),
            "learning rate": train.optm_lr,
            "precision": train.param_dtype,
            "seed": train.seed,
            "what trains": _lora(lora) if lora else "full fine-tune",
            "frozen": ", ".join(spec.policy.freeze_pattern or ()),
            "frames of a video": _sampling(vision.fps, vision.nframes),
            "context": f"{spec.policy.model_max_length} tokens",
            "chosen": _chosen(best) if best.get("name") == self.source.export.name else "",
            "run": f"{run.path.name}, {self.source.export.name}",
            "started from": self.origin.parent,
            "program": f"finetune-cosmos-reason {facts.get('vidqa_version', '')}".strip(),
        }
        return [(key, _plain(as_text(value))) for key, value in rows.items() if value not in (None, "", 0)]

    def _prompt(self) -> list[str]:
        prompt = self.source.spec.custom.system_prompt
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", prompt)), default=0))
        return [f"System prompt:\n\n{fence}text\n{prompt}\n{fence}"] if prompt else []

    def _proof(self) -> str:
        return (
            f"These files were loaded again with {'PEFT' if self.stays_adapter else 'transformers'}: on the sample "
            f"`{_plain(str(self.proof.get('sample_id')))}` their loss is {_loss(self.proof.get('reloaded_loss'))}; the "
            f"trainer's was {_loss(self.proof.get('trainer_loss'))}."
        )

    def _use(self) -> str:
        load = ADAPTER_USE if self.stays_adapter else FULL_USE
        code = load.format(name=self.name, base=self.origin.name)
        vision, prompt = self.source.spec.custom.vision, self.source.spec.custom.system_prompt
        with_prompt = " and with the system prompt above" if prompt else ""
        shown = f"Show it videos as in the training, with {_sampling(vision.fps, vision.nframes)}{with_prompt}."
        return f"```python\n{code}\n```\n\n{shown}"

    def _license(self) -> str:
        license_facts = self.origin.license
        if not license_facts:
            return "The license of the base model is not known here. It holds for these weights too: look it up."
        name = license_facts.get("license_name") or license_facts["license"]
        link = license_facts.get("license_link", "")
        shown = f"[{_plain(name)}]({link})" if re.match("https?://", link) else _plain(name)
        return f"The base model's license holds for these weights too: {shown}."


def _policy(spec: GrpoSpec) -> dict[str, object]:
    """What reinforcement learning draws and rewards. Of a function of the user's its file's name, no path."""
    policy, rollout = spec.train.train_policy, spec.rollout
    rewards = reward_weights(policy.reward_function)
    return {
        "method": "reinforcement learning, GRPO" + ("" if policy.variant == "grpo" else f" ({policy.variant})"),
        "rewards": ", ".join(f"{os.path.basename(name)} x {weight:g}" for name, weight in rewards.items()),
        "questions a step": effective_batch(spec),
        "completions of a question": rollout.n_generation,
        "longest completion": f"{rollout.max_response_length} tokens",
        "temperature of completions": f"{temperature_of(spec):g}",
        "weight of the KL divergence": f"{policy.kl_beta:g}",
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Words of others as part of a line of Markdown: no line, cell, link or tag begins in them."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))


def _share(value: object) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, int | float) else "unknown"


def _accuracy(metrics: Mapping[str, Any]) -> str:
    interval = metrics.get("accuracy_ci95")
    shown = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else " (no interval: too few videos)"
    return _share(metrics.get("accuracy")) + shown


def _sampling(fps: object, nframes: object) -> str:
    return f"{nframes} frames of each video" if nframes else f"{fps} frames a second"


def _lora(lora: Any) -> str:
    targets = lora.target_modules if isinstance(lora.target_modules, str) else ", ".join(lora.target_modules)
    also = f"; in full: {', '.join(lora.modules_to_save)}" if lora.modules_to_save else ""
    return f"LoRA, r {lora.r}, alpha {lora.lora_alpha:g}, on {targets}{also}"


def _chosen(best: Mapping[str, Any]) -> str:
    value = best.get("value")
    if not isinstance(value, float):
        return "the run's newest; nothing was measured during the training"
    return f"the run's best, by {best.get('metric')} {value:.4g}"


def _loss(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else "unknown"
