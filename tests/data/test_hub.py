"""A model's name becomes a folder, or a problem that says why not; against a real local HTTP server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub_server import COMMIT, Hub, serving
from vidqa.core.problem import Exit, ProblemError
from vidqa.data.storage import hub as model_hub
from vidqa.data.storage.hub import ask, expect, parse, resolve_model

TOKEN = "hf_plantedtokenthatmustnotappear"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "served"
    (folder / "original").mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen3_vl"}')
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "merges.txt").write_text("a b\n")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "picture.png").write_bytes(b"never needed")
    (folder / "original" / "weights.safetensors").write_bytes(b"never needed")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model_hub, "PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(model_hub, "TIMEOUT_S", 0.2)
    with serving(folder) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def refused(name: str, token: str | None = None) -> tuple[str, str]:
    with pytest.raises(ProblemError) as raised:
        resolve_model(name, token=token)
    assert len(raised.value.problems) == 1
    return raised.value.problems[0].code, str(raised.value)


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path), token=None) == tmp_path.resolve()


def test_a_missing_folder_and_a_file_are_refused(tmp_path: Path) -> None:
    code, text = refused(str(tmp_path / "none"))
    assert code == "STORAGE_NOT_FOUND" and str(tmp_path / "none") in text
    (tmp_path / "file").touch()
    assert refused(str(tmp_path / "file"))[0] == "STORAGE_NOT_FOUND"


def test_a_bare_hub_name_is_told_the_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "hf_model://nvidia/Cosmos-Reason2-8B" in refused("nvidia/Cosmos-Reason2-8B")[1]
    assert "hf_model" not in refused("../model")[1], "no name of the hub"


def test_names() -> None:
    assert parse("hf_model://org/name") == ("org/name", None)
    assert parse("hf_model://org/name@v1.0") == ("org/name", "v1.0")
    assert refused("hf_model://name")[0] == "STORAGE_NOT_FOUND"


def test_fetches_only_the_needed_files(server: Hub) -> None:
    folder = resolve_model("hf_model://org/tiny", token=None)
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert found == {"config.json", "model.safetensors", "merges.txt", "chat_template.jinja"}
    assert (folder / "model.safetensors").read_bytes() == bytes(1000)
    assert folder.name == COMMIT


def test_a_second_resolve_fetches_nothing(server: Hub) -> None:
    first = resolve_model("hf_model://org/tiny", token=None)
    server.requests.clear()
    assert resolve_model("hf_model://org/tiny@main", token=None) == first
    assert not [r for r in server.requests if r.startswith("GET") and "/resolve/" in r]


def test_a_cached_snapshot_serves_when_the_hub_is_down(server: Hub) -> None:
    first = resolve_model("hf_model://org/tiny@main", token=None)
    server.refuse = 503
    assert resolve_model("hf_model://org/tiny@main", token=None) == first
    (first / "model.safetensors").unlink()
    assert resolve_model("hf_model://org/tiny@main", token=None, weights=False) == first
    assert refused("hf_model://org/tiny@main")[0] == "STORAGE_UNREACHABLE", "its small files alone are no model"


@pytest.mark.parametrize(
    ("status", "code", "exit_code", "asked"),
    [
        (401, "STORAGE_DENIED", Exit.ENVIRONMENT, 1),
        (403, "STORAGE_DENIED", Exit.ENVIRONMENT, 1),
        (404, "STORAGE_NOT_FOUND", Exit.INPUT, 1),
        (429, "STORAGE_UNREACHABLE", Exit.ENVIRONMENT, 3),
        (503, "STORAGE_UNREACHABLE", Exit.ENVIRONMENT, 3),
        (0, "STORAGE_UNREACHABLE", Exit.ENVIRONMENT, 3),
    ],
)
def test_refusals(server: Hub, status: int, code: str, exit_code: int, asked: int) -> None:
    server.refuse = status
    with pytest.raises(ProblemError) as raised:
        resolve_model("hf_model://org/tiny", token=TOKEN)
    assert raised.value.problems[0].code == code
    assert raised.value.exit_code == exit_code
    assert len(server.requests) == asked
    assert TOKEN not in str(raised.value)


def test_a_short_refusal_is_survived(server: Hub) -> None:
    server.refuse, server.refuse_times = 429, 2
    assert (resolve_model("hf_model://org/tiny", token=None) / "config.json").is_file()


def test_an_unknown_repository_is_not_found(server: Hub) -> None:
    assert refused("hf_model://org/other")[0] == "STORAGE_NOT_FOUND"


def test_a_gated_model_needs_the_right_token(server: Hub) -> None:
    server.gated_to = TOKEN
    code, text = refused("hf_model://org/tiny", "hf_other")
    assert code == "STORAGE_DENIED" and f"{server.url}/org/tiny" in text and "hf_other" not in text
    assert ask("hf_model://org/tiny", token=TOKEN) == COMMIT


def test_files_refused_after_the_model_was_found(server: Hub) -> None:
    server.refuse_files = 403
    assert refused("hf_model://org/tiny", TOKEN)[0] == "STORAGE_DENIED"


def test_no_server_at_all(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        assert (
            refused("hf_model://org/tiny")[0] == "STORAGE_UNREACHABLE"
        )  # the port is kept, so nobody else listens there


def test_an_unwritable_cache_is_said(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "occupied" / "cache"))
    assert refused("hf_model://org/tiny")[0] == "ENV_DISK_SPACE"


def test_offline_is_said_at_once(tmp_path: Path) -> None:
    program = "from vidqa.data.storage.hub import resolve_model; resolve_model('hf_model://org/tiny', token=None)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "STORAGE_UNREACHABLE" in ran.stderr and "HF_HUB_OFFLINE" in ran.stderr


def codes(expected: model_hub.Expected) -> list[tuple[str, str]]:
    return [(problem.code, problem.severity) for problem in expected.problems]


def test_where_a_model_will_be_is_known_before_it_is_fetched(server: Hub) -> None:
    before = expect("hf_model://org/tiny", token=None)
    assert codes(before) == [("STORAGE_TO_FETCH", "warning")] and str(before.folder) in before.problems[0].message
    assert not before.is_here and not before.folder.exists()
    fetched = resolve_model("hf_model://org/tiny", token=None, weights=False)
    assert not expect("hf_model://org/tiny", token=None).is_here, "its small files alone are no model"
    assert resolve_model("hf_model://org/tiny", token=None) == fetched == before.folder
    after = expect("hf_model://org/tiny", token=None)
    assert after == model_hub.Expected(before.folder, True, [], "")


def test_the_command_that_fetches_does_what_a_launch_does(server: Hub, tmp_path: Path) -> None:
    expected = expect("hf_model://org/tiny@main", token=None)
    variables = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache")}
    subprocess.run(["bash", "-c", expected.fetch], check=True, capture_output=True, timeout=120, env=variables)
    assert {p.name for p in expected.folder.iterdir()} == {
        *("config.json", "model.safetensors", "merges.txt", "chat_template.jinja")
    }
    assert expect("hf_model://org/tiny@main", token=None).is_here


@pytest.mark.parametrize(("status", "severity"), [(403, "error"), (404, "error"), (503, "warning")])
def test_what_the_hub_refuses_is_said_before_the_launch(server: Hub, status: int, severity: str) -> None:
    server.refuse = status
    unknown = expect("hf_model://org/tiny", token=None)
    assert [each[1] for each in codes(unknown)] == [severity, "warning"]
    assert unknown.folder.name == "COMMIT" and "COMMIT" in unknown.problems[1].message and unknown.fetch == ""
    assert len(server.requests) == 1, "a look asks once"
    assert "after 1 attempt" in unknown.problems[0].message or severity == "error"
    named = expect(f"hf_model://org/tiny@{COMMIT}", token=None)
    assert named.folder.name == COMMIT and COMMIT in named.fetch


def test_a_model_that_is_here_needs_no_hub(server: Hub) -> None:
    folder = resolve_model("hf_model://org/tiny@main", token=None)
    server.refuse = 503
    assert expect("hf_model://org/tiny@main", token=None) == model_hub.Expected(folder, True, [], "")
    server.refuse = 403
    assert codes(expect("hf_model://org/tiny@main", token=None)) == [("STORAGE_DENIED", "error")], (
        "a launch is refused, too"
    )
