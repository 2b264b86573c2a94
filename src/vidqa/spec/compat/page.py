"""The reference page on moving here: what becomes of the keys, files and run folders that users bring."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vidqa.spec.compat.moved import (
    OF_THEIR_LOADERS,
    OF_THEIR_PROCESSES,
    REINFORCEMENT_KEYS,
    REINFORCEMENT_TABLES,
    RENAMED,
)
from vidqa.spec.keys import leaves
from vidqa.spec.native import facts
from vidqa.spec.pages import GENERATED, row

TEXT = f"""# Moving here from cosmos-rl, Cosmos-Reason and other trainers

{GENERATED}

Read it when a user brings a training spec, a run folder or data of another program.

```bash
python scripts/build_spec.py train --override sft.toml --model hf_model://nvidia/Cosmos-Reason2-2B --out train.toml
python scripts/preflight.py --spec train.toml --platform local
```

Keys have the names of cosmos-rl and TAO, so a TOML file of theirs is an override file. Every key is taken, moved, or
named with what to write instead; none is ignored in silence. `--model` is needed because their files name a bare id,
which every rank would fetch at run time. Tests build the specs that Cosmos-Reason1, Cosmos-Reason2 and the cookbook
publish.

## Specs, one by one

| published spec | here |
|---|---|
| Cosmos-Reason2: LLaVA, data set folder; Cosmos-Reason1: SFT data set of the hub | works with `--model` |
| cookbook: traffic questions, wafer maps, warehouse images, temporal localization, physical plausibility (SFT) | \
works with `--model` |
| the base spec without data | add `--train-root DATA` |
| captions of driving videos | set `custom.val_dataset.annotation_path` or `test_size`: it validates on data that \
its own loader makes |
| collisions (Nexar) | set `policy.parallelism.tp_size=1`, `pp_size=1` and `dp_shard_size` to the number of GPUs |
| grounding in 3D | `custom.dataset.dataset_root` and `meta_file` belong to its own loader: write a function that \
yields the records, and set `custom.loader` |
| Cosmos-Reason1: `rl.toml` (GRPO) | `build_spec.py grpo --override rl.toml --model NAME`; `train` refuses it \
(`SPEC_NOT_SFT`), as `grpo` refuses one of supervised training (`SPEC_NOT_GRPO`) |

## Keys that stand elsewhere here

| there | here |
|---|---|
{{moved}}
| `train.train_policy.dataset.name`, `subset`, `split`, `revision` | `custom.train_dataset.annotation_path`: \
`FOLDER#SUBSET:SPLIT`, or `hf_dataset://NAME@REVISION#SUBSET:SPLIT` of the hub |
| `train.train_policy.dataset.test_size = 0` | unset: nothing is held out |
| a list of equal `optm_lr`, `optm_impl` or `optm_name`, one for each part of a model | the one value |
| a loader of one's own (--dataset FILE) | `custom.loader = "FILE.py:FUNCTION"`, a function that yields records |

`custom.vision` is theirs, with all its keys. Their loader overwrites `total_pixels` with what the length allows
(`model_max_length` x 1024 x 0.9); here it stays as written, and a sample that is too long is named before the job.
Their loader also bounds the tokens of every frame of a video: `cap_pixels_per_frame = true` does so here.
`model_max_length = 4096`, as in their examples, is too short for most videos: preflight says so, 40960 suits.

The learning rate rises otherwise: of `optm_warmup_steps` = w steps the first one has `optm_lr` / w here and 0 there
(plus the part that `optm_warmup_start_factor` gives), the last one `optm_lr` in both.

## Keys of which one value alone is taken

{{only}}

## Keys that change nothing here

Accepted with the warning `SPEC_NO_EFFECT`.

{{idle}}

## Reinforcement learning of cosmos-rl

`build_spec.py grpo` takes `rl.toml` as it is ([page](rl.md)). What differs:

* `cosmos_grpo.py` and `--dataset FILE` hold the set and the rewards as classes. Here records with `qa_pairs` are read
  as they are, also of `nvidia/Cosmos-Reason1-RL-Dataset` by its name, and `reward_function` names the rewards.
* Their prompt asks for `<think> </think> <answer> </answer>` behind the choices. Here `custom.system_prompt` says so.
* `single_choice` is what an evaluation counts as right, not equality of texts. `format` takes any space between the two
  tags; `format_strict` wants an empty line, which their prompt does not ask for.
* The unset one of the two temperatures follows the other. There, `rl.toml` draws at 1 and trains at 0.9.
* A reward of one's own, `fn(to_be_evaluated, reference, ...)` there, is `FUNCTION(text, record, token_ids,
  finish_reason)`; the reference is `record.answer`.
* `train_batch_per_replica` counts the completions of a step over all GPUs; there is no second set of GPUs for rollouts.

Only one value of these is taken, with `grpo`:

{{only_grpo}}

These change nothing with `grpo` (`SPEC_NO_EFFECT`):

{{idle_grpo}}

With `train`, an error, or a warning in a file whose `train.train_policy.type` is `"sft"`, as a run's own resolved
`config.toml` is: {{reinforcement}}.

## Run folders

| there | here |
|---|---|
| `OUTPUT/TIME/safetensors/step_N`, `epoch_N`, `final` | `--parent-run OUTPUT` with `--which step_N`, `final` or \
`latest` |
| `OUTPUT/TIME/best`, or `OUTPUT/best` with links, absolute or of another machine | `--parent-run OUTPUT`; a best \
that names nothing that is kept is an error, which lists what there is |
| several times in one OUTPUT, as every restart leaves | name one: `--parent-run OUTPUT/TIME` |
| `OUTPUT/TIME/config.toml`, resolved, with every key | `--override OUTPUT/TIME/config.toml` |
| checkpoints (`checkpoints/step_N/policy`, pickles of each rank) | not read; their exports are |

To evaluate, use `--parent-run`. To train on, start from the export, with a new optimizer state; RUN is `OUTPUT/TIME`:

```bash
python scripts/build_spec.py train --override RUN/config.toml --model RUN/safetensors/final --out more.toml
```

## LLaMA-Factory, ms-swift, TRL

Their records are read as they are: `conversations` (from, value) or `messages` (role, content) with `videos` or
`images` beside them and `<video>` or `<image>` in the text, and `messages` whose content is a list of parts; `system`,
and `loss`, `weight` or `train` of a turn, too. Keys without a meaning here are named (`DATA_KEY_UNUSED`). Their
settings are written anew; the names differ, the meanings do not:

| LLaMA-Factory | ms-swift | TRL | here |
|---|---|---|---|
| `learning_rate` | learning_rate | `learning_rate` | `train.optm_lr` |
| `num_train_epochs` | num_train_epochs | `num_train_epochs` | `train.epoch` |
| `per_device_train_batch_size` x `gradient_accumulation_steps` | the same | the same | \
`train.train_batch_per_replica` |
| `cutoff_len` | max_length | `max_length` | `policy.model_max_length`, which never cuts |
| `lora_rank`, `lora_alpha` | lora_rank, lora_alpha | `LoraConfig(r, lora_alpha)` | `policy.lora.r`, \
`policy.lora.lora_alpha` |
| `freeze_vision_tower` | freeze_vit | - | `--profile frozen-vision` |
| `video_fps`, `video_maxlen` | FPS, FPS_MAX_FRAMES | - | `custom.vision.fps`, `custom.vision.max_frames` |
| `video_max_pixels` | VIDEO_MAX_PIXELS | - | `custom.vision.max_pixels` |
| `val_size` | split_dataset_ratio | - | `train.train_policy.dataset.test_size` |
| `deepspeed`, `fsdp` | deepspeed | `fsdp` | `policy.parallelism.dp_shard_size`, the number of GPUs |

Of their GRPO, and that of verl and EasyR1 (`actor.` is `actor_rollout_ref.actor.` or `worker.actor.`):

| TRL, ms-swift | EasyR1 | verl | here |
|---|---|---|---|
| `num_generations` | `worker.rollout.n` | `rollout.n` | `rollout.n_generation` |
| `generation_batch_size`, completions | `data.rollout_batch_size` x n | `data.train_batch_size` x n | \
`train.train_batch_per_replica` |
| `num_iterations` | `actor.ppo_epochs` | `actor.ppo_epochs` | `train.train_policy.mu_iterations` |
| `per_device_train_batch_size` x `gradient_accumulation_steps` x GPUs | `actor.global_batch_size` x n | \
`actor.ppo_mini_batch_size` x n | `train.train_policy.batch_size_per_optimize` |
| `max_completion_length` | `data.max_response_length` | `data.max_response_length` | `rollout.max_response_length` |
| `max_prompt_length` | `data.max_prompt_length` | `data.max_prompt_length` | `policy.model_max_length` less the \
completion; nothing is cut |
| `temperature` | `worker.rollout.temperature` | `rollout.temperature` | `train.train_policy.temperature` |
| `beta` | `algorithm.kl_coef` | `actor.kl_loss_coef` with `use_kl_loss` | `train.train_policy.kl_beta` |
| `epsilon`, `epsilon_high` | `actor.clip_ratio_low`, `_high` | the same | `train.train_policy.epsilon_low`, `_high` |
| - | `actor.clip_ratio_dual` | `actor.clip_ratio_c` | `train.train_policy.lower_bound_ratio` |
| `loss_type`: `dapo`, `grpo`, `dr_grpo` | `actor.loss_avg_mode` | `actor.loss_agg_mode` | `loss_type`: `token-mean`, \
`seq-mean-token-mean`, `seq-mean-token-sum` with `unbiased_loss_max_tokens` |
| `scale_rewards = "none"` | - | `algorithm.norm_adv_by_std_in_grpo = false` | `unbiased_advantage = true` |
| `importance_sampling_level = "sequence"` | - | `policy_loss.loss_mode = "gspo"` | `variant = "gspo"` |
| `dynamic_sample`, `max_resample_times` (ms-swift) | `algorithm.online_filtering`, `filter_key` | \
`algorithm.filter_groups` | `variant = "dapo"`, `filter_reward_metric`, `max_retry_for_on_policy` |
| `mask_truncated_completions`, `overlong_filter` | - | - | `engine.truncated = "mask"` |
| `soft_max_length`, `soft_cache_length` (ms-swift) | - | `overlong_buffer` | `overlong_reward` |
| `reward_funcs`, `reward_weights` | `worker.reward.reward_function` | `custom_reward_function` | `reward_function`, a \
table of weights |
| `vllm_importance_sampling_cap` | - | `rollout_is_threshold` | `behav_imp_weight_cap` |

Refused: `top_p`, `top_k` and `repetition_penalty` of rollouts (`SPEC_NOT_SUPPORTED`: ratios would be biased), a reward
model (`SPEC_NOT_SUPPORTED`, `SPEC_REWARD`), tools and turns (`SPEC_UNKNOWN_KEY`). `use_vllm`, `sleep_level` and offload
switches have no counterpart: rollouts need no second program. Losses `bnpo`, `cispo`, `sapo`, an entropy bonus and
`scale_rewards = "batch"` are not there.

Merged models of theirs are ordinary folders for `--model`; an adapter of PEFT is one for an evaluation.
"""


def migrating_page() -> str:
    """Markdown with a line for every key that is not simply the same."""
    moved = [row(f"`{there}`", f"`{here}`") for there, here in RENAMED.items()]
    moved += [row(f"`{there}`", what) for there, what in OF_THEIR_LOADERS.items()]
    train, grpo = leaves("train"), leaves("grpo")
    alike = {path for path in train.keys() & grpo.keys() if _taken(train[path]) == _taken(grpo[path])}
    own = {path: field for path, field in grpo.items() if path not in alike and not path.startswith("engine.")}
    return TEXT.format(
        moved="\n".join(moved),
        only=_only(train),
        idle=_idle(train),
        only_grpo=_only(own),
        idle_grpo=_idle(own),
        reinforcement=", ".join(_reinforcement()),
    )


def _taken(field: Any) -> tuple[Any, Any]:
    """What of a key's values is taken, and what takes its place."""
    about = facts(field)
    return about["x-native"], about.get("x-instead")


def _only(keys: Mapping[str, Any]) -> str:
    lines = ["| key | taken | instead |", "|---|---|---|"]
    for path, field in keys.items():
        about = facts(field)
        if isinstance(about["x-native"], dict):
            only = about["x-native"]["only"]
            taken = only if isinstance(only, str) else ", ".join(map(json.dumps, only))
            lines.append(row(f"`{path}`", taken, _instead(about.get("x-instead"))))
    return "\n".join(lines)


def _idle(keys: Mapping[str, Any]) -> str:
    lines = ["| key | what it says there | instead |", "|---|---|---|"]
    for path, field in keys.items():
        about = facts(field)
        if about["x-native"] == "no effect":
            lines.append(row(f"`{path}`", field.description or "", _instead(about.get("x-instead"))))
    return "\n".join(lines)


def _instead(name: str | None) -> str:
    return f"`{name}`" if name and " " not in name else name or ""


def _reinforcement() -> list[str]:
    tables = [f"`{name}`" for name in (*REINFORCEMENT_TABLES, *OF_THEIR_PROCESSES)]
    return tables + [f"in `{table}` {', '.join(keys.split())}" for table, keys in REINFORCEMENT_KEYS.items()]
