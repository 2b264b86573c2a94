"""The samples of every step and their packs: arithmetic that preflight and the engine share."""
