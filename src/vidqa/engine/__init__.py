"""Training, evaluation and export on GPUs. The only package that imports torch."""

import logging

# Where torchao is installed, every process is told that a later PyTorch will want other calls of it.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
