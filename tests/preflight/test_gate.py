"""What stands between a spec and its job: a kept report of preflight, or a look of the launch's own, without frames."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clips import write_clip
from tests.hub_server import serving
from tests.platforms.stand_in import install
from tests.preflight.conftest import records as rows
from tests.preflight.conftest import script
from vidqa import spec as specs
from vidqa.core.problem import Exit, Problem, ProblemError
from vidqa.core.run_folder import PLAN
from vidqa.families.weights import weight_bytes
from vidqa.jobs import job_results, records
from vidqa.jobs import watch as jobs
from vidqa.jobs.cosmos_container import prepare
from vidqa.jobs.job_spec import fetch_weights, load_job_spec
from vidqa.jobs.launch import Launched, dry_run, launch, retry
from vidqa.jobs.platforms._base import State
from vidqa.jobs.platforms.supervisor import kill_job
from vidqa.jobs.resources import Resources
from vidqa.planning import plan_cache
from vidqa.planning.plan import load_sets
from vidqa.planning.samples import training_planner
from vidqa.preflight import launch_gate
from vidqa.preflight.report import Report, preflight

WriteSpec = Callable[..., Path]
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ENOUGH_S = 900.0
LOOKED = launch_gate.NO_REPORT[:30]


@pytest.fixture
def spec(write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec that passes preflight, with the stand-in for the engine that completes at once; its jobs are ended."""
    install(monkeypatch.setattr)
    return write_spec(**SMALL)


@pytest.fixture(autouse=True)
def no_job_stays() -> Any:
    yield
    for record in records.scan()[0]:
        kill_job(record.job_id)


SMALL: dict[str, object] = {"policy.parallelism.dp_shard_size": 1, "logging.experiment_name": "complete"}


def started(path: Path, **options: Any) -> Launched:
    launched = launch("train", path, "local", ready=launch_gate.ready, new_run=True, **options)
    assert launched.how == "started"
    jobs.wait(launched.record, ENOUGH_S)
    return launched


def refusal(path: Path, **options: Any) -> set[str]:
    with pytest.raises(ProblemError) as refused:
        launch("train", path, "local", ready=launch_gate.ready, **options)
    assert records.scan()[0] == []
    return {problem.code for problem in refused.value.problems if problem.severity == "error"}


def ready(report: Report) -> bool:
    return not any(problem.severity == "error" for problem in report.problems)


def codes(result: dict[str, Any]) -> set[str]:
    return {problem["code"] for problem in result["problems"] if problem["severity"] == "error"}


def processes_of(folder: Path) -> list[str]:
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    return [line.decode(errors="replace") for line in lines if str(folder).encode() in line]


def test_what_preflight_refuses_is_not_started(write_spec: WriteSpec, media: Path, tmp_path: Path) -> None:
    train = rows(range(4))
    train[0]["video"], train[1]["conversations"][1]["value"] = "absent.mp4", ""
    (media / "2.mp4").write_bytes((media / "2.mp4").read_bytes()[:300])
    path = write_spec(train)
    code, checked, _ = script("preflight", "--spec", path)
    for words in ((), ("--wait",)):
        refused, result, _ = script("launch", "train", "--spec", path, *words)
        assert (refused, codes(result)) == (Exit.INPUT, codes(checked)) and code == Exit.INPUT
    assert {"DATA_MEDIA_MISSING", "DATA_FIELD"} <= codes(result) and len(codes(result)) >= 3
    assert not (tmp_path / "runs").exists() and records.scan()[0] == [] and processes_of(tmp_path) == []


def test_a_passed_preflight_is_found_and_nothing_is_looked_at_again(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (unchecked,) = [problem.code for problem in started(spec).problems]
    assert LOOKED in capsys.readouterr().err
    report = preflight(spec, "local")
    assert ready(report) and unchecked in [problem.code for problem in report.problems]
    launched = started(spec)
    record = launched.record
    assert LOOKED not in capsys.readouterr().err and launched.problems == []  # preflight has reported its warnings
    assert record.preflight == "passed"
    assert json.loads((Path(record.run_dir) / "run.json").read_text())["preflight"] == "passed"


def test_without_a_preflight_a_launch_looks_once(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert started(spec).record.preflight == "without decoding"
    assert LOOKED in capsys.readouterr().err
    assert started(spec).record.preflight == "without decoding"
    assert LOOKED not in capsys.readouterr().err


def change_the_spec(path: Path) -> None:
    path.write_text(path.read_text().replace("nframes = 4", "nframes = 6"))


def change_the_annotations(path: Path) -> None:
    train = rows(range(4))
    train[0]["conversations"][1]["value"] = "yes, it is"
    (path.parent / "train.json").write_text(json.dumps(train))


def change_a_clip(path: Path) -> None:
    write_clip(path.parent / "media/1.mp4", frames=30, fps=8)


def change_the_model(path: Path) -> None:
    model = path.parent / "own"
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config, indent=1))


@pytest.mark.parametrize("change", [change_the_spec, change_the_annotations, change_a_clip, change_the_model])
def test_a_report_of_something_else_does_not_count(
    write_spec: WriteSpec, tiny_model: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    (tmp_path / "own").mkdir()
    for file in tiny_model.iterdir():
        (tmp_path / "own" / file.name).write_bytes(file.read_bytes())
    path = write_spec(**SMALL, **{"policy.model_name_or_path": str(tmp_path / "own")})
    assert ready(preflight(path, "local"))
    assert found(path) is not None
    change(path)
    assert found(path) is None
    assert ready(preflight(path, "local"))
    assert found(path) is not None


def found(path: Path, platform: str = "local") -> launch_gate.CachedReport | None:
    return launch_gate.load(launch_gate.report_path(load_job_spec("train", path, fetch=True), platform, "vidqa"))


def test_a_report_of_one_group_or_of_another_platform_is_none(spec: Path) -> None:
    preflight(spec, "local", group="data")
    assert found(spec) is None
    preflight(spec, "local")
    assert found(spec) is not None and found(spec, "docker") is None


def test_what_decoding_found_stops_a_launch_until_the_file_is_mended(
    write_spec: WriteSpec, media: Path, spec: Path
) -> None:
    """The launch itself looks at headers only: without a preflight it would start this."""
    write_clip(media / "1.mp4", frames=48, fps=8, width=320, height=240)
    sound = (media / "1.mp4").read_bytes()
    broken = bytearray(sound)
    begin, end = broken.index(b"mdat") + 4, broken.rindex(b"moov") - 4
    broken[(begin + end) // 2 : end] = bytes(end - (begin + end) // 2)
    (media / "1.mp4").write_bytes(broken)
    report = preflight(spec, "local")
    decoding = {problem.code for problem in report.problems if problem.severity == "error"}
    assert decoding and decoding <= {"MEDIA_UNREADABLE", "VIDEO_DECODE_TIMEOUT"}
    assert refusal(spec) == decoding
    (media / "1.mp4").write_bytes(sound)
    assert started(spec).record.preflight == "without decoding"


def test_the_evaluation_of_a_failed_preflight_is_looked_at_again(
    spec: Path, tmp_path: Path, tiny_model: Path, media: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its KPI set holds a training clip; once it does not, the launch goes on. The launch says whose options it has."""
    (tmp_path / "kpi.json").write_text(json.dumps(rows(range(3, 5), 1)))
    keys = {"dataset.annotation_path": str(tmp_path / "kpi.json"), "dataset.media_dir": str(media)}
    keys |= {"model.model_name": str(tiny_model), "results_dir": str(tmp_path / "results")}
    evaluation = tmp_path / "evaluation.toml"
    evaluation.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()) + "vision.nframes = 4"
    )
    assert not ready(preflight(spec, "local", evaluate_spec=evaluation))
    leaks = (tmp_path / "leaks.json").read_text()
    assert refusal(spec) == {"DATA_SPLIT_LEAK"}
    assert f"options apply until it runs again with others: --evaluate-spec {evaluation}" in capsys.readouterr().err
    assert (tmp_path / "leaks.json").read_text() == leaks  # preflight's list of all, with look-alikes
    write_clip(media / "kpi.mp4", frames=20, fps=8, first_number=500)
    own = rows(range(3, 4), 1)
    own[0]["video"] = "kpi.mp4"
    (tmp_path / "kpi.json").write_text(json.dumps(own))
    assert started(spec).record.preflight == "without decoding"


def test_a_launch_without_preflight_is_recorded_and_shown(spec: Path, media: Path) -> None:
    (media / "2.mp4").write_bytes(b"no video")
    assert refusal(spec)
    path = spec.with_name("hang.toml")
    path.write_text(spec.read_text().replace("complete", "hang"))
    record = launch("train", path, "local", ready=launch_gate.skipped).record
    shown = job_results.of_job(jobs.observe(record))
    assert record.preflight == shown.data["preflight"] == "skipped"
    assert json.loads((Path(record.run_dir) / "run.json").read_text())["preflight"] == "skipped"
    assert any(line.split() == ["preflight", "skipped"] for line in shown.text.splitlines())
    assert [word for word in shown.next if "preflight.py" in word and str(path) in word]
    again = launch("train", path, "local", ready=launch_gate.ready)  # what runs is attached to, whatever preflight says
    assert (again.how, again.record.job_id) == ("attached", record.job_id)
    jobs.cancel(record.job_id, ENOUGH_S)
    with pytest.raises(ProblemError):
        retry(jobs.find(record.job_id), ready=launch_gate.ready)
    second = retry(jobs.find(record.job_id), ready=launch_gate.skipped).record
    assert (second.preflight, second.retry_of) == ("skipped", record.job_id)
    jobs.cancel(second.job_id, ENOUGH_S)


def test_the_scripts_skip_it(spec: Path, media: Path) -> None:
    (media / "2.mp4").write_bytes(b"no video")
    code, result, _ = script("launch", "train", "--spec", spec, "--dry-run")
    assert code == Exit.INPUT and codes(result) and result["data"]["command"]
    assert not (spec.parent / "state").exists()
    code, result, _ = script("launch", "train", "--spec", spec, "--dry-run", "--skip-preflight")
    assert (code, codes(result)) == (0, set())


DAMAGED = ["", "{", "[]", "null", "{}", "[" * 100_000, "\0" * 200, '{"report": 2}', "\ud800"]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_report_is_made_anew(spec: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    damage(spec, content.encode("utf-8", "surrogatepass"))
    launched = launch_gate.ready(load_job_spec("train", spec, fetch=True), spec, "local", Resources(), fetch=True)
    assert launched.preflight == "without decoding" and LOOKED in capsys.readouterr().err
    assert found(spec) is not None


def damage(spec: Path, content: bytes | None = None, **changes: object) -> None:
    place = launch_gate.key_of(load_job_spec("train", spec, fetch=True), "local", "vidqa", None, list).path
    if content is None:
        told = json.loads(place.read_text())
        content = json.dumps({**told, "report": {**told["report"], **changes}}).encode()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


@pytest.mark.parametrize("changes", [{"passed": "no"}, {"decoded": None}, {"lasting": 3}, {"lasting": [{"code": 1}]}])
def test_a_report_with_other_values_is_none(spec: Path, changes: dict[str, object]) -> None:
    launch_gate.store(
        launch_gate.key_of(load_job_spec("train", spec, fetch=True), "local", "vidqa", None, list),
        launch_gate.CachedReport(True, True, []),
    )
    assert found(spec) == launch_gate.CachedReport(True, True, [])
    damage(spec, **changes)
    assert found(spec) is None


def test_a_folder_that_cannot_be_written_keeps_no_launch_from_looking(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/preflight").touch()
    assert ready(preflight(spec, "local"))
    assert "the report cannot be stored" in capsys.readouterr().err
    assert (
        launch_gate.ready(load_job_spec("train", spec, fetch=True), spec, "local", Resources(), fetch=True).preflight
        == "without decoding"
    )


def test_only_the_newest_reports_are_kept(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_gate, "MOST", 3)
    for number in range(5):
        launch_gate.store(
            launch_gate.ReportKey(launch_gate.folder() / f"{number:032x}.json", {}, {}),
            launch_gate.CachedReport(True, True, []),
        )
    assert sorted(path.name[31] for path in launch_gate.folder().iterdir()) == ["2", "3", "4"]


def test_only_the_newest_plans_are_kept_and_those_of_kept_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_gate, "MOST_PLAN_BYTES", 250)
    for number in range(5):
        seen = launch_gate.ReportKey(launch_gate.folder() / f"{number:032x}.json", {}, {})
        seen.path.parent.mkdir(parents=True, exist_ok=True)
        seen.path.with_suffix(".msgpack").write_bytes(bytes(100))
        os.utime(seen.path.with_suffix(".msgpack"), (number, number))
        if number != 4:
            launch_gate.store(seen, launch_gate.CachedReport(True, True, []))
    assert sorted(path.name[31] for path in launch_gate.folder().glob("*.msgpack")) == ["2", "3", "4"]
    launch_gate.store(
        launch_gate.ReportKey(launch_gate.folder() / f"{5:032x}.json", {}, {}), launch_gate.CachedReport(True, True, [])
    )
    assert sorted(path.name[31] for path in launch_gate.folder().glob("*.msgpack")) == ["3"]


@pytest.mark.parametrize("checked", [True, False])
def test_a_launch_hands_the_plan_to_its_run(spec: Path, checked: bool) -> None:
    """What preflight planned, or the launch itself, is what the engine would plan now."""
    if checked:
        assert ready(preflight(spec, "local"))
    run = Path(started(spec).record.run_dir)
    asked = specs.load(run / "spec.toml", "train")
    planner = training_planner(asked, Path(asked.policy.model_name_or_path))
    encoded = plan_cache.read(run / PLAN, plan_cache.plan_inputs(asked, planner))
    assert encoded is not None
    for name, rows_of in load_sets(asked).items():
        part = plan_cache.decode(encoded).sets[name]
        assert list(part.samples) == planner.plan(rows_of)[0] and list(part.records) == rows_of


@pytest.mark.parametrize("manner", ["killed", "resumable"])
def test_a_retry_and_a_resume_find_the_report(spec: Path, capsys: pytest.CaptureFixture[str], manner: str) -> None:
    spec.write_text(spec.read_text().replace("complete", manner))
    assert ready(preflight(spec, "local"))
    first = launch("train", spec, "local", ready=launch_gate.ready).record
    if manner == "resumable":
        while first.run.read_status().get("state") != State.RUNNING:
            first = jobs.observe(first)
        jobs.cancel(first.job_id, ENOUGH_S)
    first = jobs.wait(first, ENOUGH_S)
    second = retry(first, ready=launch_gate.ready).record
    assert second.preflight == "passed"
    jobs.wait(second, ENOUGH_S)
    spec.write_text(spec.read_text() + "train.resume = true\n")
    third = launch("train", spec, "local", ready=launch_gate.ready, new_run=True).record
    assert third.preflight == "passed"
    jobs.cancel(third.job_id, ENOUGH_S)
    assert LOOKED not in capsys.readouterr().err


def test_room_for_saves_is_not_asked_again_of_a_run_that_goes_on(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec.write_text(spec.read_text().replace("complete", "killed"))
    full = shutil.disk_usage(spec.parent)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    assert refusal(spec) == {"ENV_DISK_SPACE"}
    first = jobs.wait(launch("train", spec, "local", ready=launch_gate.skipped).record, ENOUGH_S)
    second = retry(first, ready=launch_gate.ready).record
    assert second.preflight == "without decoding"
    jobs.wait(second, ENOUGH_S)


def test_a_model_of_the_hub_is_fetched_after_the_look_and_is_the_same_then(
    write_spec: WriteSpec, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vidqa.data.storage.hub.PAUSES_S", ())
    install(monkeypatch.setattr)
    with serving(tiny_model) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        path = write_spec(**{**SMALL, "policy.model_name_or_path": "hf_model://org/tiny"})
        made = dry_run("train", path, "local", ready=launch_gate.ready)
        assert [p.where for p in made.problems if p.code == "PLATFORM_NOT_SEEN"] == ["policy.model_name_or_path"]
        assert not [p for p in made.problems if p.severity == "error"] and not (tmp_path / "cache").exists()
        (tmp_path / "train.json").write_text(json.dumps([{"id": "no media"}]))
        assert "DATA_FIELD" in refusal(path)
        assert not list((tmp_path / "cache").rglob("*.safetensors"))  # nothing large for what is refused
        report = preflight(write_spec(**{**SMALL, "policy.model_name_or_path": "hf_model://org/tiny"}), "local")
        assert ready(report) and report.facts["parameters"] == weight_bytes(tiny_model).parameters > 0
        asked = load_job_spec("train", path, fetch=True)
        fetch_weights(asked)
        assert load_job_spec("train", path, fetch=True).inputs_fingerprint == asked.inputs_fingerprint
        record = started(path).record
        assert record.preflight == "passed" and list(Path(records_model(record)).glob("*.safetensors"))


def records_model(record: records.JobRecord) -> str:
    return str(load_job_spec("train", Path(record.run_dir) / "spec.toml", fetch=False).model_folder)


def problems_of(path: Path, platform: str) -> list[Problem]:
    return launch_gate.ready(load_job_spec("train", path, fetch=True), path, platform, Resources(), fetch=True).problems


@pytest.mark.parametrize("platform", ["slurm", "kubernetes"])
def test_media_that_only_the_cluster_has_stop_nothing(spec: Path, tmp_path: Path, platform: str) -> None:
    train = rows(range(4))
    for row in train:
        row["video"] = f"/lustre/clips/{row['video']}"
    (tmp_path / "train.json").write_text(json.dumps(train))
    problems = problems_of(spec, platform)
    assert [p.code for p in problems if p.severity == "error"] == [] and found(spec, platform) is None
    unseen = [p for p in problems if p.code == "PLATFORM_NOT_SEEN"]
    assert len(unseen) == 1 and "/lustre/clips" in unseen[0].message
    train[0]["conversations"][1]["value"] = ""  # what can be seen is looked at all the same
    (tmp_path / "train.json").write_text(json.dumps(train))
    assert {p.code for p in problems_of(spec, platform) if p.severity == "error"} == {"DATA_FIELD"}
    train = rows(range(4))
    train[0]["video"] = "absent.mp4"  # in a folder that is here
    (tmp_path / "train.json").write_text(json.dumps(train))
    assert "DATA_MEDIA_MISSING" in {p.code for p in problems_of(spec, platform) if p.severity == "error"}


def test_a_machine_that_only_sends_jobs_away_needs_nothing_of_the_engine(spec: Path, tmp_path: Path) -> None:
    spec.write_text(spec.read_text().replace(str(tmp_path / "runs"), "/scratch/of/the/cluster/runs"))
    problems = problems_of(spec, "kubernetes")
    assert not [p for p in problems if p.code.startswith("ENV_")], problems
    assert {p.code for p in problems if p.severity == "error"} == set()
    spec.write_text(spec.read_text() + 'train.resume = "/scratch/of/the/cluster/runs/1/checkpoints/step_2"\n')
    problems = problems_of(spec, "kubernetes")
    assert [(p.code, p.where) for p in problems if p.code.startswith("PLATFORM")] == [
        ("PLATFORM_NOT_SEEN", "train.resume")
    ]
    assert "RESUME_NO_CHECKPOINT" in {p.code for p in problems_of(spec, "local")}


def test_files_for_the_container_of_cosmos_rl(spec: Path, tmp_path: Path, media: Path) -> None:
    spec.write_text(spec.read_text() + "train.fp8.enable_fp8 = true\n")  # which our own engine does not do
    of_cosmos = partial(launch_gate.ready, engine="cosmos-rl")
    made = prepare("train", spec, "local", Resources(), write=True, ready=of_cosmos)
    assert made.preflight == "without decoding" and made.written
    (media / "2.mp4").unlink()
    before = sorted((tmp_path / "runs").rglob("*"))
    with pytest.raises(ProblemError) as refused:
        prepare("train", spec, "local", Resources(), write=True, ready=of_cosmos)
    assert "DATA_MEDIA_MISSING" in {problem.code for problem in refused.value.problems}
    assert sorted((tmp_path / "runs").rglob("*")) == before
    made = prepare("train", spec, "local", Resources(), write=False, ready=of_cosmos)
    assert "DATA_MEDIA_MISSING" in {problem.code for problem in made.problems}
    assert prepare("train", spec, "local", Resources(), write=True, ready=launch_gate.skipped).preflight == "skipped"
