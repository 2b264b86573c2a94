"""Problems that only preflight looks for."""

from vidqa.core.problem import Code, Exit

PACKAGE_OLD = Code(
    "ENV_PACKAGE_OLD",
    "An installed package is older than the engine needs, or does not fit another one.",
    "Run `make install` in the repository, then use its .venv/bin/python.",
    Exit.ENVIRONMENT,
)
DISK_SMALL = Code(
    "ENV_DISK_SMALL",
    "A disk has less space than the weights to fetch, the checkpoints and the exports will need.",
    "Free space, lower train.ckpt.max_keep, or let train.output_dir (HF_HOME for the weights) name another disk.",
    Exit.ENVIRONMENT,
)
CACHE_SMALL = Code(
    "ENV_CACHE_SMALL",
    "The frame cache cannot hold the frames, so videos are decoded again in every epoch; or with engine.keep_features "
    "not all features of the vision tower.",
    "Free space, or let engine.frame_cache_dir (VIDQA_CACHE_DIR) name a folder with enough of it.",
    Exit.ENVIRONMENT,
)
SPLIT_LEAK = Code(
    "DATA_SPLIT_LEAK",
    "A video or image, or a copy of it under another name, is both trained on and measured on: the score is too good.",
    "Take the records of these files out of one of the two sets, or use train.train_policy.dataset.test_size.",
)
SPLIT_NEAR = Code(
    "DATA_SPLIT_NEAR",
    "Files of two sets look nearly the same in their first, middle and last frame.",
    "Look at the pairs; where they show the same scene, keep it on one side only.",
)
SPLIT_IDS = Code(
    "DATA_SPLIT_IDS",
    "Records of two sets have the same id.",
    "Give every record an id of its own if they are meant to be different records.",
)
LABELS_UNBALANCED = Code(
    "DATA_LABELS_UNBALANCED",
    "Nearly all answers of one kind of question are the same, so always giving that answer scores well.",
    "Add records with other answers, or read balanced accuracy instead of accuracy.",
)
MACHINE_LIMITS = Code(
    "ENV_MACHINE_LIMITS",
    "A limit or the clock of this machine may end or confuse a job: few open files, a small /dev/shm, or a file server "
    "whose clock differs.",
    "Raise the limit before the launch (ulimit -n 65536; docker run --shm-size=16g), or let both machines take their "
    "time from the same NTP server.",
    Exit.ENVIRONMENT,
)
TIED_ADAPTER = Code(
    "MODEL_TIED_ADAPTER",
    "Head and token embeddings of the model are one matrix, and an adapter on one of them separates the two.",
    "Evaluating here and loading with PEFT are right. Before PEFT merges it, give the head a copy of the embeddings "
    "and set tie_word_embeddings to false; or leave lm_head and embed_tokens out of policy.lora.target_modules.",
)
PAIR_MISMATCH = Code(
    "PAIR_MISMATCH",
    "Training and evaluation have models of other sizes, or see other frames or another system prompt: the scores "
    "would not compare.",
    "Give both specs the same base model, vision table and system prompt; build_spec.py evaluate --parent-run does it.",
)
RESUME_MISMATCH = Code(
    "RESUME_MISMATCH",
    "The data, batch, seed, base model or trained part is not what the checkpoint was trained with: samples would be "
    "repeated or left out, or the saved weights mean something else.",
    "Restore what changed, or start a new run from the earlier run's export.",
)
MEMORY = Code(
    "BUDGET_MEMORY",
    "What the data makes a GPU hold at one time does not fit into its memory: the job would end with CUDA out of "
    "memory.",
    "Make the change that the problem names; it was tried with the same estimate.",
)
ANSWER_LENGTH = Code(
    "BUDGET_ANSWER_LENGTH",
    "Answers of one word are expected, and the most tokens of an answer are many for a model that answers at once, and "
    "few for one that thinks first.",
    "Set generation.max_tokens = 32 for a model that answers at once (an answer that never ends then takes 32 steps), "
    'or 4096 for one that thinks first; evaluation.method = "score" writes nothing.',
)
HOST_MEMORY = Code(
    "BUDGET_HOST_MEMORY",
    "What a job offloads, calibrates with, or copies for saves beside a training is more than the machine's memory.",
    'Set train.ckpt.save_mode = "sync" and train.fsdp_offload = false, or use a machine with more memory.',
)
FIX_EXISTS = Code(
    "FIX_EXISTS",
    "Corrected annotations are only ever written to a new file.",
    "Give --fix the name of a file that does not exist.",
    Exit.REFUSED,
)
FIX_NOTHING_LEFT = Code(
    "FIX_NOTHING_LEFT",
    "No record can be used, so no corrected file was written.",
    "Look at the problems of the data group first: one cause, such as a wrong media path, often explains all.",
)
