"""Batches on the GPU from planned samples: frames, caches, packing, prefetching. Knows nothing of training."""
