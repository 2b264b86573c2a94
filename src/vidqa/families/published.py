"""Published models by their hub name: licenses, sizes, and a folder for estimates before a download.

published_models.json holds the sizes from their published config.json; a downloaded model's own files are used instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vidqa.core.problem import ProblemError
from vidqa.data.storage import hub
from vidqa.families.qwen_vl import TOKEN_IDS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TABLE = Path(__file__).with_name("published_models.json")
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


class Published(NamedTuple):
    """The sizes in a model's config.json and processor_config.json."""

    config: dict[str, Any]
    processor: dict[str, Any]


def published(repository: str) -> Published | None:
    """The settings of a hub model by "organisation/name", in any case; None for models not in the table."""
    return _models().get(repository.lower())


def license_of(repository: str) -> dict[str, str]:
    """The license of a model in the table, as keys of a model card; empty for others."""
    licenses = {owner.lower(): license for owner, license in _content()["licenses"].items()}
    owner = repository.lower().partition("/")[0]
    return dict(licenses.get(owner, {})) if published(repository) else {}


@cache
def _content() -> dict[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


@cache
def _models() -> dict[str, Published]:
    content = _content()
    return {
        name.lower(): Published(model["config"], model.get("processor", content["processor"]))
        for model in content["models"]
        for name in model["names"]
    }


def write_offline_model(names: Iterable[str], folder: Path) -> str | None:
    """Fill `folder` with an offline substitute for the first of these models that is in the table; returns its
    repository or None. Sizes and video tokens are those of the published model. Without its tokenizer, text is split
    into runs of up to six letters, single digits and single signs, with a similar token count."""
    for name in names:
        repository = _repository(name)
        model = published(repository) if repository else None
        if model:
            tokenizer = _tokenizer()
            ids = {key: tokenizer.token_to_id(text) for key, (text, _) in TOKEN_IDS.items()}
            tables = {"config.json": model.config | ids, "processor_config.json": model.processor}
            tables["tokenizer_config.json"] = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
            for file, value in tables.items():
                (folder / file).write_text(json.dumps(value), encoding="utf-8")
            (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
            tokenizer.save(str(folder / "tokenizer.json"))
            return repository
    return None


def _repository(name: str) -> str:
    try:
        return hub.parse(name).repository if hub.is_hub_name(name) else ""
    except ProblemError:
        return ""


def _tokenizer() -> Tokenizer:
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({UNKNOWN: 0}, unk_token=UNKNOWN))
    spaces = pre_tokenizers.Split(Regex(" +"), "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(Regex(PIECE), "isolated")])
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer
