"""Loading of a model folder as a sharded model: trainable parameters, FSDP, and weights from safetensors."""
