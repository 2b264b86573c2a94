"""The turns of a conversation, and the media that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vidqa.dataset.record import MediumKeys, Turn
from vidqa.serving.problems import REQUEST
from vidqa.serving.schema import Message, TextPart, VideoPart, check_keys, keys_in

MOST_MEDIA = 64  # of one request
ROLES = {"developer": "system"}


@dataclass(frozen=True, slots=True)
class NamedMedium:
    """A medium that a request names; `where` is its place in the request, for problems."""

    kind: str  # "video" | "image"
    url: str
    where: str
    keys: MediumKeys = ()


def conversation(messages: Sequence[Message]) -> tuple[tuple[Turn, ...], list[NamedMedium]]:
    """Turns whose media are indices into the list of media. Raises SERVE_REQUEST."""
    turns: list[Turn] = []
    media: list[NamedMedium] = []
    for at, message in enumerate(messages):
        where = f"messages[{at}].content"
        role = ROLES.get(message.role, message.role)
        if message.content is None:
            raise REQUEST.error(where, "it is missing")
        parts: list[str | int] = []
        for number, part in enumerate([] if isinstance(message.content, str) else message.content):
            if isinstance(part, TextPart):
                parts.append(part.text)
                continue
            if role != "user":
                raise REQUEST.error(f"{where}[{number}]", "media belong into the user's messages")
            video = isinstance(part, VideoPart)
            url = part.video_url.url if isinstance(part, VideoPart) else part.image_url.url
            parts.append(len(media))
            kind = "video" if video else "image"
            keys = keys_in(part)
            check_keys(keys, f"{where}[{number}]")
            media.append(NamedMedium(kind, url, f"{where}[{number}].{kind}_url", tuple(sorted(keys.items()))))
        turns.append(Turn(role, (message.content,) if isinstance(message.content, str) else tuple(parts)))
    if len(media) > MOST_MEDIA:
        raise REQUEST.error("messages", f"{len(media)} videos and images; {MOST_MEDIA} are taken")
    return tuple(turns), media
