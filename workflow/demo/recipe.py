"""Training settings of the demo: the values that differ from the template, as a user would write them."""

from __future__ import annotations

TRAIN_CLIPS = 3000
POOL_CLIPS = 4000
# The same frames are taken in training and in evaluation: 8 of them, as 4 tokens (one for each two frames).
VISION = {"nframes": 8, "total_pixels": 4 * 32 * 32}

# Of every training here.
_TRAINING = {
    "train.optm_betas": [0.9, 0.99],  # steadier in so few steps than 0.999
    "dp_shard_size": 1,  # one process: for so small a model two take as long, and each of them has to start
    "train.param_dtype": "float32",
    "train.train_policy.dataloader_num_workers": 1,
    "policy.model_gradient_checkpointing": "false",
}
# Of the tiny model's weights: three times the usual ones learn in 5 epochs what usual ones learn in 8.
GAIN = 3.0
TRAIN = {
    **_TRAINING,
    **{f"custom.vision.{key}": value for key, value in VISION.items()},
    "num_epochs": 5,
    "batch_size": 32,
    "mini_batch": 32,
    "learning_rate": 1e-3,  # new weights: far above what a pretrained model bears
    # Validation clips come from the training set: `best` is chosen without a look at the evaluation set.
    "train.train_policy.dataset.test_size": 0.05,
    "validation.enable": "true",
    "logging.log_interval": 100,
}
EVALUATE = {
    **{f"vision.{key}": value for key, value in VISION.items()},
    "model.dtype": "float32",
    "generation.max_tokens": 8,
    "evaluation.batch_size": 64,
    "num_gpus": 1,
}

# The loop: it goes on from the first training, on what was mined and five times as much of what was there.
LOOP = {
    "sets.kpi_looks": 1,
    "stop.target_kind": "diagonal",
    "stop.target": 0.9,
    "stop.rounds": 2,
    "continue_from": "last",
    "audit": "report",
    "train": "num_epochs=12",
    "words.mine": "--per-gap 12 --max-rows 288",
    "words.assemble": "--replay 5",
}

# Reinforcement learning (workflow/rl). A first training teaches form and colors, and letters that are drawn at random.
RL_CLIPS = 800
_RL_VISION = {"nframes": 4, "total_pixels": 2 * 32 * 32}
RL_SFT = {
    **_TRAINING,
    **{f"custom.vision.{key}": value for key, value in _RL_VISION.items()},
    "custom.train_dataset.response_mode": "think",
    "train.max_num_steps": 200,
    "num_epochs": 10,
    "batch_size": 32,
    "mini_batch": 32,
    "learning_rate": 2e-3,
    "logging.log_interval": 50,
}
# Frames and prompt are those of the first training. 16 questions of 8 completions are a step, four of each letter, so
# that no letter is frequent in a step by accident.
RL = {
    **_TRAINING,
    "reward_function": "{accuracy = 1.0, format = 0.2}",
    "n_generation": 8,
    "max_response_length": 16,
    "batch_size": 128,
    "num_epochs": 4,
    "engine.balance": "label",
    "learning_rate": 1e-3,
    "train.optm_decay_type": "none",
    "train.optm_warmup_steps": 0,
    "logging.log_interval": 10,
}
RL_EVALUATE = {**EVALUATE, **{f"vision.{key}": value for key, value in _RL_VISION.items()}, "generation.max_tokens": 16}
