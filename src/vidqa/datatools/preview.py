"""Samples exactly as a model sees them: the rendered chat in pieces, context or learned, and media as frame plans; for
a terminal, and as a page with the planned frames."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vidqa.core.cli import USAGE, printable
from vidqa.core.pages.page import image_url, page
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.problems import FIELD
from vidqa.data.record import MediaRef, Record
from vidqa.evaluation.thumbnails import poster_frames
from vidqa.families.chat import Chat, Encoded, media_order
from vidqa.planning.samples import Planner, Sample
from vidqa.video.types import FramePlan

SHOWN = 4000  # characters of one piece in a JSON result
ANSWER = "end the conversation with an assistant turn, and check the response mode"
FRAME_WIDTH = 200  # pixels of a picture on the page
MOST_FRAMES = 32  # pictures of one medium; the line above them has the frame count
TIMES = 8  # frames listed in a line of text; a page lists all


@dataclass(frozen=True)
class Piece:
    """A piece of the sample: text that is context ("given") or learned, or one medium with its frame plan.

    `tokens` is its number of input tokens. `text` is the decoded text of those tokens; for a medium, its name.
    """

    kind: str  # "given" | "learned" | "video" | "image"
    text: str
    tokens: int
    plan: FramePlan | None = None
    ref: MediaRef | None = None


@dataclass(frozen=True)
class Preview:
    """One sample in pieces, in order. For generation the pieces end before the answer, and none is learned."""

    sample: Sample
    pieces: tuple[Piece, ...]
    for_generation: bool

    @property
    def record(self) -> Record:
        return self.sample.record

    def as_dict(self) -> dict[str, Any]:
        s = self.sample
        return {
            "id": s.record.id,
            "source": s.record.source,
            "kind": s.record.kind,
            "tokens": s.length,
            "media_tokens": s.media_tokens,
            "learned_tokens": s.supervised,
            "answer": s.record.answer[:SHOWN],
            "pieces": [_piece(piece) for piece in self.pieces],
        }


def _piece(piece: Piece) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": piece.kind, "text": piece.text[:SHOWN], "tokens": piece.tokens}
    if piece.plan:
        plan = piece.plan
        shown |= {"indices": plan.indices, "times_s": [round(t, 3) for t in plan.times_s]}
        shown |= {"height": plan.height, "width": plan.width, "grid": plan.grid}
    return shown


def previews(planner: Planner, records: Sequence[Record]) -> tuple[list[Preview], list[Problem]]:
    """Previews in the order of the records. Problems are records without a sample, and samples that learn nothing."""
    samples, problems = planner.plan(records)
    rendered = []
    for sample in samples:
        encoded = planner.encode(sample)
        pieces = tuple(pieces_of(planner.chat, sample.record, sample.plans, encoded))
        rendered.append(Preview(sample, pieces, planner.prompting.for_generation))
        if not sample.supervised and not planner.prompting.for_generation:
            problems.append(FIELD.at(sample.record.place, "it has no trained token", ANSWER, severity="warning"))
    return rendered, problems


def pieces_of(chat: Chat, record: Record, plans: Sequence[FramePlan], encoded: Encoded) -> Iterable[Piece]:
    """Split a sample's tokens at media and at changes of the loss mask; the pieces together are the whole sample."""
    ids, supervised = encoded.token_ids, encoded.supervised
    slots = np.flatnonzero(np.isin(ids, list(chat.slot_ids.values())))
    at = 0
    for part in media_order(record):
        plan, ref = plans[part], record.media[part]
        expansion = chat.expansion(plan)
        first = int(slots[np.searchsorted(slots, at)] - np.flatnonzero(expansion == chat.slot_ids[plan.kind])[0])
        yield from _texts(chat, ids[at:first], supervised[at:first])
        at = first + len(expansion)
        yield Piece(plan.kind, ref.written, len(expansion), plan, ref)
    yield from _texts(chat, ids[at:], supervised[at:])


def _texts(chat: Chat, ids: np.ndarray, supervised: np.ndarray) -> Iterable[Piece]:
    cuts = [0, *(np.flatnonzero(np.diff(supervised)) + 1).tolist(), len(ids)]
    for start, end in itertools.pairwise(cuts):
        if end > start:
            text = chat.tokens.core.decode(ids[start:end].tolist(), skip_special_tokens=False)
            yield Piece("learned" if supervised[start] else "given", text, end - start)


def pick(records: Sequence[Record], ids: Sequence[str], count: int) -> list[Record]:
    """Select records by id, or `count` of them evenly spread over the set. Raises USAGE."""
    if not ids:
        places = np.unique(np.linspace(0, len(records) - 1, min(count, len(records))).round().astype(int))
        return [records[at] for at in places.tolist()]
    by_id = {record.id: record for record in records}
    unknown = [_unknown(name, by_id) for name in ids if name not in by_id]
    if unknown:
        raise ProblemError(unknown)
    return [by_id[name] for name in ids]


def _unknown(name: str, records: dict[str, Record]) -> Problem:
    nearest = difflib.get_close_matches(name, records, 3)
    remedy = f"did you mean {', '.join(map(repr, nearest))}?" if nearest else "give an id of the annotation file"
    return USAGE.at("--sample", f"none of {len(records)} records has the id {name!r}", remedy)


def plan_line(piece: Piece) -> str:
    """Describe one medium in a line: frames and their timestamps, size, tokens."""
    plan = piece.plan
    if plan is None:
        return ""
    size = f"{plan.width}x{plan.height}, {token_line(piece)}"
    if plan.kind == "image":
        return f"image {piece.text}: {size}"
    frames = [f"{index} ({time:.2f} s)" for index, time in zip(plan.indices, plan.times_s, strict=True)]
    if len(frames) > TIMES:
        frames = [*frames[: TIMES - 2], "...", frames[-1]]
    return f"video {piece.text}: {len(plan.indices)} frames {', '.join(frames)}; {size}"


def token_line(piece: Piece) -> str:
    """Token counts of one medium; tokens of a video's timestamps are text, and counted separately."""
    pads = piece.plan.tokens if piece.plan else 0
    return f"{pads} tokens" + (f" and {piece.tokens - pads} for its times" if piece.tokens > pads else "")


def terminal_text(samples: Sequence[Preview], colour: bool) -> str:
    """Format the samples for a terminal. Learned text is coloured, or in [[double brackets]] without colour."""
    return "\n\n".join(_terminal(preview, colour) for preview in samples)


def _terminal(preview: Preview, colour: bool) -> str:
    from rich.console import Console
    from rich.text import Text

    s = preview.sample
    what = "prompt" if preview.for_generation else f"{s.supervised} learned"
    parts = [(f"--- {s.record.place}: {s.length} tokens, {s.media_tokens} of media, {what}\n", "bold")]
    for piece in preview.pieces:
        if piece.plan:
            parts.append((f"\n    {{{plan_line(piece)}}}\n", "cyan"))
        elif piece.kind == "learned":
            parts.append((piece.text if colour else f"[[{piece.text}]]", "black on green"))
        else:
            parts.append((piece.text, "not bold"))
    if preview.for_generation and s.record.answer:
        parts.append((f"\n    expected: {s.record.answer}", "green"))
    text = Text.assemble(*((printable(words), style) for words, style in parts))
    if not colour:
        return text.plain.rstrip()
    console = Console(force_terminal=True, color_system="standard", soft_wrap=True, highlight=False)
    with console.capture() as captured:
        console.print(text, end="")
    return captured.get().rstrip()


def preview_page(title: str, rendered: Sequence[Preview], problems: Sequence[Problem]) -> str:
    """Render the HTML page. Long videos have `MOST_FRAMES` of the planned frames, evenly spread."""
    samples = [
        {
            **preview.as_dict(),
            "for_generation": preview.for_generation,
            "pieces": list(map(_piece_view, preview.pieces)),
        }
        for preview in rendered
    ]
    return page("datatools/preview.html.j2", title=title, samples=samples, problems=problems)


def _piece_view(piece: Piece) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": piece.kind, "text": piece.text, "plan": piece.plan}
    if piece.plan is None or piece.ref is None:
        return shown
    indices, times = piece.plan.indices, piece.plan.times_s or (0.0,)
    step = max(1, -(-len(indices) // MOST_FRAMES))
    pictures, fault = [], ""
    try:
        pictures = poster_frames(piece.ref.path, piece.ref.member, indices[::step], FRAME_WIDTH)
    except ProblemError as unreadable:
        fault = unreadable.problems[0].message
    frames = [
        {"url": image_url(picture), "index": index, "time": time}
        for picture, index, time in zip(pictures, indices[::step], times[::step], strict=False)
    ]
    return {**shown, "token_line": token_line(piece), "frames": frames, "fault": fault}
