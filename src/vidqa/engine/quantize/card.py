"""The model card of a quantized folder: README.md, from quantize.json and the card of the source model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidqa.core.cli import size_text
from vidqa.core.files import read_object, write_text
from vidqa.data.hub_card import CARD, front_matter, front_matter_text

FACTS = "quantize.json"


def write_card(folder: Path) -> None:
    """Write the card of a folder from its quantize.json; license and base model of an existing README.md are kept."""
    facts = read_object(folder / FACTS)
    proof, sizes, gate = facts["proof"], facts["bytes"], facts.get("gate")
    head = front_matter(folder / CARD) | {"library_name": "transformers", "pipeline_tag": "image-text-to-text"}
    layer = proof["largest_layer_error"]
    decoder = [name for name in facts["kept"] if not name.startswith(("lm_head", facts["tower"]))]
    rows = {
        "scheme": f"{facts['scheme']}, method {facts['method']}, group {facts['group_size'] or 'none'}",
        "cache of keys and values": facts["kv_precision"],
        "layers": f"{len(facts['modules'])} linear layers of the decoder",
        "kept as they were": ", ".join(["vision tower", "embeddings", "head", *decoder]),
        "size": f"{size_text(sizes['quantized'])}; the model before {size_text(sizes['model'])}",
        "calibration": f"{data['samples']} training samples, {data['tokens']} tokens, fingerprint "
        f"{data['fingerprint'][:16]}"
        if (data := facts["calibration"])
        else "none",
        "proof": f"loaded again by transformers, the log-probabilities of {proof['tokens']} answer tokens differ by "
        f"{proof['largest_difference']:.2g} at most",
        "loss of these samples": f"{proof['quantized_loss']:.4f}; the model before {proof['loss']:.4f}",
        "largest relative error of a layer's output": f"{layer['relative_error']:.3f}, layer {layer['layer']}",
        "accuracy": gate["sentence"] if gate else "not compared",
        "made with": ", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
    }
    about = f"The model {facts['model']['name']}, in smaller numbers, in the format of compressed-tensors."
    lines = [front_matter_text(head), f"# {facts['scheme']}", "", about, "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in rows.items()]
    lines += ["", *tries_table(facts["tries"])] if "tries" in facts else []
    write_text(folder / CARD, "\n".join([*lines, ""]))


def tries_table(tries: Sequence[dict[str, Any]]) -> list[str]:
    """The tries of a search, one row each: groups kept besides quantize.keep, size, accuracy and verdict."""
    head = ["| try | kept in addition | size | accuracy | gate |", "| --- | --- | --- | --- | --- |"]
    return head + [
        f"| {number} | {', '.join(entry['kept']) or 'nothing'} | {size_text(entry['bytes'])} | "
        f"{100 * entry['after']:.1f} % ({100 * entry['before']:.1f} % before) | "
        f"{'holds' if entry['passed'] else 'fails'} |"
        for number, entry in enumerate(tries, start=1)
    ]
