"""The DEFT loop: rounds of data curation and training from a model's gaps, as a state machine on disk."""
