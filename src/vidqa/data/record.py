"""A record: one annotation as the user wrote it, in the format that the rest of the program reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

ORIGINS = ("base", "mined", "augmented", "generated")
MediumKeys = tuple[tuple[str, int | float], ...]  # keys of `vidqa.video.types` with values, sorted by name


@dataclass(frozen=True, slots=True)
class MediaRef:
    """One video or image of a record.

    `written` is the name in the annotation; `path` is the file that holds the medium: the media file itself, or a tar
    archive with `member`, the name inside it. `size` is its length in bytes when the annotations were read. `span` is
    the displayed part of a video, (start, end) in seconds of the file; None is all of it. `keys` are the sampling and
    resizing keys beside it in the annotation (fps, max_pixels, video_start), which override the spec's. `archived` is
    `archive.tar.gz!member` for a file unpacked from there into the cache, which may be emptied; else empty.
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
        """Unique name of the file, valid as long as the file exists: `path`, or `archive!member`."""
        return self.archived or (self.path if self.member is None else f"{self.path}!{self.member}")

    @property
    def key(self) -> str:
        """Unique name of this medium: its file, and the part of it (`file#t=start,end`)."""
        return self.file if self.span is None else f"{self.file}#t={self.span[0]:.10g},{self.span[1]:.10g}"

    @property
    def view(self) -> tuple[str, MediumKeys]:
        """Identity of the model's view of the medium: `key`, and its sampling and resizing keys."""
        return self.key, self.keys


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation. `parts` holds text (str) and media (an index into `Record.media`) in order. An
    assistant turn that is not `learned` is only context."""

    role: str  # "system" | "user" | "assistant"
    parts: tuple[str | int, ...]
    learned: bool = True

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a record. Carried along with it; no effect on training."""

    origin: str  # one of ORIGINS
    round: int | None = None  # number of the active-learning round that added it
    gap: str | None = None  # sample id of the gap for which it was added

    def as_field(self) -> dict[str, str | int]:
        """The value of the annotation's `provenance` field."""
        fields = {"origin": self.origin, "round": self.round, "gap": self.gap}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Record:
    """One annotation. `id` is unique in its file; `source` is its location, for problems: "annotations.json[17]"."""

    id: str
    turns: tuple[Turn, ...]
    media: tuple[MediaRef, ...] = ()
    video_fps: float | None = None  # as annotated; the file's own frame rate is used
    kind: str | None = None  # optional question type written by the user, e.g. "yes_no"; used to group scores
    source: str = ""
    provenance: Provenance | None = None
    rejected: str | None = None  # of a preference pair: a wrong answer as an alternative to the last turn

    @property
    def place(self) -> str:
        """The annotation file and id, for problems."""
        return f"{self.source} (id {self.id})"

    @property
    def question(self) -> str:
        """The last user turn's text, with a line break where media are between its parts."""
        parts = next((turn.parts for turn in reversed(self.turns) if turn.role == "user"), ())
        return "\n".join(part for part in parts if isinstance(part, str)).strip()

    @property
    def answer(self) -> str:
        """The last assistant turn's text; empty if the record has none."""
        return next((turn.text.strip() for turn in reversed(self.turns) if turn.role == "assistant"), "")


def media_by_key(records: Iterable[Record]) -> dict[str, MediaRef]:
    """The distinct media of records, by their `key`."""
    return {ref.key: ref for record in records for ref in record.media}


def fingerprint(records: Iterable[Record]) -> str:
    """sha256 (hex) over ids, turns, and the media's names and sizes in bytes, in the order of the records.

    Folders and mtimes are left out: a data set that was copied to another machine is the same data set.
    """
    digest = hashlib.sha256()
    for record in records:
        turns = [(turn.role, turn.parts, *([] if turn.learned else ["not learned"])) for turn in record.turns]
        media = [(ref.kind, ref.written, ref.size, *filter(None, (ref.span, ref.keys))) for ref in record.media]
        rejected = () if record.rejected is None else (record.rejected,)
        digest.update(repr((record.id, turns, media, *rejected)).encode())
        digest.update(b"\n")
    return digest.hexdigest()
