"""What can be wrong with a spec, with a run that is a parent, and with a request to train."""

from __future__ import annotations

from vidqa.core.problem import Code, Exit

UNKNOWN_KEY = Code(
    "SPEC_UNKNOWN_KEY", "The spec has a key that no action reads.", "Use one of the names that it lists."
)
FILE = Code(
    "SPEC_FILE",
    "A file of a spec, its overrides or a prompt cannot be read, or holds what its name or kind does not allow.",
    "Give the path of a .toml, .yaml or .json file, and correct the line that it names.",
)
UNWRITABLE = Code(
    "SPEC_UNWRITABLE",
    "The spec cannot be written into this file.",
    "Give --out a file in a folder that you may write to, on a disk with free space.",
    Exit.ENVIRONMENT,
)
REQUIRED = Code("SPEC_REQUIRED", "A key without which nothing can run is empty.", "Set it.")
NOT_SUPPORTED = Code(
    "SPEC_NOT_SUPPORTED",
    "cosmos-rl has this, our own engine does not.",
    "Use a value that it lists, or write the spec for cosmos-rl with --target cosmos-rl.",
)
NO_EFFECT = Code(
    "SPEC_NO_EFFECT", "The key is accepted and changes nothing here.", "Remove it, or use the key that it names."
)
NOT_IN_TARGET = Code(
    "SPEC_NOT_IN_TARGET",
    "cosmos-rl has no key for what the spec asks, or its container cannot do it.",
    "Remove the key or change what the message names, or run with our own engine.",
)
MODEL_MAX_LENGTH = Code(
    "SPEC_MODEL_MAX_LENGTH",
    "The longest sample does not fit, or may not fit, into policy.model_max_length.",
    "Raise policy.model_max_length (40960 suits video), or lower total_pixels, nframes or fps.",
)
ZERO_STEPS = Code(
    "SPEC_ZERO_STEPS",
    "The training set is smaller than one optimizer step, so nothing would be trained.",
    "Lower train.train_batch_per_replica or the number of ranks, or set dataloader_drop_last to false.",
)
LR_HIGH = Code(
    "SPEC_LR_HIGH",
    "The learning rate is so high that the loss is likely to become NaN.",
    "Lower train.optm_lr: about 1e-5 for a full fine-tune, 1e-4 for LoRA.",
)
DP_MISMATCH = Code(
    "SPEC_DP_MISMATCH",
    "The ranks of the spec are not the GPUs of the job.",
    "Let dp_shard_size * cp_size of policy.parallelism be the GPUs per node and dp_replicate_size the nodes; of an "
    "evaluation, num_gpus the GPUs.",
)
SHARDS_CROSS_NODES = Code(
    "SPEC_SHARDS_CROSS_NODES",
    "GPUs of several nodes share each layer's weights, which then cross the network in every pass.",
    "Let dp_shard_size x cp_size be the GPUs of a node and dp_replicate_size the nodes, if the model fits so.",
)
SECRET = Code(
    "SPEC_SECRET",
    "A value of a spec holds a token or a password; specs are copied into run folders.",
    "Take it out. Tokens are passed by name: HF_TOKEN, WANDB_API_KEY, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
)
NO_RUN = Code(
    "SPEC_PARENT_RUN",
    "The parent run, or what is asked for of it, cannot be found or read.",
    "Give the folder that holds run.json, and a name that the message lists.",
)
AUTOML_NO_SEARCH = Code(
    "AUTOML_NO_SEARCH",
    "A hyper-parameter search was asked for, or is enabled, and this copy of the skill says that it cannot run one.",
    "Train directly with --automl off, or set automl.runnable in config.json where run_automl.py is there.",
)
AUTOML_NOT_RUNNABLE = Code(
    "AUTOML_NOT_RUNNABLE",
    "AutoML is enabled and cannot run.",
    "Run `make generate`, or train directly with --automl off.",
    Exit.ENVIRONMENT,
)
VALUE = Code(
    "SPEC_VALUE",
    "A value has the wrong type, or is outside what is possible.",
    "Write a value of the type and inside the limits that it names.",
)
CONFLICT = Code(
    "SPEC_CONFLICT", "Two values of a spec contradict each other.", "Change one of the values that it names."
)
MODEL = Code(
    "SPEC_MODEL",
    "Where a whole model is needed, an adapter, a run or a bare id is named.",
    "Write hf_model://org/name, or a model's folder: RUN/best, RUN/safetensors/NAME, or an adapter that "
    "scripts/export.py "
    "RUN --merge --out FOLDER has merged. To ask an adapter, set model.enable_lora and model.base_model_path, as "
    "--parent-run does.",
)
TRAINING_KIND = Code(
    "SPEC_TRAINING_KIND",
    "The kind of training is another than that of the action.",
    "Use the action train for supervised fine-tuning, the action grpo for reinforcement learning (AutoML searches no "
    'values for it), or set train.train_policy.type to "sft" or "grpo".',
)
STEPS = Code(
    "SPEC_STEPS",
    "The steps of the training are not those that its keys suggest.",
    "Set train.epoch, train.max_num_steps (an upper bound) or the warm-up as the message says; for as many passes over "
    "the data as in an earlier run, nothing.",
)
