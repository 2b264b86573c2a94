"""Batches on the GPU from planned samples: frames, caches, packing, prefetching. Independent of training."""
