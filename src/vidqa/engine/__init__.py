"""Training, evaluation and export on GPUs. The only package that imports torch."""

import logging

# To every process torchao says, by way of PyTorch, that a later PyTorch will want other calls of it.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
