"""Problems of a spec, of a parent run, and of a request to train."""

from __future__ import annotations

from vidqa.core.problem import Code, Exit

UNKNOWN_KEY = Code(
    "SPEC_UNKNOWN_KEY", "The spec has a key that no action reads.", "Use one of the names that the problem lists."
)
FILE = Code(
    "SPEC_FILE",
    "A spec, overrides or prompt file cannot be read, or its content is not valid for its name or type.",
    "Give the path of a .toml, .yaml or .json file, and correct the line that the message names.",
)
NOT_SUPPORTED = Code(
    "SPEC_NOT_SUPPORTED",
    "The spec's engine (native, or cosmos-rl in its container) does not support a key or value of the spec.",
    "Use a value that the problem lists, remove the key, or use the other engine: --target native or cosmos-rl.",
)
NO_EFFECT = Code(
    "SPEC_NO_EFFECT", "The key is accepted but has no effect here.", "Remove it, or use the key that the problem names."
)
MODEL_MAX_LENGTH = Code(
    "SPEC_MODEL_MAX_LENGTH",
    "The longest sample exceeds, or may exceed, policy.model_max_length.",
    "Raise policy.model_max_length (40960 suits video), or lower total_pixels, nframes or fps.",
)
ZERO_STEPS = Code(
    "SPEC_ZERO_STEPS",
    "The training set is smaller than one optimizer step, so nothing would be trained.",
    "Lower train.train_batch_per_replica or the number of ranks, or set dataloader_drop_last to false.",
)
DP_MISMATCH = Code(
    "SPEC_DP_MISMATCH",
    "The number of ranks in the spec is not the number of GPUs of the job, or (a warning) each layer's weights are "
    "sharded across nodes and cross the network in every pass.",
    "Set dp_shard_size * cp_size of policy.parallelism to the GPUs per node, if the model fits, and dp_replicate_size "
    "to the number of nodes; for an evaluation, num_gpus to the number of GPUs.",
)
SECRET = Code(
    "SPEC_SECRET",
    "A value of a spec contains a token or a password; specs are copied into run folders.",
    "Remove it. Pass it in the environment: HF_TOKEN, WANDB_API_KEY, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY.",
)
NO_RUN = Code(
    "SPEC_PARENT_RUN",
    "The parent run, or the requested export or checkpoint of it, cannot be found or read.",
    "Give the run folder of a training, which has run.json and safetensors, and a name that the message lists.",
)
AUTOML_NOT_RUNNABLE = Code(
    "AUTOML_NOT_RUNNABLE",
    "A search is requested or enabled but cannot run here.",
    "Run `make generate`, or train directly with --automl off.",
    Exit.ENVIRONMENT,
)
VALUE = Code(
    "SPEC_VALUE",
    "A required value is not set, or a value has the wrong type, is out of range, or (a warning) is far from what "
    "trains well.",
    "Set it to a value of the type and range that the message names.",
)
CONFLICT = Code(
    "SPEC_CONFLICT",
    "Values of a spec contradict each other, or (a warning) one cuts short or overrides another.",
    "Change one of the values that the message names.",
)
MODEL = Code(
    "SPEC_MODEL",
    "An adapter, a run or a bare id is given where a complete model is needed.",
    "Write hf_model://org/name, or a model's folder: RUN/best, RUN/safetensors/NAME, or an adapter merged with "
    "python scripts/export.py RUN --merge --out FOLDER. To use an adapter unmerged, set model.enable_lora and "
    "model.base_model_path, as --parent-run does.",
)
