"""The model: loading, sharding, attention, adapters, recomputation."""
