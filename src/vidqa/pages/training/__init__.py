"""report.html of a training: what was learned from, how the losses went, how fast, what came out (torch-free)."""
