"""The recipes in `recipes/`: what each needs on which GPUs, without its data."""
