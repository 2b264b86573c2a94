"""Training, evaluation and export on GPUs. The only package that imports torch."""

import logging

# With torchao installed, this logger warns in every process about calls that a later PyTorch will change.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
# PEFT imports bitsandbytes wherever it is installed, which then asks for another package of kernels for CPUs.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
