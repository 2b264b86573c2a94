"""What can be wrong with a spec, with a run that is a parent, and with a request to train."""

from __future__ import annotations

from vidqa.contract.problem import Code, Exit

UNKNOWN_KEY = Code(
    "SPEC_UNKNOWN_KEY", "The spec has a key that no action reads.", "Use one of the names that it lists."
)
TYPE = Code("SPEC_TYPE", "A value has the wrong type.", "Write a value of the type that it names.")
RANGE = Code("SPEC_RANGE", "A value is outside what is possible.", "Write a value inside the limits that it names.")
SYNTAX = Code(
    "SPEC_SYNTAX",
    "A file is not the TOML, YAML or JSON it is named for, or a value is one that no file can hold.",
    "Correct the line that it names.",
)
FILE = Code(
    "SPEC_FILE",
    "A spec or override file cannot be read, or its name does not say its format.",
    "Give the path of a .toml, .yaml or .json file.",
)
UNWRITABLE = Code(
    "SPEC_UNWRITABLE",
    "The spec cannot be written into this file.",
    "Give --out a file in a folder that you may write to, on a disk with free space.",
    Exit.ENVIRONMENT,
)
PROFILE = Code("SPEC_PROFILE", "There is no profile of this name.", "Use full, frozen-vision or lora.")
ROOT = Code(
    "SPEC_ROOT",
    "A data root has no annotations.json.",
    "Put annotations.json there, or set annotation path and media path one by one with --set.",
)
REQUIRED = Code("SPEC_REQUIRED", "A key without which nothing can run is empty.", "Set it.")
HUB_NAME = Code(
    "SPEC_HUB_NAME",
    "An upload to the hub is asked for, and no repository is named.",
    "Set train.ckpt.hf_repo_name to organisation/name, or to a name in the token's own namespace.",
)
BENCHMARK_FILE = Code(
    "SPEC_BENCHMARK_FILE",
    "A configuration of Cosmos-Reason1's benchmark is no spec: it names subsets, not one set.",
    "Give it to scripts/run_benchmark.py --config FILE.",
)
MODEL_ADAPTER = Code(
    "SPEC_MODEL_ADAPTER",
    "A LoRA adapter is named where a whole model is needed.",
    "Merge it with scripts/export.py RUN --merge --out FOLDER and name FOLDER. To ask it or to evaluate it, set "
    "model.enable_lora and model.base_model_path, as --parent-run does.",
)
MODEL_RUN = Code(
    "SPEC_MODEL_RUN",
    "A run is named where the folder of a model is needed.",
    "Name one of its exports: RUN/best, or RUN/safetensors/NAME.",
)
FPS_AND_NFRAMES = Code(
    "SPEC_FPS_AND_NFRAMES",
    "Both a frame rate and a number of frames are asked for.",
    "Keep one: fps for clips of different length, nframes for the same cost per clip.",
)
NO_SAMPLING = Code(
    "SPEC_NO_SAMPLING", "Neither a frame rate nor a number of frames is given.", "Set nframes (8) or fps (2)."
)
SHARE_UNPACKED = Code(
    "SPEC_SHARE_UNPACKED",
    "Videos can be shared only inside packs, and packing is off.",
    "Set engine.packing = true, or engine.share_video_prefix = false.",
)
FP8 = Code(
    "SPEC_FP8",
    "8-bit products are asked for together with LoRA, whose frozen matrices they do not make faster.",
    "Set train.fp8.enable_fp8 = false, or leave policy.lora out.",
)
WARMUP_TWICE = Code(
    "SPEC_WARMUP_TWICE", "Warm-up is given in steps and in epochs.", "Keep optm_warmup_steps or optm_warmup_epochs."
)
WARMUP_LONG = Code("SPEC_WARMUP_LONG", "The learning rate is still rising when training ends.", "Shorten the warm-up.")
NOT_SFT = Code(
    "SPEC_NOT_SFT",
    "The kind of training is not supervised fine-tuning.",
    "Use the action grpo for reinforcement learning (AutoML searches no values for it), or set train.train_policy.type "
    'to "sft".',
)
NOT_GRPO = Code(
    "SPEC_NOT_GRPO",
    "The kind of training is not GRPO.",
    'Use the action train for supervised fine-tuning, or set train.train_policy.type to "grpo".',
)
GROUP_SIZE = Code(
    "SPEC_GROUP_SIZE", "A group of completions is too small to compare them.", "Set rollout.n_generation to 8."
)
GROUP_BATCH = Code(
    "SPEC_GROUP_BATCH",
    "A batch of completions is not a whole number of groups.",
    "Make train.train_batch_per_replica a multiple of rollout.n_generation.",
)
TEMPERATURES = Code(
    "SPEC_TEMPERATURES",
    "Completions are drawn at another temperature than they are trained at.",
    "Set one of the two, or both alike.",
)
GRPO_UNSUPPORTED = Code(
    "SPEC_GRPO_UNSUPPORTED", "GRPO is not possible with a setting that supervised training has.", "Change it."
)
REWARD = Code(
    "SPEC_REWARD",
    "A reward is not known.",
    "Name accuracy, format, format_strict, number, distance, token_f1 or FILE.py:FUNCTION.",
)
PARENT_ADAPTER = Code(
    "SPEC_PARENT_ADAPTER",
    "Reinforcement learning starts from a whole model, so that the trained model is its reference.",
    "Merge the adapter into its base with scripts/export.py --merge.",
)
NOT_SUPPORTED = Code(
    "SPEC_NOT_SUPPORTED",
    "cosmos-rl has this, our own engine does not.",
    "Use a value that it lists, or write the spec for cosmos-rl with --target cosmos-rl.",
)
NO_EFFECT = Code(
    "SPEC_NO_EFFECT", "The key is accepted and changes nothing here.", "Remove it, or use the key that it names."
)
NOT_IN_TARGET = Code(
    "SPEC_NOT_IN_TARGET", "cosmos-rl has no key for what the spec asks.", "Remove the key, or run with our own engine."
)
BATCH_NOT_DIVISIBLE = Code(
    "SPEC_BATCH_NOT_DIVISIBLE",
    "The batch per rank is not a multiple of the micro-batch.",
    "Change train.train_batch_per_replica or train.train_policy.mini_batch.",
)
MODEL_MAX_LENGTH = Code(
    "SPEC_MODEL_MAX_LENGTH",
    "The longest sample does not fit, or may not fit, into policy.model_max_length.",
    "Raise policy.model_max_length (40960 suits video), or lower total_pixels, nframes or fps.",
)
PACK_TOKENS = Code(
    "SPEC_PACK_TOKENS", "A sample is longer than one pack.", "Raise engine.pack_tokens, or leave it unset."
)
ZERO_STEPS = Code(
    "SPEC_ZERO_STEPS",
    "The training set is smaller than one optimizer step, so nothing would be trained.",
    "Lower train.train_batch_per_replica or the number of ranks, or set dataloader_drop_last to false.",
)
MAX_STEPS_UNREACHED = Code(
    "SPEC_MAX_STEPS_UNREACHED",
    "The epochs are over before train.max_num_steps is reached: it is an upper bound, as in cosmos-rl.",
    "Raise train.epoch for that many steps, or leave train.max_num_steps out.",
)
PARENT_STEPS = Code(
    "SPEC_PARENT_STEPS",
    "The epochs of an earlier run are kept, and with this data they are another number of steps than there.",
    "Nothing, for as many passes over the data; for another number of steps set train.epoch or train.max_num_steps.",
)
NO_VALIDATION_SET = Code(
    "SPEC_NO_VALIDATION_SET",
    "Validation is asked for and there is nothing to validate on.",
    "Set custom.val_dataset, or train.train_policy.dataset.test_size (0.1), or validation.enable to false.",
)
VALIDATION_UNUSED = Code(
    "SPEC_VALIDATION_UNUSED",
    "A validation set is given in a way that leaves it, or part of it, unused.",
    "Set validation.enable to true, or keep only one of the two sources.",
)
VALIDATION_NEVER = Code(
    "SPEC_VALIDATION_NEVER", "Validation is on and never due.", "Set validation.freq or validation.freq_in_epoch."
)
BARE_MODEL_ID = Code(
    "SPEC_BARE_MODEL_ID",
    "A model is named in a way that every rank would have to fetch at run time.",
    "Write hf_model://org/name, or the path of a folder that exists.",
)
LR_ZERO = Code(
    "SPEC_LR_ZERO", "The learning rate is 0, so nothing would be learned.", "Set train.optm_lr, such as 1e-5."
)
LR_HIGH = Code(
    "SPEC_LR_HIGH",
    "The learning rate is so high that the loss is likely to become NaN.",
    "Lower train.optm_lr: about 1e-5 for a full fine-tune, 1e-4 for LoRA.",
)
LORA_NO_TARGETS = Code(
    "SPEC_LORA_NO_TARGETS", "LoRA adapts no module.", "Set policy.lora.target_modules, such as all-linear."
)
LORA_OVERLAP = Code(
    "SPEC_LORA_OVERLAP",
    "A module would train in full and with an adapter.",
    "Take it out of policy.lora.target_modules or policy.lora.modules_to_save.",
)
LORA_NO_BASE = Code(
    "SPEC_LORA_NO_BASE", "An adapter is asked without a base model.", "Set model.base_model_path to its base model."
)
WINDOW_OVERLAP = Code(
    "SPEC_WINDOW_OVERLAP",
    "Windows of a video have all of their time, or more, in common with the window before.",
    "Set inference.overlap_s below inference.window_s, for example window_s = 30 and overlap_s = 5.",
)
PATTERN = Code("SPEC_PATTERN", "A pattern is not a regular expression.", "Correct it; names are searched, not matched.")
FREEZE_AND_TRAIN = Code(
    "SPEC_FREEZE_AND_TRAINABLE",
    "policy.freeze_pattern and policy.trainable_pattern are both given.",
    "Keep one: what does not train, or the only things that train.",
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
CONTEXT_HEADS = Code(
    "SPEC_CONTEXT_HEADS",
    "The GPUs that share each pack cannot share the model's key heads, of which each of them takes as many.",
    "Set policy.parallelism.cp_size to a divisor of the number of key heads; with 1 each GPU has packs of its own.",
)
SECRET = Code(
    "SPEC_SECRET",
    "A value of a spec holds a token or a password; specs are copied into run folders.",
    "Take it out. Tokens are passed by name: HF_TOKEN, WANDB_API_KEY, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
)
CONTROL_CHARACTER = Code(
    "SPEC_CONTROL_CHARACTER",
    "A name or path of a spec holds a line break or another control character; scripts are written with it.",
    "Rename the file or folder; a prompt alone may have several lines.",
)
VIDEO_FPS_REQUIRED = Code(
    "SPEC_VIDEO_FPS_REQUIRED",
    "cosmos-rl samples by fps and the annotations do not give every video's own frame rate.",
    "Add video_fps to every record with a video, or use custom.vision.nframes.",
)
NO_RUN = Code("SPEC_PARENT_RUN", "The parent run cannot be found or read.", "Give the folder that holds its run.json.")
NO_EXPORT = Code(
    "SPEC_PARENT_EXPORT",
    "The parent run has no export of that name.",
    "Name one that it lists, or ask for latest.",
)
NO_CHECKPOINT = Code(
    "SPEC_PARENT_CHECKPOINT",
    "The parent run has no checkpoint of that name.",
    "Name one that it lists, or ask for latest.",
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
VISION_BOUNDS = Code(
    "SPEC_VISION_BOUNDS",
    "Two keys of how frames are taken contradict each other.",
    "Set resized_height and resized_width together and no bound in pixels beside them; let every lower bound be below "
    "its upper one; use min_frames and max_frames with fps alone.",
)
PROMPT_FILE = Code(
    "SPEC_PROMPT_FILE",
    "A prompt file holds something that cannot be taken over.",
    "A prompt file is YAML with system_prompt and user_prompt (texts) and sampling_params (a table).",
)
QUANTIZE_METHOD = Code(
    "SPEC_QUANTIZE_METHOD",
    "A scheme cannot be rounded by the method that is asked for.",
    "Leave quantize.method at auto.",
)
QUANTIZE_SAMPLES = Code(
    "SPEC_QUANTIZE_SAMPLES",
    "Too few samples are asked for to calibrate on.",
    "Set quantize.num_calibration_samples to 64 or more; quantize.force = true takes 16 and more.",
)
