"""Annotations of every accepted shape become records; what is wrong with them becomes problems."""

from vidqa.data.fingerprint import fingerprint
from vidqa.data.load import check_records, load_records
from vidqa.data.media import media_exists
from vidqa.data.record import MediaRef, Record, Turn
from vidqa.data.split import split_by_video

__all__ = [
    "MediaRef",
    "Record",
    "Turn",
    "check_records",
    "fingerprint",
    "load_records",
    "media_exists",
    "split_by_video",
]
