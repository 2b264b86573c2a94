"""A model folder becomes a sharded model: what trains, FSDP, and weights read from safetensors."""
