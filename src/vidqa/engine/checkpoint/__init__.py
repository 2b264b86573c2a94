"""Checkpoints to resume from, files that all ranks write together, and which export of a run is the best."""
