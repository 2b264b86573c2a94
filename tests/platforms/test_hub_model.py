"""A model of the hub in a dry run: the script that is printed is the one that a launch submits after fetching it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomli_w

from tests.hub_server import COMMIT, Hub, serving
from tests.platforms.slurm_cluster import SlurmCluster
from vidqa.data.storage import hub as model_hub
from vidqa.data.storage.hub import resolve_model
from vidqa.jobs import job_results
from vidqa.jobs.launch import DryRun, dry_run
from vidqa.jobs.platforms import platform
from vidqa.jobs.resources import Resources

pytestmark = pytest.mark.slurm
WriteSpec = Callable[..., Path]
NAME = "hf_model://org/tiny"


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hub's cache: in no folder that the spec names."""
    return tmp_path_factory.mktemp("home") / "hub"


@pytest.fixture
def server(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = tmp_path / "served"
    served.mkdir()
    (served / "config.json").write_text("{}")
    (served / "model.safetensors").write_bytes(bytes(1000))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(model_hub, "TIMEOUT_S", 5.0)
    with serving(served) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def hub_spec(write_spec: WriteSpec) -> Path:
    path = write_spec("complete")
    text = path.read_text()
    model = next(line for line in text.splitlines() if "model_name_or_path" in line)
    path.write_text(text.replace(model, f'model_name_or_path = "{NAME}"'))
    return path


def looked_at(spec: Path, name: str, **settings: str) -> DryRun:
    site = spec.with_name("site.toml")
    site.write_text(tomli_w.dumps({name: settings}) if settings else "")
    return dry_run("train", spec, name, Resources(site=site))


def shown(made: DryRun) -> dict[str, str]:
    """What would be submitted, whatever the job's name."""
    return {name: text.replace(made.job.job_id, "JOB") for name, text in job_results.files_of(made).items()}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("local", {}),
        ("slurm", {}),
        ("slurm", {"backend": "apptainer", "image": "docker://engine:1"}),
        ("slurm", {"backend": "pyxis", "image": "registry#engine:1"}),
    ],
)
def test_what_is_shown_before_is_what_runs_after(
    server: Hub, slurm: SlurmCluster, hub_spec: Path, cache: Path, name: str, settings: dict[str, str]
) -> None:
    before = looked_at(hub_spec, name, **settings)
    assert not cache.exists(), "nothing is fetched"
    assert "STORAGE_TO_FETCH" in [problem.code for problem in before.problems]
    folder = resolve_model(NAME, token=None)
    after = looked_at(hub_spec, name, **settings)
    assert shown(after) == shown(before)
    assert "STORAGE_TO_FETCH" not in [problem.code for problem in after.problems]
    assert tomllib.loads(before.spec_toml)["policy"]["model_name_or_path"] == str(folder)
    if "backend" in settings:
        blobs = folder.parents[1] / "blobs"
        assert {f"{each}:{each}:ro" for each in (folder, blobs)} <= set(mounted(before.rendered.files["job.sbatch"]))


def mounted(script: str) -> list[str]:
    """The words between commas of the one line that starts the container."""
    return next(line for line in script.splitlines() if line.startswith("srun ")).replace(" ", ",").split(",")


def test_to_submit_by_hand_the_model_is_fetched_first(
    server: Hub, slurm: SlurmCluster, hub_spec: Path, tmp_path: Path
) -> None:
    made = looked_at(hub_spec, "slurm")
    fetch, submit = job_results.of_dry_run(made, platform("slurm"), tmp_path / "look").next
    assert " download org/tiny " in fetch and COMMIT in fetch and "sbatch" in submit
    server.refuse = 503
    unknown = looked_at(hub_spec, "slurm")
    assert job_results.of_dry_run(unknown, platform("slurm"), tmp_path / "look").next == [], "no one knows the commit"
    assert {p.code: p.severity for p in unknown.problems}["STORAGE_UNREACHABLE"] == "warning"
    server.refuse = 403
    refused = looked_at(hub_spec, "slurm")
    assert {p.code: p.severity for p in refused.problems}["STORAGE_DENIED"] == "error", "a launch would be refused"
