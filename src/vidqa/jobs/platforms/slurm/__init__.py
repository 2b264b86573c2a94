"""The platform "slurm"."""
