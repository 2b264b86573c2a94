"""Which samples every step takes, and how they become packs: arithmetic that preflight and the engine share."""
