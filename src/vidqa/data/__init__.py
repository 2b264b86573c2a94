"""Records and their media: annotation files of all supported formats are read and checked here."""

from vidqa.data.load import check_records, load_records
from vidqa.data.record import MediaRef, Provenance, Record, Turn, fingerprint
from vidqa.data.record_groups import split_by_video
from vidqa.data.sources import open_source

__all__ = [
    "MediaRef",
    "Provenance",
    "Record",
    "Turn",
    "check_records",
    "fingerprint",
    "load_records",
    "open_source",
    "split_by_video",
]
