"""Finds before a launch what would make the job fail after it: one check per thing, one report (report.preflight)."""
