"""Checkpoints to resume from, exports that transformers loads, and the proof that an export is right."""
