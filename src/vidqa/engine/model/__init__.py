"""Building blocks of every family's forward pass: attention, adapters, 8-bit floats, activation checkpointing."""

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # by the spec's names
