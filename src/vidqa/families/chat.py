"""Tokenize a record: render the chat, expand media, and compute token ids and a mask of the supervised tokens.

Preflight, training, evaluation and preview all use this module. Rendering and ids equal those of transformers'
processor for the same model folder. The mask comes from the turns, never from a search for token ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding

from vidqa.core.problem import Problem, ProblemError
from vidqa.data.record import Record
from vidqa.families import Family, family_of
from vidqa.families.chat_template import Message, Template, load_template, messages_of
from vidqa.families.model_files import read_json
from vidqa.families.problems import MODEL_BROKEN, SPECIAL_TOKEN_IN_TEXT, TEMPLATE_BROKEN
from vidqa.families.tokenizer import Tokens, load_tokens
from vidqa.video.types import FramePlan

EXPANSIONS_CACHED = 256  # questions about one video often follow each other
BATCH_SIZE = 256  # conversations tokenized in one call, on all cores
MAX_CACHED_OUTLINES = 1 << 17  # conversations with cached outlines: many sets ask the same question about each video
SAME_MODEL = "take config.json, tokenizer.json and tokenizer_config.json from one model (download or export it again)"
MARK = "\0"
RUNS = re.compile(f"{MARK}+")
PROBE: list[Message] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "a"},
            {"type": "video"},
            {"type": "text", "text": "b"},
            {"type": "image"},
            {"type": "text", "text": "c"},
        ],
    }
]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Tokens of a record: `token_ids` int32 [S]; `supervised` bool [S]: the token is a target of the loss.

    `text` is the chat as rendered, with one placeholder for each medium.
    """

    token_ids: np.ndarray
    supervised: np.ndarray
    text: str


@dataclass(frozen=True, slots=True)
class Outline:
    """The token counts of a record before its media are expanded: `tokens`, and how many of them are `supervised`, with
    each medium counted as one. `prefix` is the ids (int32) up to and including the last medium, b"" without media;
    `prefix_supervised`: at least one of them is supervised.
    """

    tokens: int
    supervised: int
    prefix: bytes
    prefix_supervised: bool


Conversation = tuple[Any, ...]  # equal for records that differ only in their media files
Settings = tuple[str, str, bool]  # system prompt, response mode, for_generation


class Chat:
    """The conversion of one model's records to tokens; created by `load_chat`."""

    def __init__(self, family: Family, template: Template, tokens: Tokens, merge: Mapping[str, int]) -> None:
        self.family = family
        self.template = template
        self.tokens = tokens
        self.merge = dict(merge)  # patches per token side, by kind of medium
        self.slots = family.placeholders
        self.slot_ids: dict[str, Any] = {kind: tokens.core.token_to_id(slot) for kind, slot in self.slots.items()}
        self._end_texts = tuple(tokens.text_of(token_id) for token_id in tokens.eos_ids)
        self._control = self._control_tokens(self._probe())
        self.expansion = lru_cache(EXPANSIONS_CACHED)(self._expand)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids at which generation stops."""
        return self.tokens.eos_ids

    @property
    def pad_id(self) -> int:
        return self.tokens.pad_id

    def encode(
        self,
        record: Record,
        plans: Sequence[FramePlan],
        *,
        system_prompt: str = "",
        response_mode: str = "answer",
        for_generation: bool = False,
    ) -> Encoded:
        """Tokenize and label a record; `plans` has one plan for each of `record.media`.

        The assistant turns with their end-of-turn tokens are supervised, not their headers. With `for_generation` the
        last assistant turn is replaced by the template's generation prompt and nothing is supervised. Raises the
        problems of `vidqa.families.problems`, and ValueError for plans that do not match the record.
        """
        if [plan.kind for plan in plans] != [medium.kind for medium in record.media]:
            raise ValueError(f"{record.source or record.id}: the plans do not match the record's media")
        text, spans = self._rendered(record, (system_prompt, response_mode, for_generation))
        token_ids, supervised = _labelled(self.tokens.encode(text), spans)
        return Encoded(
            *self._with_media(record, token_ids, supervised, [plans[at] for at in media_order(record)]), text
        )

    def outlines(
        self,
        records: Sequence[Record],
        *,
        system_prompt: str = "",
        response_mode: str = "answer",
        for_generation: bool = False,
    ) -> Iterator[Outline | list[Problem]]:
        """Yield the token counts of `encode` for each record, or its problems.

        Far faster than `encode`: records are tokenized in batches, and a conversation about many videos only once.
        """
        settings = (system_prompt, response_mode, for_generation)
        remembered: dict[Conversation, Outline] = {}
        for first in range(0, len(records), BATCH_SIZE):
            part = records[first : first + BATCH_SIZE]
            conversations = [_conversation(record) for record in part]
            outlines = list(map(remembered.get, conversations))
            if None in outlines:
                if len(remembered) > MAX_CACHED_OUTLINES:
                    remembered.clear()
                new = zip(conversations, part, outlines, strict=True)
                drafts = {conversation: record for conversation, record, outline in new if outline is None}
                remembered |= self._outlined(drafts, settings)
            for conversation, record, outline in zip(conversations, part, outlines, strict=True):
                yield outline or remembered.get(conversation) or self._outline_alone(record, settings)

    def _outlined(self, records: Mapping[Conversation, Record], settings: Settings) -> dict[Conversation, Outline]:
        """The outlines of conversations, tokenized in one batch; those with problems are left out."""
        drafts, outlines = {}, {}
        for conversation, record in records.items():
            with suppress(ProblemError):
                drafts[conversation] = self._rendered(record, settings)
        encodings = self.tokens.core.encode_batch([text for text, _ in drafts.values()], add_special_tokens=False)
        for (conversation, (_, spans)), encoding in zip(drafts.items(), encodings, strict=True):
            with suppress(ProblemError):
                outlines[conversation] = self._outline(records[conversation], encoding, spans)
        return outlines

    def _outline_alone(self, record: Record, settings: Settings) -> Outline | list[Problem]:
        try:
            text, spans = self._rendered(record, settings)
            return self._outline(record, self.tokens.encode(text), spans)
        except ProblemError as bad:
            return bad.problems

    def _outline(self, record: Record, encoding: Encoding, spans: Sequence[tuple[int, int]]) -> Outline:
        token_ids, supervised = _labelled(encoding, spans)
        positions = self._placeholders(record, token_ids, [record.media[at].kind for at in media_order(record)])
        end = int(positions[-1]) + 1 if len(positions) else 0
        in_all, before = np.count_nonzero(supervised), np.count_nonzero(supervised[:end])
        return Outline(len(token_ids), int(in_all), token_ids[:end].tobytes(), bool(before))

    def _rendered(self, record: Record, settings: Settings) -> tuple[str, list[tuple[int, int]]]:
        """The chat as text, and its supervised character spans."""
        system_prompt, response_mode, for_generation = settings
        self._check_texts(record, system_prompt)
        messages = messages_of(record, system_prompt, response_mode, for_generation=for_generation)
        text = self.template.render(messages, add_generation_prompt=for_generation)
        return text, [] if for_generation else self._supervised_spans(record, messages, text)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Decode generated tokens, without special tokens."""
        return self.tokens.core.decode([int(token_id) for token_id in token_ids], skip_special_tokens=True)

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text at the beginning of an answer."""
        return tuple(self.tokens.encode(text).ids)

    def _supervised_spans(self, record: Record, messages: list[Message], text: str) -> list[tuple[int, int]]:
        """Character spans of learned turns in `text`, from the end of the header to the end of the end-of-turn token.

        A turn starts where the generation prompt after the earlier messages ends, because the model's answer follows
        that prompt. This holds only if adding messages never changes the text before them.
        """
        spans = []
        before = len(messages) - len(record.turns)  # 1 if a system prompt was added
        for at, message in enumerate(messages):
            if message["role"] != "assistant" or not record.turns[at - before].learned:
                continue
            prompt = self.template.render(messages[:at], add_generation_prompt=True)
            last = at == len(messages) - 1
            whole = text if last else self.template.render(messages[: at + 1], add_generation_prompt=False)
            turn = whole.rstrip()
            if not (text.startswith(prompt) and text.startswith(whole) and len(prompt) < len(turn)):
                raise self._unstable(record, f"turn {at} is rendered differently when other turns follow it")
            if not turn.endswith(self._end_texts):
                raise self._unstable(record, f"turn {at} does not end with one of {', '.join(self._end_texts)}")
            spans.append((len(prompt), len(turn)))
        return spans

    def _unstable(self, record: Record, message: str) -> Exception:
        remedy = "use response_mode `answer`, records of one question each, or a chat template that only appends turns"
        return TEMPLATE_BROKEN.error(self.template.place, f"{message} (in {record.source or record.id})", remedy)

    def _with_media(
        self, record: Record, token_ids: np.ndarray, supervised: np.ndarray, plans: Sequence[FramePlan]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Replace each placeholder by its medium's tokens, which are not supervised."""
        positions = self._placeholders(record, token_ids, [plan.kind for plan in plans])
        ids, labels, start = [], [], 0
        for position, plan in zip(positions.tolist(), plans, strict=True):
            expansion = self.expansion(plan)
            ids += [token_ids[start:position], expansion]
            labels += [supervised[start:position], np.zeros(len(expansion), bool)]
            start = position + 1
        return np.concatenate([*ids, token_ids[start:]]), np.concatenate([*labels, supervised[start:]])

    def _placeholders(self, record: Record, token_ids: np.ndarray, kinds: Sequence[str]) -> np.ndarray:
        """Positions of the placeholders of these media. Raises CHAT_TEMPLATE_BROKEN if the kinds do not match."""
        positions = np.flatnonzero((token_ids == self.slot_ids["video"]) | (token_ids == self.slot_ids["image"]))
        if token_ids[positions].tolist() != [self.slot_ids[kind] for kind in kinds]:
            message = f"{len(kinds)} media give {len(positions)} placeholders in {record.source or record.id}"
            raise TEMPLATE_BROKEN.error(self.template.place, message)
        return positions

    def _expand(self, plan: FramePlan) -> np.ndarray:
        """Token ids int32 of one medium. Each run of placeholders is tokenized once and repeated: same ids, faster."""
        slot, slot_id = self.slots[plan.kind], self.slot_ids[plan.kind]
        text = self.family.expand(plan, self.merge[plan.kind]).replace(slot, MARK)  # one character, for a fast search
        lengths = [len(run) for run in RUNS.findall(text)]
        ids = np.array(self.tokens.encode(RUNS.sub(slot, text)).ids, np.int32)
        repeats = np.ones(len(ids), np.int64)
        repeats[ids == slot_id] = lengths
        if sum(lengths) != plan.tokens:
            raise ValueError(f"the plan has {plan.tokens} tokens, its expansion {sum(lengths)}")
        return np.repeat(ids, repeats)

    def _probe(self) -> str:
        """Render one video and one image, and check that each is one token between special tokens.

        Only then do the ids of the parts, concatenated, equal the ids of the whole text.
        """
        text = self.template.render(PROBE, add_generation_prompt=True)
        ids = self.tokens.encode(text).ids
        for kind, slot_id in self.slot_ids.items():
            if ids.count(slot_id) != 1:  # 0 if slot_id is None: the tokenizer lacks the token
                message = f"a {kind} is not rendered as one {self.slots[kind]} token"
                raise TEMPLATE_BROKEN.error(self.template.place, message)
            at = ids.index(slot_id)
            beside = [self.tokens.text_of(token_id) for token_id in (ids[at - 1], ids[at + 1])]
            if not self.tokens.special.issuperset(beside):
                message = f"the {kind} placeholder is between {' and '.join(map(repr, beside))}, not special tokens"
                raise TEMPLATE_BROKEN.error(self.template.place, message)
        return text

    def _control_tokens(self, rendered: str) -> re.Pattern[str]:
        """A pattern for the special tokens that the chat uses itself; users may write other special tokens."""
        built_with = {token for token in self.tokens.special if token in self.template.source or token in rendered}
        control = built_with | set(self._end_texts) | set(self.tokens.named.values())
        return re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))

    def _check_texts(self, record: Record, system_prompt: str) -> None:
        if match := self._control.search(system_prompt):
            raise SPECIAL_TOKEN_IN_TEXT.error("system_prompt", f"the system prompt contains {match.group()}")
        for at, turn in enumerate(record.turns):
            if match := self._control.search(turn.text):
                where = f"{record.source or record.id} turn {at}"
                raise SPECIAL_TOKEN_IN_TEXT.error(where, f"the {turn.role}'s text contains {match.group()}")


def _conversation(record: Record) -> Conversation:
    turns = [(turn.role, turn.parts, turn.learned) for turn in record.turns]
    return (*turns, *[medium.kind for medium in record.media])


def media_order(record: Record) -> list[int]:
    """The media of a record, as indices into `record.media`, in the order of its turns."""
    return [part for turn in record.turns for part in turn.parts if isinstance(part, int)]


def _labelled(encoding: Encoding, spans: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids int32 [S], and bool [S]: whether all characters of the token are inside one of the spans."""
    token_ids = np.array(encoding.ids, np.int32)
    inside = np.zeros(len(token_ids), bool)
    if spans:
        starts, ends = np.fromiter(chain.from_iterable(encoding.offsets), np.int64).reshape(-1, 2).T
        for first, last in spans:
            inside |= (starts >= first) & (ends <= last)
    return token_ids, inside


def load_chat(model_folder: Path | str) -> Chat:
    """Load the chat of the model in a folder. Raises MODEL_BROKEN, MODEL_UNSUPPORTED and CHAT_TEMPLATE_*."""
    folder = Path(model_folder)
    family = family_of(folder)
    tokens, tokenizer_config = load_tokens(folder)
    _require_same_ids(folder, family, tokens)
    template = load_template(folder, tokenizer_config, tokens.named)
    geometry = family.geometry(folder)
    merge = {"video": geometry.video.merge_size, "image": geometry.image.merge_size}
    return Chat(family, template, tokens, merge)


def _require_same_ids(folder: Path, family: Family, tokens: Tokens) -> None:
    """Check that the ids in config.json match the tokenizer, and that all its tokens have embeddings: with files of two
    models, video features would be inserted at wrong positions. Raises MODEL_BROKEN."""
    config = read_json(folder, "config.json")
    held = {key: (text, tokens.core.token_to_id(text)) for key, (text, _) in family.token_ids.items()}
    written = {key: config.get(key, default) for key, (_, default) in family.token_ids.items()}
    wrong = [
        f"{key} is {written[key]}, and {text} is {number}"
        for key, (text, number) in held.items()
        if written[key] != number
    ]
    size, rows = tokens.core.get_vocab_size(), family.sizes_of(folder).text.vocabulary
    wrong += [f"vocab_size is {rows}, and the tokenizer has {size} tokens"] if size > rows else []
    if wrong:
        message = f"it does not belong to the tokenizer: {'; '.join(wrong)}"
        raise MODEL_BROKEN.error(folder / "config.json", message, SAME_MODEL)
