"""A substitute folder for a hub model that is not available now, for estimates.

Sizes and video tokens are those of the published model. Without its tokenizer, text is counted in pieces of up to six
letters, single digits and single signs, which is close to such a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from vidqa.core.problem import ProblemError
from vidqa.data.storage import hub
from vidqa.families.published import published

SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
UNKNOWN = "<piece>"
PIECE = r"[A-Za-z]{1,6}|[^ ]"
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == "text" -%}{{ part.text }}
{%- else -%}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def write_offline_model(names: Iterable[str], folder: Path) -> str | None:
    """Fill `folder` for the first of these models in the table of published ones; returns its repository or None."""
    for name in names:
        repository = _repository(name)
        model = published(repository) if repository else None
        if model:
            tables = {"config.json": model.config, "processor_config.json": model.processor}
            tables["tokenizer_config.json"] = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
            for file, value in tables.items():
                (folder / file).write_text(json.dumps(value), encoding="utf-8")
            (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
            _tokenizer().save(str(folder / "tokenizer.json"))
            return repository
    return None


def _repository(name: str) -> str:
    try:
        return hub.parse(name).repository if hub.is_hub_name(name) else ""
    except ProblemError:
        return ""


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({UNKNOWN: 0}, unk_token=UNKNOWN))
    spaces = pre_tokenizers.Split(Regex(" +"), "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(Regex(PIECE), "isolated")])
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer
