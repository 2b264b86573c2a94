"""Shared by all packages: problems, files, environment variables, run folders, the command line."""
