"""Data and models fetched before a job from buckets and the hub; results uploaded after it."""

from vidqa.data.storage import s3
from vidqa.data.storage.hub_dataset import is_hub_dataset
from vidqa.data.storage.staging import expected_set, stage_set

__all__ = ["expected_set", "is_remote", "stage_set"]


def is_remote(path: str) -> bool:
    """Whether a path is an address of a bucket, or a data set of the hub."""
    return s3.is_remote(path) or is_hub_dataset(path)
