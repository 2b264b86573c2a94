"""Spoils documents: values and keys of a parsed document, or bytes of a written one.

The same random generator gives the same documents. Nothing here knows what a reader expects; the seeds do.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

DEEP: Any = []
for _ in range(40):
    DEEP = [DEEP]
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.0, -0.5, 1e308, float("nan"), float("inf")),
    *(
        "",
        " ",
        "\n",
        "\0",
        "\ud800",
        "é\u2028\u202e",
        "<video>",
        "<image><video>\n",
        "<think>",
        "</answer>",
        "yes",
        "B",
    ),
    *("NaN", "null", "1e5", "../../etc/passwd", "/dev/zero", "file:///etc/passwd", "s3://bucket/x", "https://h/x"),
    *(
        "a" * 5000,
        "%s%n{0}{",
        "${HOME}",
        "[red]",
        "clip.mp4",
        "hf_model://a/b",
        "!!python/object",
        "-",
        ".",
        "..",
        "~",
        "~nobody/x",
    ),
    *([], {}, [[]], [None], {"": ""}, {"a": {"b": []}}, [1, "2"], DEEP, {"url": "x"}, [{"type": "text", "text": 1}]),
]
ODD_BYTES = [
    *(b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r\n", b"\n", b"\t", b"\x1b[31m", b"\xc3"),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"'", b"\\", b"\\u", b"\\ud800", b"//", b"#", b"---\n", b"&a ", b"*a"),
    *(b"NaN", b"Infinity", b"1e999", b"-", b"0x1F", b"1_000", b"9" * 400, b"true", b"null", b"!!binary ", b"<<: *a\n"),
    *(
        b"[[[[[[[[",
        b'{"a":' * 50,
        b"[" * 3000,
        b"a.b.c = 1\n",
        b"[train]\n",
        b"2026-01-01",
        b"12:30:45",
        b"|\n ",
        b"? ",
    ),
]


def spoiled(chance: random.Random, document: Any) -> Any:
    """A copy of a document of dicts, lists and scalars with one to four places changed."""
    whole = [copy.deepcopy(document)]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        holder, key = chance.choice(_places(whole))
        _change(chance, holder, key)
        if not whole:
            return None
    return whole[0]


def _places(node: Any) -> list[tuple[Any, Any]]:
    """(holder, key or index) of every value inside, the innermost ones last."""
    found, waiting = [], [node]
    while waiting:
        holder = waiting.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)) and len(found) < 5000:
                waiting.append(holder[key])
    return found


def _change(chance: random.Random, holder: Any, key: Any) -> None:
    how = chance.randrange(8)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        name = chance.choice([str(key) + "s", str(key).upper(), "", "\ud800", "id", "a.b", str(key)[:-1], "é" * 300])
        holder[name] = holder.pop(key)
    elif how == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif how == 3 and isinstance(holder, dict):
        holder[chance.choice(["extra", "video", "messages", "content", "text", "0", ""])] = chance.choice(ODD_VALUES)
    elif how == 4 and isinstance(holder[key], str):
        text = holder[key]
        at = chance.randrange(len(text) + 1)
        holder[key] = text[:at] + str(chance.choice(ODD_VALUES))[:200] + text[at:]
    elif how == 5:
        holder[key] = [holder[key]]
    elif how == 6 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = chance.choice([-holder[key], str(holder[key]), holder[key] + 0.5, holder[key] * 10**6])
    else:
        holder[key] = copy.deepcopy(chance.choice(ODD_VALUES))


def scrambled(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """Bytes with one to four pieces flipped, cut out, doubled, replaced, or taken from another document."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((0, 1, 1, 4, 30, 400)))
        how = chance.randrange(7)
        if how == 0:
            piece = bytes(byte ^ (1 << chance.randrange(8)) for byte in data[start:end])
        elif how == 1:
            piece = b""
        elif how == 2:
            piece = data[start:end] * chance.choice((2, 2, 20))
        elif how == 3:
            at = chance.randrange(len(other) + 1)
            piece = other[at : at + chance.choice((1, 8, 200))]
        elif how == 4:
            return data[:start] or chance.choice((b"", b"\n", b"\0", b"\xef\xbb\xbf", b"{}", b"[]", b"null"))
        else:
            piece = chance.choice(ODD_BYTES)
        data = data[:start] + piece + data[end:]
    return data if chance.random() > 0.01 else data.decode("utf-8", "replace").encode("utf-16")


def as_json(document: Any, chance: random.Random) -> bytes:
    """JSON as programs write it: escaped or not, on one line or on many, NaN and all."""
    text = json.dumps(document, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, None, 1)))
    return text.encode("utf-8", "surrogatepass")
