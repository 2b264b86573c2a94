"""The platform "docker"."""
