"""Problems that only preflight looks for."""

from vidqa.problem import Code, Exit

PACKAGE_OLD = Code(
    "ENV_PACKAGE_OLD",
    "An installed package is older than the engine needs.",
    "Run `make install` in the repository, then use its .venv/bin/python.",
    Exit.ENVIRONMENT,
)
TORCH_PAIR = Code(
    "ENV_TORCH_PAIR",
    "torch and torchvision were not made for each other: importing torchvision would fail.",
    "Install the two together: pip install --upgrade torch torchvision",
    Exit.ENVIRONMENT,
)
DISK_SMALL = Code(
    "ENV_DISK_SMALL",
    "The disk of the output folder has less space than the checkpoints and exports are estimated to need.",
    "Free space, lower train.ckpt.max_keep, or let train.output_dir name another disk.",
    Exit.ENVIRONMENT,
)
OUTPUT_UNWRITABLE = Code(
    "ENV_OUTPUT_UNWRITABLE",
    "The output folder cannot be written.",
    "Let train.output_dir (evaluate: results_dir) name a folder that you may write.",
    Exit.ENVIRONMENT,
)
SHM_SMALL = Code(
    "ENV_SHM_SMALL",
    "/dev/shm is small: several processes on one machine talk through it, and training may end with a bus error.",
    "Give the container more, for example docker run --shm-size=16g.",
    Exit.ENVIRONMENT,
)
NO_LOOPBACK = Code(
    "PLATFORM_NO_LOOPBACK",
    "No port can be opened on 127.0.0.1, where the processes of one machine find each other.",
    "Bring the loopback interface up: ip link set lo up",
    Exit.ENVIRONMENT,
)
MODEL_WEIGHTS_BROKEN = Code(
    "MODEL_WEIGHTS_BROKEN",
    "A safetensors file is cut off, or is not one, or lacks tensors that the model's index places in it.",
    "Download or export the model again.",
)
SPLIT_LEAK = Code(
    "DATA_SPLIT_LEAK",
    "A video or image is both trained on and validated on, so the validation score is too good.",
    "Take the records of these files out of one of the two sets, or use train.train_policy.dataset.test_size.",
)
SPLIT_IDS = Code(
    "DATA_SPLIT_IDS",
    "Records of the training and the validation set have the same id.",
    "Give every record an id of its own if they are meant to be different records.",
)
