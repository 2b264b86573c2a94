"""Gaps: what a model gets wrong, the data that mends it, and the DEFT loop over both."""
