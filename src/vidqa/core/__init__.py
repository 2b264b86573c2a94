"""What all packages share: problems, files, environment variables, run folders, the command line."""
