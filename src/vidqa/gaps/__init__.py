"""Gaps: the questions that a model answers wrong, the training data against them, and the DEFT loop over both."""
