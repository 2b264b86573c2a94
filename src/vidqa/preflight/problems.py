"""Problems that only preflight detects."""

from vidqa.core.problem import Code, Exit

SPLIT_LEAK = Code(
    "DATA_SPLIT_LEAK",
    "A video or image, or a copy of it under another name, is both trained on and measured on: the score is too good. "
    "As a warning: records of two sets have the same id.",
    "Take the records of these files out of one of the two sets, or use train.train_policy.dataset.test_size. Give "
    "different records ids of their own.",
)
SPLIT_NEAR = Code(
    "DATA_SPLIT_NEAR",
    "Files of two sets look nearly the same in their first, middle and last frame.",
    "Look at the pairs; where they show the same scene, keep it on one side only.",
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
MEMORY = Code(
    "BUDGET_MEMORY",
    "What the data makes a GPU hold at one time does not fit into its memory: the job would end with CUDA out of "
    "memory. Or what a job offloads, calibrates with, or copies for saves does not fit into the machine's.",
    "Make the change that the problem names; it was estimated, too.",
)
ANSWER_LENGTH = Code(
    "BUDGET_ANSWER_LENGTH",
    "Answers of one word are expected, and the most tokens of an answer are many for a model that answers at once, and "
    "few for one that thinks first.",
    "Set generation.max_tokens = 32 for a model that answers at once (an answer that never ends then takes 32 steps), "
    'or 4096 for one that thinks first; evaluation.method = "score" writes nothing.',
)
