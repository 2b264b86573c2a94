"""Checks before a launch: one report of everything that would make the job fail."""
