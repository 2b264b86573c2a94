"""One optimizer step after another: learner, optimizer, validation, saving, resuming."""
