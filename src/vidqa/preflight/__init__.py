"""Checks before a launch: one report of all problems that would make the job fail."""
