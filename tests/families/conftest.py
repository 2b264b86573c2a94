"""One tiny model folder with its processor, made once for all chat tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidqa.families.chat import Chat, load_chat


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vidqa.engine.families.tiny_qwen3_vl import tiny_config, tiny_processor

    folder = tmp_path_factory.mktemp("tiny")
    processor = tiny_processor(["Is the door open? Yes it is. Ünïcödé façade 門は開いていますか"])
    processor.save_pretrained(folder)
    tiny_config(processor.tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chat(model_folder: Path) -> Chat:
    return load_chat(model_folder)
