"""Problems that only preflight detects."""

from vidqa.core.problem import Code, Exit

SPLIT_LEAK = Code(
    "DATA_SPLIT_LEAK",
    "A video or image, or a copy of it under another name, is in the training set and in a validation or evaluation "
    "set, so the score is too high. As a warning: records of two sets have the same id, or an evaluation has "
    "records from which its model has learned.",
    "Remove the records of these files from one of the two sets, or split one set with python scripts/split_dataset.py "
    "(a validation set also with train.train_policy.dataset.test_size). Give different records different ids.",
)
SPLIT_NEAR = Code(
    "DATA_SPLIT_NEAR",
    "Files of two sets look nearly the same in their first, middle and last frame.",
    "Look at the pairs; if they show the same scene, keep it in one set only.",
)
LABELS_UNBALANCED = Code(
    "DATA_LABELS_UNBALANCED",
    "Nearly all answers of one kind of question are the same, so always giving that answer scores well.",
    "Add records with other answers, or read balanced accuracy instead of accuracy.",
)
MACHINE_LIMITS = Code(
    "ENV_MACHINE_LIMITS",
    "A limit or the clock of this machine may stop or disturb a job: few open files, a small /dev/shm, or a file "
    "server whose clock differs.",
    "Raise the limit before the launch (ulimit -n 65536; docker run --shm-size=16g), or synchronize both machines with "
    "the same NTP server.",
    Exit.ENVIRONMENT,
)
TIED_ADAPTER = Code(
    "MODEL_TIED_ADAPTER",
    "Head and token embeddings of the model share one matrix, and an adapter on one of them separates the two.",
    "Evaluating here and loading with PEFT are correct. Before merging with PEFT, give the head a copy of the "
    "embeddings and set tie_word_embeddings to false; or remove lm_head and embed_tokens from "
    "policy.lora.target_modules.",
)
MEMORY = Code(
    "BUDGET_MEMORY",
    "The predicted peak memory exceeds the GPU's memory, so the job would fail with CUDA out of memory. Or the machine "
    "has too little memory for what a job offloads, calibrates with, or copies for saves.",
    "Make the change that the problem names; its memory was estimated, too.",
)
ANSWER_LENGTH = Code(
    "BUDGET_ANSWER_LENGTH",
    "Answers of one word are expected, and generation.max_tokens is high for a model that answers at once, and low for "
    "one that reasons first.",
    "Set generation.max_tokens = 32 for a model that answers at once (an answer that never ends then takes 32 steps), "
    'or 4096 for one that reasons first; evaluation.method = "score" generates nothing.',
)
