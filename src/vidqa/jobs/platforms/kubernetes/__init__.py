"""The platform "kubernetes"."""
