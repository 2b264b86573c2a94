"""Free text scored by a second model: BERTScore, and the cosine of two sentence embeddings.

Both are computed as the packages bert-score (Zhang et al., 2020; no idf, no rescaling) and sentence-transformers do,
from transformers' model alone. Texts of similar length are encoded in batches; a score depends on its texts alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer, RobertaTokenizer

from vidqa.evaluation.metrics import Measure
from vidqa.evaluation.problems import METRIC_UNAVAILABLE
from vidqa.spec.evaluate_tables import metric_models
from vidqa.spec.keys import value_at
from vidqa.spec.models import EvaluateSpec

BATCH = 32
LONGEST = 100_000  # a larger limit of a tokenizer means that it has none
Scores = Mapping[str, Sequence[float]]  # by the score's name, one for each pair of texts
POOLING = {  # names in sentence-transformers folders, old and new
    "mean": "mean",
    "cls": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
PASSED_OVER = ("Normalize", "Dropout")  # modules that do not change a cosine


class TextModel:
    """A model of text and its tokenizer. `model` returns hidden states [B, S, D]."""

    def __init__(self, folder: Path, key: str, device: torch.device) -> None:
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
            self.model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        except (OSError, ValueError, KeyError) as broken:
            raise METRIC_UNAVAILABLE.error(key, f"transformers cannot load {folder}: {broken}") from broken
        if hasattr(self.model, "decoder") and hasattr(self.model, "encoder"):
            self.model = self.model.encoder
        self.folder, self.key, self.device = folder, key, device
        # Tokenizes the first word like words inside a text.
        self.before = " " if isinstance(self.tokenizer, RobertaTokenizer) else ""
        limit = self.tokenizer.model_max_length
        # RoBERTa's positions begin after the padding index.
        self.longest = limit if limit < LONGEST else getattr(self.model.config, "max_position_embeddings", 514) - 2

    def token_ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(self.before + text.strip(), truncation=True, max_length=self.longest)

    @torch.no_grad()
    def vectors(self, texts: Sequence[str], layer: int | None = None) -> list[tuple[list[int], torch.Tensor]]:
        """Token ids and their vectors [S, D], of a hidden layer counted from the embeddings, or of the last one."""
        self.model.to(self.device)
        ids = [self.token_ids(text) for text in texts]
        encoded: list[Any] = [None] * len(ids)
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        for start in range(0, len(order), BATCH):
            numbers = order[start : start + BATCH]
            width = len(ids[numbers[-1]])
            token = torch.full((len(numbers), width), self.tokenizer.pad_token_id or 0)
            mask = torch.zeros_like(token)
            for row, number in enumerate(numbers):
                token[row, : len(ids[number])] = torch.tensor(ids[number])
                mask[row, : len(ids[number])] = 1
            inputs = {"input_ids": token.to(self.device), "attention_mask": mask.to(self.device)}
            output = self.model(**inputs, output_hidden_states=layer is not None)
            hidden = output.last_hidden_state if layer is None else output.hidden_states[layer]
            for row, number in enumerate(numbers):
                encoded[number] = ids[number], hidden[row, : len(ids[number])].float().cpu()
        return encoded


def bertscore(model: TextModel, layer: int) -> Measure:
    """Each token's best match among the other text's tokens: precision over the answer's tokens, recall over the
    expected ones'. Special tokens may be matched and are not counted. `layer` 0 is the last one."""
    layers = model.model.config.num_hidden_layers
    if layer > layers:
        raise METRIC_UNAVAILABLE.error("metrics.bertscore_layer", f"{layer}; {model.folder} has {layers} layers")
    special = {model.tokenizer.cls_token_id, model.tokenizer.sep_token_id}

    def scores_of(
        answer: tuple[list[int], torch.Tensor], expected: tuple[list[int], torch.Tensor]
    ) -> tuple[float, ...]:
        counted = [torch.tensor([token not in special for token in ids]) for ids, _ in (answer, expected)]
        if not all(mask.any() for mask in counted):
            return 0.0, 0.0, 0.0
        alike = normalize(answer[1], dim=-1) @ normalize(expected[1], dim=-1).T
        precision = alike.amax(1)[counted[0]].mean().item()
        recall = alike.amax(0)[counted[1]].mean().item()
        both = precision + recall
        return precision, recall, 2 * precision * recall / both if both else 0.0

    def measure(answers: Sequence[str], expected: Sequence[str]) -> Scores:
        vectors = _of_texts(partial(model.vectors, layer=layer or None), answers, expected)
        columns = zip(*(scores_of(vectors[a], vectors[e]) for a, e in zip(answers, expected, strict=True)), strict=True)
        return dict(zip(("bertscore_precision", "bertscore_recall", "bertscore_f1"), columns, strict=True))

    return measure


def similarity(model: TextModel) -> Measure:
    """The cosine of the two texts' embeddings, by a folder of sentence-transformers; of a folder without modules.json
    the mean of the token vectors. An empty text has similarity 0."""
    embedded = sentences(model)

    def measure(answers: Sequence[str], expected: Sequence[str]) -> Scores:
        vectors = _of_texts(embedded, answers, expected)
        pairs = zip(answers, expected, strict=True)
        return {"similarity": [(vectors[a] @ vectors[e]).item() if a and e else 0.0 for a, e in pairs]}

    return measure


def sentences(model: TextModel) -> Callable[[Sequence[str]], Sequence[torch.Tensor]]:
    """A function from texts to embeddings, float32 [D] of length 1 each. Raises METRIC_UNAVAILABLE."""
    pool = _pooling(model)
    return lambda texts: [normalize(pool(vectors), dim=-1) for _, vectors in model.vectors(texts)]


def _of_texts(work: Callable[[Sequence[str]], Sequence[Any]], *texts: Sequence[str]) -> dict[str, Any]:
    """The result of `work` for each distinct text."""
    different = list(dict.fromkeys(text for part in texts for text in part))
    return dict(zip(different, work(different), strict=True))


def _pooling(model: TextModel) -> Callable[[torch.Tensor], torch.Tensor]:
    """The pooling of a folder's token vectors [S, D]. Raises METRIC_UNAVAILABLE for unsupported modules."""
    mode = "mean"
    for part in _read(model.folder / "modules.json", []):
        kind = part["type"].rsplit(".", 1)[-1]
        config = _read(model.folder / part["path"] / "config.json", {})
        if kind == "Transformer":
            settings = _read(model.folder / part["path"] / "sentence_bert_config.json", {})
            model.longest = min(model.longest, settings.get("max_seq_length") or model.longest)
        elif kind == "Pooling":
            named = config.get("pooling_mode")
            modes = [named] if isinstance(named, str) else named or [name for name in config if config[name] is True]
            pooling = [name for name in modes if name != "include_prompt"]
            if len(pooling) != 1 or pooling[0] not in POOLING:
                raise _refused(model, f"pools by {', '.join(pooling) or 'nothing'}; mean and cls are computed here")
            mode = POOLING[pooling[0]]
        elif kind not in PASSED_OVER:
            raise _refused(model, f"has a part {kind}, which is not computed here")
    if _read(model.folder / "config_sentence_transformers.json", {}).get("default_prompt_name"):
        raise _refused(model, "puts a prompt before every text, which is not done here")
    return (lambda vectors: vectors[0]) if mode == "cls" else (lambda vectors: vectors.mean(0))


def _read(path: Path, otherwise: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else otherwise


def _refused(model: TextModel, why: str) -> Exception:
    return METRIC_UNAVAILABLE.error(model.key, f"{model.folder} {why}")


def open_measures(spec: EvaluateSpec, device: torch.device) -> dict[str, Measure]:
    """The measures of a spec's metrics, by name. Their models are loaded now and moved to `device` on first use. Raises
    METRIC_UNAVAILABLE."""
    measures = {}
    for name, key in metric_models(spec).items():
        model = TextModel(Path(os.path.expanduser(value_at(spec, key))), key, device)
        measures[name] = bertscore(model, spec.metrics.bertscore_layer) if name == "bertscore" else similarity(model)
    return measures
