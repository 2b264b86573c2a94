"""Training, evaluation and export on GPUs. The only package that imports torch."""
