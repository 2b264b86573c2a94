"""The training loop: learner, optimizer, validation, saving, resuming."""
