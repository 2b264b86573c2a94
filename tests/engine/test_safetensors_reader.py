"""Reading weights by several threads: the rows asked for, in any precision, and broken files by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vidqa.core.problem import ProblemError
from vidqa.engine.loading import safetensors_reader
from vidqa.engine.loading.safetensors_reader import RowRead, read_rows, stored_tensors
from vidqa.families.weights import INDEX


@pytest.fixture
def tensors(tmp_path: Path) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(0)
    made = {f"{n}.weight": torch.randn((30 + n, 7, 3), generator=drawn).to(torch.bfloat16) for n in range(6)}
    made["bias"] = torch.randn(11, generator=drawn)
    for number in range(2):
        save_file(dict(list(made.items())[number::2]), tmp_path / f"{number}.safetensors", metadata={"format": "pt"})
    placed = {name: f"{place % 2}.safetensors" for place, name in enumerate(made)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": placed}))
    return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("piece", [1 << 20, 64])
def test_rows_come_as_they_are_stored(
    tmp_path: Path, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, piece: int
) -> None:
    monkeypatch.setattr(safetensors_reader, "PIECE_BYTES", piece)
    found = stored_tensors(tmp_path)
    assert {name: (s.shape, s.dtype) for name, s in found.items()} == {
        name: (tuple(t.shape), t.dtype) for name, t in tensors.items()
    }
    first, last = 4, 9
    got = {name: torch.full_like(t[first:last], float("nan"), dtype=dtype) for name, t in tensors.items()}
    read_rows([RowRead(found[name], first, into) for name, into in got.items()])
    for name, tensor in tensors.items():
        assert torch.equal(got[name], tensor[first:last].to(dtype)), name


def test_a_rank_without_rows_reads_nothing(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    found = stored_tensors(tmp_path)
    read_rows([RowRead(found[name], len(tensor), tensor[:0].clone()) for name, tensor in tensors.items()])
    read_rows([])


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, tensors: dict[str, torch.Tensor], kept: int) -> None:
    path = tmp_path / "1.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ProblemError) as refused:
        stored_tensors(tmp_path)
    assert [(p.code, p.where) for p in refused.value.problems] == [("MODEL_BROKEN", str(path))]


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="the folder has no weights"):
        stored_tensors(tmp_path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    found = stored_tensors(tmp_path)
    name, tensor = next(iter(tensors.items()))
    with found[name].path.open("r+b") as file:
        file.truncate(found[name].begin + 10)
    with pytest.raises(ProblemError, match="the file ends"):
        read_rows([RowRead(found[name], 0, torch.empty_like(tensor))])
