"""What every other package uses: problems, files, the environment, run folders, the command line."""
