"""Data and models fetched before a job from buckets and the hub; results uploaded after it."""

from vidqa.storage.stage import expected_set, is_remote, stage_set

__all__ = ["expected_set", "is_remote", "stage_set"]
