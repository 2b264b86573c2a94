"""Exports for others to use: what of a run is handed on, its scores, and the model card that says what it is."""
