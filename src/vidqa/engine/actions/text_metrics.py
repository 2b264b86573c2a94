"""Metrics of free text with a text encoder: BERTScore, and the cosine similarity of two sentence embeddings.

Both equal the results of the packages bert-score (Zhang et al., 2020; no idf, no rescaling) and sentence-transformers,
and need only transformers. Texts are encoded in batches of similar length, which does not change a score.

Shape letters: B texts of a batch, S tokens of a text, D width.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModel, AutoTokenizer, RobertaTokenizer

from vidqa.core.metric_names import OF_SECOND_MODELS
from vidqa.evaluation.metrics import Measure
from vidqa.evaluation.problems import METRIC_UNAVAILABLE
from vidqa.spec.evaluate_tables import metric_models
from vidqa.spec.keys import value_at
from vidqa.spec.models import EvaluateSpec

BATCH_SIZE = 32
NO_LIMIT = 100_000  # a tokenizer without a limit has a model_max_length above this
Scores = Mapping[str, Sequence[float]]  # by the metric's name, one value for each pair of texts
Encoded = tuple[list[int], torch.Tensor]  # token ids of a text, and their vectors float32 [S, D]
POOLING = {  # names in sentence-transformers folders, old and new
    "mean": "mean",
    "cls": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
# Exceptions that transformers raises for damaged files or files of another model.
BROKEN = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError, StrictDataclassError)
UNUSED = ("pooler.", "decoder.")  # parts whose weights many folders lack, and whose outputs are not compared
NEUTRAL_MODULES = ("Normalize", "Dropout")  # they do not change a cosine


class TextModel:
    """A text encoder (the encoder of an encoder-decoder model) and its tokenizer. It moves to `device` on first use.
    `key` is the spec's key of the folder, for messages. Raises METRIC_UNAVAILABLE if transformers cannot load it, or
    only with weights or a vocabulary that are not in the folder."""

    def __init__(self, folder: Path, key: str, device: torch.device) -> None:
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
            loaded = AutoModel.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        except BROKEN as broken:
            raise METRIC_UNAVAILABLE.error(key, f"transformers cannot load {folder}: {broken}") from broken
        self.model: Any = loaded[0].eval()
        if missing := sorted(name for name in loaded[1]["missing_keys"] if not name.startswith(UNUSED)):
            raise METRIC_UNAVAILABLE.error(key, f"{folder} lacks {len(missing)} weights, first {missing[0]}")
        # Without vocabulary files transformers makes some tokenizers without any word, which encode all texts alike.
        if len(self.tokenizer) <= len(self.tokenizer.all_special_ids):
            raise METRIC_UNAVAILABLE.error(key, f"{folder} has no tokenizer vocabulary")
        if hasattr(self.model, "decoder") and hasattr(self.model, "encoder"):
            self.model = self.model.encoder
        self.folder, self.key, self.device = folder, key, device
        # RoBERTa's tokenizer reads a first word without a space as the end of another; bert-score adds the space, too.
        self.text_prefix = " " if isinstance(self.tokenizer, RobertaTokenizer) else ""
        limit = self.tokenizer.model_max_length
        # RoBERTa's positions begin after the padding index.
        self.max_tokens = limit if limit < NO_LIMIT else getattr(self.model.config, "max_position_embeddings", 514) - 2

    def token_ids(self, text: str) -> list[int]:
        """Token ids of a text including special tokens, truncated to the maximum length of the model."""
        return self.tokenizer.encode(self.text_prefix + text.strip(), truncation=True, max_length=self.max_tokens)

    @torch.no_grad()
    def encode(self, texts: Sequence[str], layer: int | None = None) -> list[Encoded]:
        """Token ids and token vectors of every text, on the CPU: the hidden states of `layer` (0: the embeddings), or
        of the last layer."""
        self.model.to(self.device)
        ids = [self.token_ids(text) for text in texts]
        encoded: list[Any] = [None] * len(ids)
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        for start in range(0, len(order), BATCH_SIZE):
            numbers = order[start : start + BATCH_SIZE]
            longest = len(ids[numbers[-1]])
            ids_BS = torch.full((len(numbers), longest), self.tokenizer.pad_token_id or 0)
            mask_BS = torch.zeros_like(ids_BS)
            for row, number in enumerate(numbers):
                ids_BS[row, : len(ids[number])] = torch.tensor(ids[number])
                mask_BS[row, : len(ids[number])] = 1
            inputs = {"input_ids": ids_BS.to(self.device), "attention_mask": mask_BS.to(self.device)}
            output = self.model(**inputs, output_hidden_states=layer is not None)
            hidden_BSD = output.last_hidden_state if layer is None else output.hidden_states[layer]
            for row, number in enumerate(numbers):
                encoded[number] = ids[number], hidden_BSD[row, : len(ids[number])].float().cpu()
        return encoded


def vector_width(folder: Path, key: str) -> int:
    """The vector width of the text encoder in `folder`, which the spec's `key` names. Raises METRIC_UNAVAILABLE."""
    try:
        return int(AutoConfig.from_pretrained(folder).get_text_config().hidden_size)
    except (*BROKEN, AttributeError) as broken:
        raise METRIC_UNAVAILABLE.error(key, f"the config.json of {folder} has no vector size: {broken}") from broken


def bertscore(model: TextModel, layer: int) -> Measure:
    """BERTScore: the mean cosine of each token with its best match in the other text; precision over the answer's
    tokens, recall over the expected answer's. Special tokens can be a match, and are not averaged. `layer` is the
    hidden layer whose vectors are compared, 0 the last one. A text without tokens scores 0. Raises METRIC_UNAVAILABLE.
    """
    layers = model.model.config.num_hidden_layers
    if layer > layers:
        raise METRIC_UNAVAILABLE.error("metrics.bertscore_layer", f"{layer}; {model.folder} has {layers} layers")
    special = {model.tokenizer.cls_token_id, model.tokenizer.sep_token_id}

    def scores_of(answer: Encoded, expected: Encoded) -> tuple[float, float, float]:
        answer_mask, expected_mask = (
            torch.tensor([token not in special for token in ids]) for ids, _ in (answer, expected)
        )
        if not (answer_mask.any() and expected_mask.any()):
            return 0.0, 0.0, 0.0
        cosines = normalize(answer[1], dim=-1) @ normalize(expected[1], dim=-1).T
        precision = cosines.amax(1)[answer_mask].mean().item()
        recall = cosines.amax(0)[expected_mask].mean().item()
        total = precision + recall
        return precision, recall, 2 * precision * recall / total if total else 0.0

    def measure(answers: Sequence[str], expected: Sequence[str]) -> Scores:
        encoded = _for_distinct_texts(partial(model.encode, layer=layer or None), answers, expected)
        columns = zip(*(scores_of(encoded[a], encoded[e]) for a, e in zip(answers, expected, strict=True)), strict=True)
        return dict(zip(OF_SECOND_MODELS["bertscore"], columns, strict=True))

    return measure


def similarity(model: TextModel) -> Measure:
    """The cosine similarity of two sentence embeddings; an empty text has similarity 0. Raises METRIC_UNAVAILABLE."""
    embed = sentence_embedder(model)

    def measure(answers: Sequence[str], expected: Sequence[str]) -> Scores:
        vectors = _for_distinct_texts(embed, answers, expected)
        pairs = zip(answers, expected, strict=True)
        return {"similarity": [(vectors[a] @ vectors[e]).item() if a and e else 0.0 for a, e in pairs]}

    return measure


def sentence_embedder(model: TextModel) -> Callable[[Sequence[str]], Sequence[torch.Tensor]]:
    """A function from texts to sentence embeddings, each float32 [D] of length 1. It pools token vectors by the
    folder's modules.json (sentence-transformers); without that file it takes their mean. Raises METRIC_UNAVAILABLE for
    modules that are not implemented here."""
    try:
        pool = _pooling(model)
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise _unavailable(model, f"has settings of sentence-transformers that cannot be read: {broken!r}") from broken
    return lambda texts: [normalize(pool(vectors), dim=-1) for _, vectors in model.encode(texts)]


def _for_distinct_texts(encode: Callable[[Sequence[str]], Sequence[Any]], *lists: Sequence[str]) -> dict[str, Any]:
    """Encode all texts of the lists, repeated texts once; returns the results by text."""
    distinct = list(dict.fromkeys(text for texts in lists for text in texts))
    return dict(zip(distinct, encode(distinct), strict=True))


def _pooling(model: TextModel) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from token vectors [S, D] to one vector [D]. Also lowers the model's `max_tokens` to the folder's."""
    mode = "mean"
    for module in _read_json(model.folder / "modules.json", []):
        kind = module["type"].rsplit(".", 1)[-1]
        config = _read_json(model.folder / module["path"] / "config.json", {})
        if kind == "Transformer":
            settings = _read_json(model.folder / module["path"] / "sentence_bert_config.json", {})
            model.max_tokens = min(model.max_tokens, settings.get("max_seq_length") or model.max_tokens)
        elif kind == "Pooling":
            setting = config.get("pooling_mode")
            modes = [setting] if isinstance(setting, str) else setting or [key for key in config if config[key] is True]
            modes = [name for name in modes if name != "include_prompt"]
            if len(modes) != 1 or modes[0] not in POOLING:
                raise _unavailable(
                    model, f"pools by {', '.join(modes) or 'nothing'}; mean and cls are implemented here"
                )
            mode = POOLING[modes[0]]
        elif kind not in NEUTRAL_MODULES:
            raise _unavailable(model, f"has a module {kind}, which is not implemented here")
    if _read_json(model.folder / "config_sentence_transformers.json", {}).get("default_prompt_name"):
        raise _unavailable(model, "puts a prompt before every text, which is not implemented here")
    return (lambda vectors: vectors[0]) if mode == "cls" else (lambda vectors: vectors.mean(0))


def _read_json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else default


def _unavailable(model: TextModel, why: str) -> Exception:
    return METRIC_UNAVAILABLE.error(model.key, f"{model.folder} {why}")


def open_measures(spec: EvaluateSpec, device: torch.device) -> dict[str, Measure]:
    """The measures of a spec's metrics, by name. Their models are loaded now and moved to `device` on first use. Raises
    METRIC_UNAVAILABLE."""
    measures = {}
    for name, key in metric_models(spec).items():
        model = TextModel(Path(os.path.expanduser(value_at(spec, key))), key, device)
        measures[name] = bertscore(model, spec.metrics.bertscore_layer) if name == "bertscore" else similarity(model)
    return measures
