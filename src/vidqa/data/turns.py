"""Turns of a row: role, texts and media slots of the content, and whether the turn is learned."""

from __future__ import annotations

from typing import Any, NamedTuple

from vidqa.data import problems
from vidqa.data.conversation import (
    KINDS,
    LEARNED,
    ROLES,
    TAG,
    Piece,
    Slot,
    is_learned,
    is_text,
    medium_keys,
    medium_name,
    pieces_of_text,
    tidy,
    unclosed,
    unused_in,
    unused_in_turn,
)
from vidqa.data.row_findings import SHORT, Invalid, RowFindings

TURN_ORDER = (
    'order the turns as: system (optional), user, assistant, user, assistant, ... with "from": "human", "gpt" or '
    '"system" (or "role": "user", "assistant" or "system")'
)
THINKING = "it would be trained as the answer: write <think>reasoning</think> before the answer, or no tag at all"


class Spoken(NamedTuple):
    role: str
    pieces: list[Piece]
    is_learned: bool = True


class TurnReader:
    """Reader of the turns of one row; errors go to `findings`."""

    def __init__(self, findings: RowFindings) -> None:
        self.findings = findings
        self.has_places_in_parts = False  # whether a tag in a part of type text is a slot of a medium

    def turn(self, turn: Any, field: str) -> Spoken:
        """Read one turn. Raises Invalid."""
        if not isinstance(turn, dict):
            self.findings.invalid(field, "a turn", turn, '{"from": "human", "value": "Is the door open?"}')
        key = "role" if "role" in turn and "from" not in turn else "from"
        role = turn.get(key)
        role_name = ROLES.get(role) if isinstance(role, str) else None
        if role_name is None:
            what = f"{SHORT.repr(role)} is not one of" if key in turn else "the turn has no role; known:"
            self.findings.wrong(problems.FIELD, f"{field}.{key}", f"{what} {', '.join(ROLES)}", TURN_ORDER)
            raise Invalid
        content_key = "value" if "value" in turn else "content"
        pieces = self.pieces(turn.get(content_key), role_name, f"{field}.{content_key}")
        return Spoken(role_name, tidy(pieces), self._is_learned(turn, role_name, field))

    def _is_learned(self, turn: dict[str, Any], role: str, field: str) -> bool:
        """Whether an assistant turn is learned by its keys. Others never are; keys that request it are reported."""
        self.findings.unused(field, unused_in_turn(turn))
        learned = is_learned(turn)
        if isinstance(learned, str):
            self.findings.wrong(problems.FIELD, field, learned, 'write "loss": false in a turn that is only context')
            return False
        if role != "assistant":
            flags = [name for name in sorted(LEARNED & turn.keys()) if turn[name]]
            self.findings.unused(field, [f"{name}: a turn of the {role} is never trained on" for name in flags])
        return learned

    def pieces(self, content: Any, role: str, field: str) -> list[Piece]:
        """Texts and media slots of a turn's content. Raises Invalid."""
        key = f'"{field.rsplit(".", 1)[-1]}"'
        if isinstance(content, str):
            if not is_text(content):
                self.findings.invalid(field, "valid characters", content, f'{key}: "Is the door open?"')
            return pieces_of_text(content) if role == "user" else [content]
        if not isinstance(content, list):
            example = f'{key}: "{"Is the door open?" if role == "user" else "Yes"}"'
            as_text = f'text: "{content}"' if isinstance(content, int | float) else example
            self.findings.invalid(field, "text or a list of parts", content, as_text)
        return [piece for at, part in enumerate(content) for piece in self._part(part, role, f"{field}[{at}]")]

    def _part(self, part: Any, role: str, field: str) -> list[Piece]:
        if isinstance(part, str):
            return self.pieces(part, role, field)
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else ("", None)
        if kind in (None, "text") and isinstance(text, str):
            return self._text_part(part, text, role, field)
        kind = kind.removesuffix("_url") if isinstance(kind, str) else None
        if kind not in KINDS:
            example = '{"type": "text", "text": "Is the door open?"} or {"type": "video", "video": "clip-1.mp4"}'
            self.findings.invalid(field, "a text, video or image part", part, example)
        if role != "user":
            self.findings.wrong(problems.FIELD, field, f"a {kind} is in a turn of the {role}", "move it to a user turn")
            raise Invalid
        name, others = medium_name(kind, part)
        if name is not None and (not name or not is_text(name)):
            self.findings.invalid(field, "the name of a file", name, f'{{"type": "{kind}", "{kind}": "clip-1.mp4"}}')
        keys, wrong, unused = medium_keys(kind, part, {"type", kind, f"{kind}_url", "path", "url"})
        self.findings.unused(field, others + unused)
        for message in wrong:
            self.findings.wrong(
                problems.FIELD, field, message, 'such as {"type": "video", "video": "a.mp4", "video_start": 12.5}'
            )
        return [Slot(kind, name, keys)]

    def _text_part(self, part: dict[str, Any], text: str, role: str, field: str) -> list[Piece]:
        """The pieces of a text part: its tags are text if media have parts of their own or the record has none."""
        if not is_text(text):
            self.findings.invalid(field, "valid characters", text, '{"type": "text", "text": "Is the door open?"}')
        self.findings.unused(field, unused_in(part, {"type", "text"}))
        if role != "user" or not self.has_places_in_parts or not TAG.search(text):
            return [text]
        message = "its tag is taken for the place of a medium, since the record lists media and no part shows one"
        self.findings.wrong(problems.TAG_COUNT, field, message, severity="warning")
        return pieces_of_text(text)

    def check_order(self, spoken: list[Spoken], field: str, *, need_answers: bool, is_asked: bool) -> None:
        """Report turns out of order and empty ones; without `is_asked` the user's turns may be empty."""
        roles = [turn.role for turn in spoken]
        first = int(roles[0] == "system")
        for at, role in enumerate(roles[first:], start=first):
            expected = "assistant" if (at - first) % 2 else "user"
            if role != expected:
                message = f"expected a turn of the {expected}, got {role}"
                self.findings.wrong(problems.FIELD, f"{field}[{at}]", message, TURN_ORDER)
                return
        if roles[-1] == "system":
            self.findings.wrong(problems.FIELD, field, "there is only a system turn", TURN_ORDER)
        elif roles[-1] == "user" and need_answers:
            self.findings.wrong(
                problems.FIELD, f"{field}[{len(roles) - 1}]", "the last turn is the user's: the answer is missing"
            )
        for at, (role, pieces, _) in enumerate(spoken):
            if not pieces and role == "assistant" and (need_answers or at < len(spoken) - 1):
                self.findings.wrong(problems.FIELD, f"{field}[{at}]", "the assistant says nothing")
            elif role == "assistant" and (what := unclosed("".join(map(str, pieces)))):
                self.findings.wrong(problems.FIELD, f"{field}[{at}]", what, THINKING, "warning")
            elif not pieces and role == "user" and is_asked:
                self.findings.wrong(problems.FIELD, f"{field}[{at}]", "the user says nothing and shows nothing")
