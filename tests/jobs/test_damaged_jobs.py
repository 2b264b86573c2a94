"""Whatever of a job is damaged, its record, how it ended, or its run folder: every command answers with a problem that
has a code, and all other jobs are listed, shown, canceled and retried."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from vidqa.jobs.platforms import job_store

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))

from mutations import ODD_VALUES, scrambled, spoiled

from tests.jobs.jobs_script import ask
from tests.platforms.conftest import ENOUGH_S, until_engine_runs
from vidqa.jobs import job_results, records
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import launch
from vidqa.jobs.platforms import NAMES
from vidqa.jobs.platforms._base import State
from vidqa.jobs.platforms.processes import ProcessIdentity
from vidqa.jobs.records import JobRecord

SEED = 20260101
WriteSpec = Callable[..., Path]
REFERENCES: dict[str, Any] = {
    "local": {"pid": 4_000_000, "started": 5, "boot": "b", "host": "h"},
    "docker": {"container": "c0ffee", "daemon": "d"},
    "slurm": {"slurm_id": "17", "name": "vidqa-target"},
    "kubernetes": {"apiVersion": "batch/v1", "kind": "Job", "name": "n", "uid": "u", "namespace": "default"},
}
SETTINGS: dict[str, Any] = {
    "local": None,
    "docker": {"network": "host", "keep_container": True, "ulimits": {"stack": 1}},
    "slurm": {"backend": "venv", "ssh": "", "ssh_config": "", "options": ["--exclude=n7"]},
    "kubernetes": {"namespace": "n", "volumes": [{"mount_path": "/data", "claim": "c"}], "form": "job"},
}
EXITS: dict[str, Any] = {
    "local": {"exit_code": 1, "ended": "2026-01-01T00:00:00+00:00"},
    "docker": {"exit_code": 137, "ended": "2026-01-01T00:00:00Z", "out_of_memory": True},
    "slurm": {},
    "kubernetes": {
        **{"state": "ERROR", "exit_code": 5, "message": "m"},
        "failure": {"class": "program", "evidence": "e"},
    },
}
RUN_FILES = ("status.json", "problems.json", "run.json", "spec.toml", "log.txt", "metrics.jsonl", "checkpoints")
# A SLURM that knows no job, so that what is left of one decides.
SLURM = {
    "scontrol": "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
    "sacct": "echo 'Slurm accounting storage is disabled' >&2; exit 1",
    "squeue": "exit 0",
    "scancel": "exit 0",
}


@dataclass(frozen=True)
class Target:
    """The files of a job that is to be damaged; its record as it is written, for the platform and state it has."""

    record: Path
    exit: Path
    run: Path
    written: dict[str, Any]

    def write(self, **changes: Any) -> None:
        self.record.write_text(json.dumps({**self.written, **changes}))


@dataclass(frozen=True)
class Damage:
    name: str
    platform: str
    state: State
    do: Callable[[Target], None]


def odd_things(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What can stand in a file's place."""
    yield "nothing", lambda: None
    yield "an empty file", lambda: path.write_bytes(b"")
    yield "zeros", lambda: path.write_bytes(bytes(4096))
    yield "a folder", lambda: path.mkdir()
    yield "a pipe", lambda: os.mkfifo(path)
    yield "a link to itself", lambda: path.symlink_to(path)
    yield "a device", lambda: path.symlink_to("/dev/null")


def put(path_of: Callable[[Target], Path], name: str) -> Callable[[Target], None]:
    """Damage that puts the odd thing of this name where a file or folder of the job is."""

    def do(target: Target) -> None:
        path = path_of(target)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        dict(odd_things(path))[name]()

    return do


def write(path_of: Callable[[Target], Path], data: bytes) -> Callable[[Target], None]:
    return lambda target: path_of(target).write_bytes(data)


def damages(chance: random.Random) -> Iterator[Damage]:
    """Each once for a platform and state that chance chooses, unless only one shows it."""

    def damage(name: str, do: Callable[[Target], None], platform: str = "", state: State | None = None) -> Damage:
        return Damage(name, platform or chance.choice(NAMES), state or chance.choice(list(State)), do)

    for field in fields(JobRecord):
        yield damage(f"no {field.name}", lambda t, n=field.name: (t.written.pop(n, None), t.write()))
        for value in chance.sample(ODD_VALUES, 2):
            yield damage(f"{field.name} is {value!r:.40}", lambda t, n=field.name, v=value: t.write(**{n: v}))
    for platform in NAMES:
        sound = {"launcher": REFERENCES["local"], "reference": REFERENCES[platform], "settings": SETTINGS[platform]}
        for name, document in sound.items():
            for value in [{}, *(spoiled(chance, document) for _ in range(3 if document else 1))]:
                said = f"{platform} {name} is {value!r:.60}"
                yield damage(said, lambda t, n=name, v=value: t.write(**{n: v}), platform, State.RUNNING)
        for _ in range(4):
            data = json.dumps(spoiled(chance, EXITS[platform])).encode()
            yield damage(f"exit {data!r:.60}", write(lambda t: t.exit, data), platform, State.RUNNING)
    for _ in range(12):
        seed = chance.random()
        yield damage(f"record scrambled by {seed}", lambda t, s=seed: scramble(t.record, s))
        yield damage(f"exit scrambled by {seed}", lambda t, s=seed: scramble(t.exit, s), "local", State.RUNNING)
    places: dict[str, Callable[[Target], Path]] = {"the record": lambda t: t.record, "the folder": lambda t: t.run}
    places |= {"the exit": lambda t: t.exit, **{name: lambda t, n=name: t.run / n for name in RUN_FILES}}
    for place, path_of in places.items():
        for thing, _ in odd_things(Path()):
            yield damage(f"{place} is {thing}", put(path_of, thing), "local")
    for name in ("status.json", "problems.json", "run.json", "spec.toml"):
        for state in (State.RUNNING, State.ERROR) * 2:
            seed = chance.random()
            yield damage(f"{name} scrambled by {seed}", lambda t, n=name, s=seed: scramble(t.run / n, s), "", state)
    for name in ("status.json", "problems.json", "run.json"):
        for value in chance.sample(ODD_VALUES, 4):
            data = json.dumps(value).encode()
            yield damage(f"{name} is {data!r:.40}", write(lambda t, n=name: t.run / n, data), "", State.RUNNING)


def scramble(path: Path, seed: float) -> None:
    data = path.read_bytes()
    path.write_bytes(scrambled(random.Random(seed), data, data))


@pytest.fixture
def template(
    stand_in: None, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JobRecord]:
    """A job that was killed and can be retried. No platform but this machine answers; nothing may wait for ever."""
    for name, body in SLURM.items():
        tool = tmp_path / "tools" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-cluster"))
    monkeypatch.chdir(tmp_path)
    record = jobs.wait(launch("train", write_spec("killed"), "local").record, ENOUGH_S)
    (Path(record.run_dir) / "metrics.jsonl").write_text('{"step": 1, "time": 1.0}\n')
    kept = signal.signal(signal.SIGALRM, waited_for_ever)
    yield record
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, kept)


class WaitedForEver(BaseException):
    """No OSError, as TimeoutError is: nobody takes it for what a file can be."""


def waited_for_ever(*_: object) -> None:
    raise WaitedForEver


def make_target(template: JobRecord, damage: Damage, number: int) -> Target:
    name = f"damaged-{number}"
    run = Path(template.run_dir).with_name(name)
    shutil.copytree(template.run_dir, run)
    over = damage.state.is_terminal
    record = replace(
        template,
        **{"job_id": name, "run_dir": str(run), "platform": damage.platform, "state": damage.state},
        **{"devices": template.devices if damage.platform == "local" else None},
        **{"reference": REFERENCES[damage.platform], "settings": SETTINGS[damage.platform]},
        **{"failure": template.failure if damage.state == State.ERROR else None},
        **{"exit_code": template.exit_code if over else None, "launcher": ProcessIdentity(**REFERENCES["local"])},
    )
    if damage.platform == "local" or not over:
        here = {"host": template.launcher.host, "boot": template.launcher.boot}
        record = replace(record, launcher=replace(record.launcher, **here))
    target = Target(job_store.record_file(name), job_store.exit_file(name), run, json.loads(json.dumps(asdict(record))))
    target.write()
    if EXITS[damage.platform]:
        target.exit.write_text(json.dumps(EXITS[damage.platform]))
    damage.do(target)
    return target


def test_no_damage_stops_a_command(template: JobRecord) -> None:
    """What is asked of the damaged job itself."""
    chance, failed, seen = random.Random(SEED), [], set()
    for number, damage in enumerate(damages(chance)):
        target = make_target(template, damage, number)
        calls = [["status"], ["logs"], ["wait", "--timeout", "0"], ["cancel", "--grace", "0"]]
        if chance.random() < 0.4:
            calls.append(["retry", "--yes"] if damage.platform == "local" else ["retry"])
        for verb, *options in calls:
            signal.setitimer(signal.ITIMER_REAL, 20)
            try:
                codes = [problem["code"] for problem in ask(verb, f"damaged-{number}", *options)["problems"]]
                seen.add((verb, *(codes[:1] or [""])))
            except (Exception, WaitedForEver) as wrong:  # noqa: BLE001  all of them are told
                failed.append(f"{damage.platform} {damage.state} {damage.name}: {verb}: {wrong!r:.300}")
            signal.setitimer(signal.ITIMER_REAL, 0)
        put(lambda each: each.record, "nothing")(target)  # the next ones are not to be kept waiting
    assert failed == []
    assert {("status", "JOB_RECORD_BROKEN"), ("logs", "ENV_FILE_REFUSED"), ("status", ""), ("cancel", "")} <= seen


def test_others_are_listed_shown_canceled_and_retried(template: JobRecord, write_spec: WriteSpec) -> None:
    """Beside all damaged jobs at once."""
    for number, damage in enumerate(damages(random.Random(SEED))):
        make_target(template, damage, number)
    running = launch("train", write_spec("hang"), "local").record
    until_engine_runs(running)
    signal.setitimer(signal.ITIMER_REAL, 300)
    said = ask("list")
    assert said["ok"] and said["data"]["jobs"][0]["job_id"] == running.job_id
    assert {p["severity"] for p in said["problems"]} == {"warning"}
    listed, problems = jobs.listing()
    unread = {Path(p.where).stem for p in problems if p.code == "JOB_RECORD_BROKEN"}
    assert {record.job_id for record in listed} | unread == set(records.names()) and len(unread) > 50 < len(listed)
    lines = job_results.of_listing(listed, problems).text.splitlines()
    assert {f"{name}  its record cannot be read" for name in said["data"]["unreadable"]} < set(lines)
    assert ask("status", "latest")["data"]["job_id"] == running.job_id
    assert ask("status", template.job_id)["data"]["state"] == State.ERROR
    assert ask("cancel", running.job_id)["data"]["state"] == State.CANCELED
    again = ask("retry", template.job_id, "--skip-preflight")["data"]
    assert (again["how"], again["retry_of"]) == ("started", template.job_id)
    assert jobs.wait(records.read(again["job_id"]), ENOUGH_S).state == State.ERROR
