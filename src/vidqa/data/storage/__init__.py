"""Fetching of data and models from buckets and the hub before a job, and upload of results after it."""

from vidqa.data.storage import s3
from vidqa.data.storage.hub_dataset import is_hub_dataset
from vidqa.data.storage.staging import expected_set, stage_set

__all__ = ["expected_set", "is_remote", "stage_set"]


def is_remote(path: str) -> bool:
    """Whether a path is the address of a bucket or of a hub data set."""
    return s3.is_remote(path) or is_hub_dataset(path)
