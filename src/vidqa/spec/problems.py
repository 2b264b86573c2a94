"""Problems of a spec, of a parent run, and of a request to train."""

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
NOT_SUPPORTED = Code(
    "SPEC_NOT_SUPPORTED",
    "The engine that the spec is for, our own or cosmos-rl in its container, does not have what the spec asks.",
    "Use a value that it lists, remove the key, or write the spec for the other engine: --target native or cosmos-rl.",
)
NO_EFFECT = Code(
    "SPEC_NO_EFFECT", "The key is accepted and changes nothing here.", "Remove it, or use the key that it names."
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
DP_MISMATCH = Code(
    "SPEC_DP_MISMATCH",
    "The ranks of the spec are not the GPUs of the job, or (a warning) GPUs of several nodes share each layer's "
    "weights, which then cross the network in every pass.",
    "Let dp_shard_size * cp_size of policy.parallelism be the GPUs per node, if the model fits so, and "
    "dp_replicate_size the nodes; of an evaluation, num_gpus the GPUs.",
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
AUTOML_NOT_RUNNABLE = Code(
    "AUTOML_NOT_RUNNABLE",
    "A search was asked for, or is enabled, and cannot run here.",
    "Run `make generate`, or train directly with --automl off.",
    Exit.ENVIRONMENT,
)
VALUE = Code(
    "SPEC_VALUE",
    "A value that is needed is not set, has the wrong type, is outside what is possible, or (a warning) is far from "
    "what trains well.",
    "Set it to a value of the type and inside the limits that the message names.",
)
CONFLICT = Code(
    "SPEC_CONFLICT",
    "Values of a spec contradict each other, or (a warning) one ends or outweighs what another asks.",
    "Change one of the values that it names.",
)
MODEL = Code(
    "SPEC_MODEL",
    "Where a whole model is needed, an adapter, a run or a bare id is named.",
    "Write hf_model://org/name, or a model's folder: RUN/best, RUN/safetensors/NAME, or an adapter that "
    "scripts/export.py RUN --merge --out FOLDER has merged. To ask an adapter, set model.enable_lora and "
    "model.base_model_path, as --parent-run does.",
)
