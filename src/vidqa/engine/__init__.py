"""The engine: fine-tuning, evaluation and export. Runs inside the image; the only package that imports torch."""
