"""A record: one annotation as the user wrote it, in the one shape the rest of the program reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

ORIGINS = ("base", "mined", "augmented", "generated")
MediumKeys = tuple[tuple[str, int | float], ...]  # of `vidqa.video.types`, in the order of their names


@dataclass(frozen=True, slots=True)
class MediaRef:
    """One video or image of a record.

    `written` is what the annotation says; `path` is the file that holds it: the media file itself, or a tar archive
    together with `member`, the name inside it. `size` is its length in bytes when the annotations were read. `span` is
    the part of a video that is shown, (start, end) in seconds of the file; None is all of it. `keys` are those that the
    annotation writes beside it (fps, max_pixels, video_start): they take the place of the spec's. `archived` is
    `archive.tar.gz!member` for a file that was unpacked from there into the cache, which may be emptied; else empty.
    """

    kind: str  # "video" | "image"
    written: str
    path: str
    member: str | None = None
    size: int = 0
    span: tuple[float, float] | None = None
    keys: MediumKeys = ()
    archived: str = ""

    @property
    def file(self) -> str:
        """Names the file among all others, for as long as it is there: `path`, or `archive!member`."""
        return self.archived or (self.path if self.member is None else f"{self.path}!{self.member}")

    @property
    def key(self) -> str:
        """Names this medium among all others: its file, and the part of it (`file#t=start,end`)."""
        return self.file if self.span is None else f"{self.file}#t={self.span[0]:.10g},{self.span[1]:.10g}"

    @property
    def view(self) -> tuple[str, MediumKeys]:
        """Names what is seen of the medium: `key`, and the keys by which it becomes frames."""
        return self.key, self.keys


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation. `parts` holds text (str) and media (an index into `Record.media`) in order. An
    assistant turn that is not `learned` is context alone."""

    role: str  # "system" | "user" | "assistant"
    parts: tuple[str | int, ...]
    learned: bool = True

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a record came into its set. It is carried along, and changes nothing of what a model is taught."""

    origin: str  # one of ORIGINS
    round: int | None = None  # of the loop that added it
    gap: str | None = None  # sample id of the gap that it was made for

    def as_field(self) -> dict[str, str | int]:
        """As an annotation has it."""
        fields = {"origin": self.origin, "round": self.round, "gap": self.gap}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Record:
    """`id` is unique in its file; `source` says where it was read, for problems: "annotations.json[17]"."""

    id: str
    turns: tuple[Turn, ...]
    media: tuple[MediaRef, ...] = ()
    video_fps: float | None = None  # what the annotation claims; the file decides
    kind: str | None = None  # optional question type written by the user, e.g. "yes_no"; used to group scores
    source: str = ""
    provenance: Provenance | None = None
    rejected: str | None = None  # a wrong answer in place of the last turn, of a preference pair

    @property
    def place(self) -> str:
        """The annotation file and id, for problems."""
        return f"{self.source} (id {self.id})"

    @property
    def question(self) -> str:
        """The last user turn's text, a line break where media are shown between its parts."""
        parts = next((turn.parts for turn in reversed(self.turns) if turn.role == "user"), ())
        return "\n".join(part for part in parts if isinstance(part, str)).strip()

    @property
    def answer(self) -> str:
        """The last assistant turn's text; empty when the record has none."""
        return next((turn.text.strip() for turn in reversed(self.turns) if turn.role == "assistant"), "")


def media_by_key(records: Iterable[Record]) -> dict[str, MediaRef]:
    """The media of records, each once, by their `key`."""
    return {ref.key: ref for record in records for ref in record.media}


def fingerprint(records: Iterable[Record]) -> str:
    """sha256 (hex) over ids, turns, and the media's names and sizes in bytes, in the order of the records.

    Folders and times of change are left out: a data set that was copied to another machine is the same data set.
    """
    digest = hashlib.sha256()
    for record in records:
        turns = [(turn.role, turn.parts, *([] if turn.learned else ["not learned"])) for turn in record.turns]
        media = [(ref.kind, ref.written, ref.size, *filter(None, (ref.span, ref.keys))) for ref in record.media]
        rejected = () if record.rejected is None else (record.rejected,)
        digest.update(repr((record.id, turns, media, *rejected)).encode())
        digest.update(b"\n")
    return digest.hexdigest()
