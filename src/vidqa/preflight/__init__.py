"""Checks before a launch: they find what would make the job fail, in one report."""
