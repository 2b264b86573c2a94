"""Training, evaluation and export on GPUs. The only package that imports torch."""

import logging

# If torchao is installed, this logger warns in every process about calls that a later PyTorch will change.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
# PEFT imports bitsandbytes if it is installed, which then suggests installing another package of CPU kernels.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
