"""The report of a training: data, losses, speed and results."""
