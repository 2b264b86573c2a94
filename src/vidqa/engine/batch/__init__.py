"""Planned samples become batches: decoding, frame cache, packs, tensors."""
