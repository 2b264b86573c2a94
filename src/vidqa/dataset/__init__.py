"""Records and the media they name: annotation files of every accepted shape are read and checked here."""

from vidqa.dataset.load import check_records, load_records
from vidqa.dataset.media import media_exists
from vidqa.dataset.record import MediaRef, Provenance, Record, Turn, fingerprint
from vidqa.dataset.sources import open_source
from vidqa.dataset.video_split import split_by_video

__all__ = [
    "MediaRef",
    "Provenance",
    "Record",
    "Turn",
    "check_records",
    "fingerprint",
    "load_records",
    "media_exists",
    "open_source",
    "split_by_video",
]
