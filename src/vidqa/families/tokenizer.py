"""Load a model's tokenizer from its folder without transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from tokenizers import AddedToken, Encoding, Tokenizer, processors

from vidqa.families.model_files import read_json
from vidqa.families.problems import MODEL_BROKEN, MODEL_UNSUPPORTED

# Normalizers without patterns and replacement texts.
NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents"}
MAX_PART_CHARS = 20_000  # characters of a pre-tokenizer or decoder; those of Qwen have less than 1,000
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class Tokens:
    """A tokenizer. `core` encodes text; `named` maps e.g. eos_token to its text; `special` has all special texts."""

    core: Tokenizer
    named: dict[str, str]
    special: frozenset[str]
    eos_ids: tuple[int, ...]
    pad_id: int

    def encode(self, text: str) -> Encoding:
        """Encode a text unchanged. As a batch of one, so that other threads can run: for a single text the library
        holds the GIL, which takes seconds if it is long."""
        (encoding,) = self.core.encode_batch([text], add_special_tokens=False)
        return encoding

    def text_of(self, token_id: int) -> str:
        return self.core.id_to_token(token_id) or ""


def load_tokens(folder: Path) -> tuple[Tokens, dict[str, Any]]:
    """Load (tokens, tokenizer_config.json). Raises MODEL_BROKEN."""
    config = read_json(folder, "tokenizer_config.json")
    core = _core(folder)
    _add_missing(core, folder, config)
    # Offsets must cover whole tokens, and no token may be added to the template's text.
    core.post_processor = processors.ByteLevel(trim_offsets=False)
    core.no_truncation()
    core.no_padding()
    named = {name: text for name in NAMED if (text := _text(config.get(name)))}
    generation = read_json(folder, "generation_config.json") if (folder / "generation_config.json").is_file() else {}
    special = {token.content for token in core.get_added_tokens_decoder().values() if token.special}
    eos_ids = _eos_ids(core, named, generation)
    if not eos_ids:
        raise MODEL_BROKEN.error(folder / "tokenizer_config.json", "it has no eos_token that the tokenizer knows")
    pad_id = core.token_to_id(named["pad_token"]) if "pad_token" in named else generation.get("pad_token_id")
    tokens = Tokens(core, named, frozenset(special), eos_ids, pad_id if _in_vocabulary(pad_id, core) else eos_ids[0])
    return tokens, config


def _core(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    _require_bounded(read_json(folder, "tokenizer.json"), path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as unknown:  # the library raises no narrower class
        raise MODEL_BROKEN.error(path, f"unsupported tokenizer: {unknown}") from unknown


def _require_bounded(description: Mapping[str, Any], path: Path) -> None:
    """Check that all steps which change a text are bounded: patterns and replacements of a normalizer would be applied
    to every text, and could take minutes or enlarge it without limit."""
    for step in _steps(description.get("normalizer"), "normalizers"):
        if step.get("type") not in NORMALIZERS:
            message = f"the normalizer {str(step.get('type'))[:60]!r} is not one of {', '.join(sorted(NORMALIZERS))}"
            raise MODEL_UNSUPPORTED.error(path, message)
    for part in ("pre_tokenizer", "decoder"):
        if (size := len(json.dumps(description.get(part)))) > MAX_PART_CHARS:
            raise MODEL_UNSUPPORTED.error(path, f"the {part} has {size} characters; the limit is {MAX_PART_CHARS}")


def _steps(part: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part, which may be a sequence of them. Invalid steps are left to the library."""
    parts = [part]
    while parts:
        step = parts.pop()
        if not isinstance(step, dict):
            continue
        if step.get("type") == "Sequence" and isinstance(step.get(name), list):
            parts += step[name]
        else:
            yield step


def _add_missing(core: Tokenizer, folder: Path, config: Mapping[str, Any]) -> None:
    """Add tokens that only tokenizer_config.json declares, with the ids in it."""
    declared = config.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict) or not all(map(_is_declaration, declared, declared.values())):
        message = "added_tokens_decoder must hold tokens by their ids"
        raise MODEL_BROKEN.error(folder / "tokenizer_config.json", message)
    for token_id, entry in sorted(declared.items(), key=lambda item: int(item[0])):
        text = entry["content"]
        if core.token_to_id(text) is not None:
            continue
        flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
        core.add_tokens([AddedToken(text, special=bool(entry.get("special")), **flags)])
        if core.token_to_id(text) != int(token_id):
            message = (
                f"the token {text!r} is declared as {token_id}, but tokenizer.json leaves {core.token_to_id(text)}"
            )
            raise MODEL_BROKEN.error(folder / "tokenizer_config.json", message)


def _is_declaration(token_id: str, entry: Any) -> bool:
    return token_id.isdecimal() and isinstance(entry, dict) and bool(_text(entry))


def _eos_ids(core: Tokenizer, named: Mapping[str, str], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokenizer's eos id first, then the others at which generation stops."""
    written = generation.get("eos_token_id")
    ids = [core.token_to_id(named["eos_token"])] if "eos_token" in named else []
    ids += written if isinstance(written, list) else [written]
    return tuple(dict.fromkeys(token_id for token_id in ids if _in_vocabulary(token_id, core)))


def _in_vocabulary(token_id: Any, core: Tokenizer) -> TypeGuard[int]:
    return isinstance(token_id, int) and 0 <= token_id < core.get_vocab_size()


def _text(token: Any) -> str | None:
    """The text of a special token, which is a string, or an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
