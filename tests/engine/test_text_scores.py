"""BERTScore and semantic similarity: what the packages bert-score and sentence-transformers give for the same folders,
and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from text_encoder import write_encoder, write_sentence_model

from vidqa.core.problem import ProblemError
from vidqa.engine.actions.text_metrics import TextModel, bertscore, open_measures, similarity, vector_width

CPU = torch.device("cpu")
ANSWERS = ["The door is open.", "A man runs to the left", "the red car", "the door is open."]
EXPECTED = ["The door is closed", "the woman walks to the right, in the left room", "the red car", "open"]
MEAN, FIRST = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, {"pooling_mode_cls_token": True}
# Of bert-score 0.3.13 with num_layers=2, and of sentence-transformers 6.2.0.
BERTSCORE = {
    "bertscore_precision": [0.583345, 0.861963, 1.0, 0.534581],
    "bertscore_recall": [0.794339, 0.79027, 1.0, 0.893167],
    "bertscore_f1": [0.672685, 0.824561, 1.0, 0.668843],
}
SIMILARITY = [(MEAN, [0.77548, 0.969405, 1.0, 0.896779]), (FIRST, [0.844412, 0.995633, 1.0, 0.976518])]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def scorer(folder: Path, layer: int = 2) -> Any:
    return bertscore(TextModel(folder, "metrics.bertscore_model", CPU), layer)


def likeness(folder: Path) -> Any:
    return similarity(TextModel(folder, "metrics.similarity_model", CPU))


def test_bertscore_is_that_of_its_package(encoder: Path) -> None:
    measure = scorer(encoder)
    found = measure(ANSWERS, EXPECTED)
    for name, values in BERTSCORE.items():
        assert found[name] == pytest.approx(values, abs=1e-5)
    alone = [
        measure([answer], [expected])["bertscore_f1"][0] for answer, expected in zip(ANSWERS, EXPECTED, strict=True)
    ]
    assert alone == pytest.approx(found["bertscore_f1"], abs=1e-6)
    assert scorer(encoder, 0)(ANSWERS, EXPECTED)["bertscore_f1"] == pytest.approx(
        scorer(encoder, 3)(ANSWERS, EXPECTED)["bertscore_f1"]
    )
    assert measure(["", "open"], ["open", ""])["bertscore_f1"] == (0.0, 0.0)


@pytest.mark.parametrize(("pooling", "expected"), SIMILARITY, ids=["mean", "first"])
def test_similarity_is_that_of_its_package(pooling: dict[str, Any], expected: list[float], tmp_path: Path) -> None:
    measure = likeness(write_sentence_model(tmp_path, pooling))
    assert measure(ANSWERS, EXPECTED)["similarity"] == pytest.approx(expected, abs=1e-5)
    assert measure(["", "open"], ["open", "open"])["similarity"] == pytest.approx([0.0, 1.0])


def test_the_packages_themselves_agree(encoder: Path, tmp_path: Path) -> None:
    """pip install bert-score sentence-transformers"""
    package = pytest.importorskip("bert_score", reason="the package bert-score is not installed")
    sentences = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    theirs = package.score(ANSWERS, EXPECTED, model_type=str(encoder), num_layers=2, device="cpu")
    for values, column in zip(BERTSCORE.values(), theirs, strict=True):
        assert values == pytest.approx(column.tolist(), abs=1e-5)
    for number, (pooling, values) in enumerate(SIMILARITY):
        (folder := tmp_path / str(number)).mkdir()
        model = sentences.SentenceTransformer(str(write_sentence_model(folder, pooling)), device="cpu")
        a, e = (model.encode(texts, convert_to_tensor=True) for texts in (ANSWERS, EXPECTED))
        assert values == pytest.approx(torch.nn.functional.cosine_similarity(a, e).tolist(), abs=1e-5)


def test_the_width_of_vectors_is_known_before_a_model_is_loaded(encoder: Path, tmp_path: Path) -> None:
    assert vector_width(encoder, "embed.text_model") == 32
    for name, size in (("distilbert", "dim"), ("t5", "d_model")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": name, size: 48, "n_heads": 2}))
        assert vector_width(tmp_path, "embed.text_model") == 48
    for name in ("config.json", "none"):
        (tmp_path / "config.json").write_text("[]")
        with pytest.raises(ProblemError, match="METRIC_UNAVAILABLE"):
            vector_width(tmp_path / name, "embed.text_model")


def test_what_cannot_be_computed_is_refused(encoder: Path, tmp_path: Path) -> None:
    def refused(work: Any) -> str:
        with pytest.raises(ProblemError) as stopped:
            work()
        (problem,) = stopped.value.problems
        assert problem.code == "METRIC_UNAVAILABLE" and problem.where.startswith("metrics.")
        return problem.message

    assert "3 layers" in refused(lambda: scorer(encoder, 4))
    for name, pooling, last in (("dense", MEAN, "Dense"), ("odd", {"pooling_mode": "lasttoken"}, "Normalize")):
        (tmp_path / name).mkdir()
        write_sentence_model(tmp_path / name, pooling, last)
    assert "Dense" in refused(lambda: likeness(tmp_path / "dense"))
    assert "lasttoken" in refused(lambda: likeness(tmp_path / "odd"))
    broken = tmp_path / "broken"
    sizes = json.loads((encoder / "config.json").read_text())
    for name, content, message in (
        ("config.json", json.dumps({**sizes, "num_hidden_layers": 4}), "lacks"),
        ("model.safetensors", "damaged", "cannot load"),
        ("config.json", "[]", "cannot load"),
        ("config.json", '{"model_type": "bert", "hidden_size": 64, "num_attention_heads": 2}', "cannot load"),
        ("tokenizer*.json", None, "no tokenizer vocabulary"),
        ("modules.json", "damaged", "cannot be read"),
        ("modules.json", '[{"idx": 0}]', "cannot be read"),
        ("1_Pooling/config.json", "[1]", "cannot be read"),
    ):
        write_sentence_model(broken, MEAN)
        for path in broken.glob(name):
            path.write_text(content) if content else path.unlink()
        assert message in refused(lambda: likeness(broken)), (name, content)
        shutil.rmtree(broken)
    metrics = SimpleNamespace(names=["similarity"], similarity_model=str(tmp_path / "none"))
    assert "cannot load" in refused(lambda: open_measures(SimpleNamespace(metrics=metrics), CPU))
