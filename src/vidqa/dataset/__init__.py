"""Records and the media they name: annotation files of every accepted shape are read and checked here."""

from vidqa.dataset.fingerprint import fingerprint
from vidqa.dataset.load import check_records, load_records
from vidqa.dataset.media import media_exists
from vidqa.dataset.record import MediaRef, Record, Turn
from vidqa.dataset.split import split_by_video

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
