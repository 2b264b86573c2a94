"""Studies: programs over jobs that look for a better spec."""
