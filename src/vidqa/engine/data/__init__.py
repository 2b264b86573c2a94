"""From planned samples to batches on the GPU: frames, caches, packing, prefetching. Knows nothing of training."""
