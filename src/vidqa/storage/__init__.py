"""Data that lies in a bucket comes to this machine before a job, and what a run made goes to a bucket or the hub."""

from vidqa.storage.stage import expected_set, is_remote, stage_set

__all__ = ["expected_set", "is_remote", "stage_set"]
