"""Jobs in a cluster: a stand-in API server whose pods are real processes that run what the manifest says."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.platforms.conftest import until_complete
from tests.platforms.kubernetes_api import Cluster, Refused, Request, cluster, until
from vidqa.core import files
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import records
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import dry_run, launch
from vidqa.jobs.platforms._base import LAUNCHER_ENDED, State
from vidqa.jobs.platforms.kubernetes import client as kubernetes_client
from vidqa.jobs.platforms.kubernetes import platform as kubernetes
from vidqa.jobs.platforms.kubernetes.client import connect
from vidqa.jobs.platforms.kubernetes.site import KubernetesSite
from vidqa.jobs.problems import PLATFORM_SILENT
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources

pytestmark = pytest.mark.kubernetes
WriteSpec = Callable[..., Path]
ENGINE = Path(__file__).with_name("stand_in_engine.py")
# The image's Python: torchrun is replaced by the stand-in engine, everything else runs as it is.
PYTHON = f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
if words[:2] == ["-m", "vidqa.engine.torchrun"]:
    rank = [word.partition("=")[2] for word in words if word.startswith("--node-rank=")]
    words = [{str(ENGINE)!r}, *words[words.index("vidqa.engine") + 1 :]]
    os.environ["RANK"] = (rank or ["0"])[0]
os.execv({sys.executable!r}, [{sys.executable!r}, *words])
"""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(kubernetes, "KUBERNETES", replace(kubernetes.KUBERNETES, poll_s=0.1))
    with cluster(tmp_path / "cluster") as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


@pytest.fixture
def wanted(tmp_path: Path) -> Callable[..., Resources]:
    """A place whose volume is this test's folder."""

    def write(nodes: int = 1, image: str = "engine:1", agreed: bool = True, **settings: object) -> Resources:
        python = tmp_path / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        volumes = [{"mount_path": str(tmp_path), "claim": "data"}, {"mount_path": "/", "host_path": "/"}]
        import tomli_w

        table = {"python": str(python), "volumes": volumes, **settings}
        (tmp_path / "site.toml").write_text(tomli_w.dumps({"kubernetes": table}))
        return Resources(nodes=nodes, gpus=0, image=image, site=tmp_path / "site.toml", agreed=agreed)

    return write


def started(spec: Path, wanted: Resources) -> JobRecord:
    launched = launch("train", spec, "kubernetes", wanted)
    assert launched.how == "started", launched
    return launched.record


def pods(api: Cluster) -> list[dict]:
    return api.select("pods", "")


def until_runs(api: Cluster, record: JobRecord, count: int = 1) -> None:
    def says() -> bool:
        return sum(b"manner" in b"".join(text for _, text in lines) for lines in list(api.logs.values())) >= count

    until(says, "the engine in its pods")
    until(lambda: jobs.observe(record).state == State.RUNNING, "RUNNING")


def test_the_launcher_does_not_see_the_run_folder(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec, tmp_path: Path
) -> None:
    """Everything is then told by the API: the pods write into another folder than the launcher's."""
    record = started(write_spec("hang"), wanted())
    until_runs(api, record)
    far = tmp_path / "far"
    Path(record.run_dir).rename(far)  # the engine's own; what comes after goes to a folder of the launcher
    Path(record.run_dir).mkdir(parents=True)
    status = {"state": "ERROR", "exit_code": 4, "message": "no room", "step": 7, "total_steps": 9}
    problem = {"code": "ENGINE_X", "where": "w", "message": "no room", "remedy": "r", "exit_code": 4}
    words = json.dumps({"status": status, "problems": [problem]})
    pod = pods(api)[0]
    api.processes[pod["metadata"]["name"]].kill()
    until(lambda: pod["status"]["phase"] == "Failed", "the pod's end")
    pod["status"]["containerStatuses"][0]["state"]["terminated"] |= {"message": words, "exitCode": 4}
    record = jobs.wait(record, 30)
    assert (record.state, record.exit_code, record.message) == (State.ERROR, 4, "no room")
    assert jobs.problems_of(record)[0].code == "ENGINE_X"
    assert record.run.read_status()["step"] == 7
    assert "manner hang" in jobs.tail(record, 5)


def test_cancel_ends_an_engine_that_does_not_listen(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = started(write_spec("stubborn"), wanted())
    until_runs(api, record)
    api.expired_watches = 2  # answered by listing the pods anew, and watching from there
    record = jobs.cancel(record.job_id, 1)
    assert len([request for request in api.requests if "watch=true" in request]) >= 3
    assert record.state == State.CANCELED and jobs.exit_code(record) == 5
    assert "before it saved" in record.message and not api.objects


def test_a_canceller_that_dies_leaves_the_truth_to_be_found(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = started(write_spec("hang"), wanted())
    until_runs(api, record)
    records.update(record.job_id, cancel_requested=files.now())
    api.delete("jobs", record.reference["name"], {})  # as cancel does, and then nothing more
    record = jobs.wait(records.read(record.job_id), 30)
    assert (record.state, record.exit_code) == (State.CANCELED, 6)


def test_a_job_that_somebody_removed_is_told_truthfully(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = started(write_spec("stubborn"), wanted())
    until_runs(api, record)
    api.delete("jobs", record.reference["name"], {})
    api.processes[pods(api)[0]["metadata"]["name"]].kill()
    record = jobs.wait(record, 30)
    assert record.state == State.ERROR and jobs.exit_code(record) == 5


def test_a_preempted_pod_is_replaced_and_goes_on(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = started(write_spec("hang"), wanted(restarts=0))
    until_runs(api, record)
    api.disrupt(pods(api)[0], "PreemptionByScheduler")
    until_runs(api, record, count=2)
    assert len(pods(api)) == 2
    assert all(pod["spec"]["containers"][0]["command"][-1] == "--go-on" for pod in pods(api))
    assert jobs.tail(record, 10).count("manner hang") == 2  # the log of both pods, in order
    assert jobs.cancel(record.job_id, 30).state == State.CANCELED


def test_pods_that_are_lost_when_all_is_done_cost_nothing(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = started(write_spec("late", processes=2), wanted(nodes=2))
    until_runs(api, record, count=2)
    until_complete(record)
    first, second = sorted(pods(api), key=lambda pod: pod["metadata"]["name"])
    api.disrupt(second, "PreemptionByScheduler")
    until(lambda: second["status"]["phase"] == "Succeeded", "the end of the pod that was asked to stop")
    api.disrupt(first, "PreemptionByScheduler", signal.SIGKILL)
    record = jobs.wait(record, 60)
    assert (record.state, record.exit_code) == (State.COMPLETE, 0)
    assert len(pods(api)) == 3 and "this pod replaces one" in jobs.tail(record, 1)


def test_a_run_that_saves_itself_goes_on_a_few_times_only(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = started(write_spec("hang"), wanted(restarts=1))
    for count in (1, 2):
        until_runs(api, record, count)
        running = [pod for pod in pods(api) if pod["status"]["phase"] == "Running"]
        api.processes[running[0]["metadata"]["name"]].terminate()
    record = jobs.wait(record, 30)
    assert (record.state, record.exit_code) == (State.STOPPED, 6) and len(pods(api)) == 2


def test_more_memory_than_the_limit(api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec) -> None:
    api.oom = True
    record = started(write_spec("hang"), wanted(memory_gib=1))
    until_runs(api, record)
    api.processes[pods(api)[0]["metadata"]["name"]].kill()
    record = jobs.wait(record, 30)
    assert record.failure and record.failure["class"] == "out of memory" and "OOMKilled" in record.failure["evidence"]
    assert record.state == State.ERROR and "memory_gib" in record.message


def test_an_image_that_cannot_be_pulled(api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec) -> None:
    api.image_waits["missing:1"] = "ImagePullBackOff"
    record = started(write_spec("complete"), wanted(image="missing:1", start_limit_s=1))
    until(lambda: "ImagePullBackOff" in jobs.observe(records.read(record.job_id)).message, "the reason")
    record = jobs.wait(record, 30)
    assert (record.state, jobs.exit_code(record)) == (State.ERROR, Exit.ENVIRONMENT)
    assert record.failure and record.failure["class"] == "image" and not api.objects


def test_no_node_and_a_queue_are_waited_for(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    api.room = False
    record = started(write_spec("complete"), wanted())
    until(lambda: "Insufficient nvidia.com/gpu" in jobs.observe(record).message, "the scheduler's words")
    assert jobs.observe(record).state == State.PENDING
    assert jobs.cancel(record.job_id, 1).state == State.CANCELED
    queued = started(write_spec("complete"), wanted(queue="team-a"))
    assert "queue" in jobs.observe(queued).message
    assert api.get("jobs", queued.reference["name"])["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert jobs.cancel(queued.job_id, 1).state == State.CANCELED and not api.objects


def test_two_nodes_save_and_stop_together(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = started(write_spec("hang", processes=2), wanted(nodes=2))
    until_runs(api, record, count=2)
    record = jobs.cancel(record.job_id, 30)
    assert (record.state, record.exit_code) == (State.CANCELED, 6)
    assert len(list(Path(record.run_dir).glob("saved-by-rank-*"))) == 2
    assert (Path(record.run_dir) / "log_node1.txt").exists() and not api.objects  # the ConfigMap went with the Job
    assert "manner hang" in jobs.tail(record, 5)


def test_an_answer_that_was_lost_does_not_start_two_jobs(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    api.lose_answers = 1
    record = jobs.wait(started(write_spec("complete"), wanted()), 60)
    assert record.state == State.COMPLETE and record.reference
    created = [name for kind, name in api.objects if kind == "jobs"]
    assert len(created) == 1 and len(pods(api)) == 1
    assert record.reference["uid"] == api.get("jobs", created[0])["metadata"]["uid"]
    (owner,) = api.get("configmaps", created[0])["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", record.reference["uid"])


def test_a_job_starts_even_where_its_parts_cannot_be_handed_over(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    api.forbidden = {"PATCH configmaps"}
    record = jobs.wait(started(write_spec("complete"), wanted()), 60)
    assert record.state == State.COMPLETE and "will stay" in capsys.readouterr().err


def test_a_cancel_that_is_not_allowed_says_so(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = started(write_spec("hang"), wanted())
    until_runs(api, record)
    api.forbidden = {"DELETE jobs"}
    with pytest.raises(ProblemError) as raised:
        jobs.cancel(record.job_id, 5)
    assert raised.value.problems[0].code == "PLATFORM_REFUSED"
    assert jobs.find(record.job_id).state == State.RUNNING
    api.forbidden = set()
    assert jobs.cancel(record.job_id, 30).exit_code == Exit.NOT_DONE


def test_a_foreign_object_of_the_same_name_is_left_alone(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    job, rendered, _, _ = dry_run("train", write_spec("complete"), "kubernetes", wanted())
    foreign = next(yaml.safe_load_all(rendered.files["manifest.yaml"]))
    foreign["metadata"]["labels"] = {}
    api.create("configmaps", foreign)
    with pytest.raises(ProblemError) as raised:
        kubernetes.submit(job, rendered)
    (problem,) = raised.value.problems
    assert problem.code == "PLATFORM_REFUSED" and "another object of this name" in problem.message
    api.get("configmaps", foreign["metadata"]["name"])["metadata"]["labels"] = {"vidqa/job": job.job_id}
    first = kubernetes.submit(job, rendered)
    assert kubernetes.submit(job, rendered) == first  # both requests of one launch


def problems_of_launch(spec: Path, wanted: Resources) -> dict[str, str]:
    with pytest.raises(ProblemError) as raised:
        launch("train", spec, "kubernetes", wanted)
    return {p.code: f"{p.where} {p.message} {p.remedy}" for p in raised.value.problems}


def test_what_keeps_a_job_from_starting(
    api: Cluster,
    wanted: Callable[..., Resources],
    write_spec: WriteSpec,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    spec = write_spec("complete")
    api.quota = 'jobs.batch "x" is forbidden: exceeded quota: gpus'
    assert "exceeded quota" in problems_of_launch(spec, wanted())["PLATFORM_REFUSED"]
    api.quota = ""
    api.forbidden = {"POST jobs"}
    lacks = problems_of_launch(spec, wanted())["PLATFORM_REFUSED"]
    assert "cannot post" in lacks and "rights to create, get, delete" in lacks
    api.forbidden = {"get pods/log", "delete jobs"}
    assert "delete jobs, get pods/log" in problems_of_launch(spec, wanted())["PLATFORM_REFUSED"]
    api.forbidden = {"delete trainjobs"}
    assert "delete trainjobs" in problems_of_launch(spec, wanted(form="trainjob"))["PLATFORM_REFUSED"]
    api.forbidden = set()
    assert "other" in problems_of_launch(spec, wanted(namespace="other"))["PLATFORM_REFUSED"]
    assert "PLATFORM_UNREACHABLE" in problems_of_launch(spec, wanted(context="none"))
    too_few = wanted().model_copy(update={"gpus": 1})
    spread = write_spec("complete", processes=2, name="spread")
    assert "a node needs 2, 1 asked for" in problems_of_launch(spread, too_few)["PLATFORM_TOO_FEW_GPUS"]
    only = [{"mount_path": str(tmp_path / "runs"), "claim": "data", "read_only": True}]
    found = problems_of_launch(spec, wanted(volumes=only))["PLATFORM_PATH_UNSEEN"]
    assert "read-only" in found
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "wrong"
    api.kubeconfig.write_text(json.dumps(config))
    assert "401" in problems_of_launch(spec, wanted())["PLATFORM_REFUSED"]
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    api.kubeconfig.write_text(json.dumps(config))
    assert "127.0.0.1:9" in problems_of_launch(spec, wanted())["PLATFORM_SILENT"]
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert "PLATFORM_UNREACHABLE" in problems_of_launch(spec, wanted())
    assert records.scan() == ([], []) and not api.objects


def test_a_silent_server_changes_nothing_that_is_known(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = started(write_spec("hang"), wanted())
    until_runs(api, record)
    record = jobs.observe(record)
    monkeypatch.setattr(kubernetes_client, "READ_S", 0.3)
    api.silent = True
    seen = jobs.observe(record)
    assert seen.state == State.RUNNING and "does not answer" in seen.message
    assert "manner hang" in jobs.tail(record, 5) or jobs.tail(record, 5) == ""
    api.silent = False
    monkeypatch.undo()


def test_no_secret_is_in_a_manifest_a_request_or_a_file(
    api: Cluster,
    wanted: Callable[..., Resources],
    write_spec: WriteSpec,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    api.secrets["vidqa"] = {"WANDB_API_KEY": "wandb_planted_secret"}
    record = started(write_spec("hang"), wanted())
    until_runs(api, record)
    process = api.processes[pods(api)[0]["metadata"]["name"]]
    assert b"WANDB_API_KEY=wandb_planted_secret" in Path(f"/proc/{process.pid}/environ").read_bytes()
    jobs.cancel(record.job_id, 30)
    assert "planted" not in json.dumps([list(map(str, api.requests)), list(api.objects.values())], default=str)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 8 and not [path for path in written if b"planted_secret" in path.read_bytes()]


def test_a_secret_that_the_spec_needs_has_to_be_there(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    spec = write_spec("complete")
    spec.write_text(spec.read_text().replace("[logging]", '[logging]\nlogger = ["console", "wandb"]'))
    for held, shown in (({}, "no such Secret"), ({"vidqa": {"HF_TOKEN": "x"}}, "lacks WANDB_API_KEY")):
        api.secrets = held
        with pytest.raises(ProblemError) as refused:
            launch("train", spec, "kubernetes", wanted())
        no_gpu, problem = refused.value.problems
        assert (no_gpu.code, no_gpu.severity) == ("PLATFORM_TOO_FEW_GPUS", "warning")
        assert problem.code == "PLATFORM_REFUSED" and shown in problem.message
    assert not api.objects and records.scan() == ([], [])
    api.secrets = {"vidqa": {"WANDB_API_KEY": "x"}}
    assert jobs.wait(started(spec, wanted()), 60).state == State.COMPLETE


def test_a_secret_that_may_not_be_looked_at_keeps_its_pod_from_starting(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    api.forbidden.add("GET secrets")
    spec = write_spec("complete")
    spec.write_text(spec.read_text().replace("[logging]", '[logging]\nlogger = ["console", "wandb"]'))
    launched = launch("train", spec, "kubernetes", wanted(start_limit_s=1))
    codes = ("PLATFORM_TOO_FEW_GPUS", "PLATFORM_REFUSED")
    assert [(p.code, p.severity) for p in launched.problems] == [(code, "warning") for code in codes]
    record = jobs.wait(launched.record, 60)
    assert record.state == State.ERROR and "WANDB_API_KEY" in record.message


def test_another_job_of_the_same_name_is_not_ours(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = jobs.wait(started(write_spec("complete"), wanted()), 60)
    assert record.reference
    for pod in pods(api):
        api.delete("pods", pod["metadata"]["name"], {})
    earlier = replace(record, state=State.RUNNING, reference={**record.reference, "uid": "another"})
    assert kubernetes.status(earlier).state == State.COMPLETE  # by the engine's own word in the run folder
    (Path(record.run_dir) / "status.json").unlink()
    seen = kubernetes.status(earlier)
    assert seen.state == State.ERROR and "vanished" in seen.message
    launcher = replace(record.launcher, started=record.launcher.started - 1)  # it ended before it created the Job
    unborn = replace(earlier, job_id="unborn", run_dir="/nowhere", reference=None, launcher=launcher)
    assert kubernetes.status(unborn).message == LAUNCHER_ENDED


def test_a_train_job_is_told_by_its_own_conditions(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    record = started(write_spec("complete"), wanted(form="trainjob"))
    made = api.get("trainjobs", record.reference["name"])
    assert jobs.observe(record).state == State.PENDING
    made["status"]["conditions"] = [
        {"type": "Failed", "status": "True", "reason": "JobsFailed", "message": "a job failed"}
    ]
    record = jobs.observe(record)
    assert record.state == State.ERROR and "JobsFailed: a job failed" in record.message
    other = launch("train", write_spec("complete"), "kubernetes", wanted(form="trainjob"), new_run=True).record
    assert jobs.cancel(other.job_id, 1).state == State.CANCELED
    with pytest.raises(AssertionError):
        until(lambda: api.objects.get(("trainjobs", other.reference["name"])), "it", 0.2)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_an_encrypted_server_is_known_by_its_certificate(api: Cluster, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    api.socket = context.wrap_socket(api.socket, server_side=True)
    config = json.loads(api.kubeconfig.read_text())
    place = config["clusters"][0]["cluster"]
    place["server"] = place["server"].replace("http:", "https:")
    api.kubeconfig.write_text(json.dumps(config))
    with pytest.raises(ProblemError) as raised:
        connect(KubernetesSite()).pods("")
    assert "certificate verify failed" in str(raised.value)
    place["certificate-authority-data"] = base64.b64encode(certificate.read_bytes()).decode()
    api.kubeconfig.write_text(json.dumps(config))
    assert connect(KubernetesSite()).pods("")[0] == []


def cut(request: Request, *ignored: object) -> None:
    """Hang up without an answer."""
    request.close_connection = True
    request.connection.shutdown(socket.SHUT_RDWR)


def busy(status: int) -> Callable[..., None]:
    """An answer by which the server says that it cannot now."""

    def answer(request: Request, *ignored: object) -> None:
        request.reply(Refused(status, "Busy", "try again later").status, status)

    return answer


@pytest.mark.parametrize("fault", [cut, busy(502)], ids=["cut", "502"])
def test_a_cancel_outlives_a_watch_that_breaks(
    api: Cluster,
    wanted: Callable[..., Resources],
    write_spec: WriteSpec,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[..., None],
) -> None:
    record = started(write_spec("stubborn"), wanted())
    until_runs(api, record)
    faults, watch, pods_of = [fault, fault], Request.watch, Request.list

    def breaks(self: Request, query: dict[str, str]) -> None:
        (faults.pop() if faults else watch)(self, query)

    def list_breaks(self: Request, plural: str, query: dict[str, str]) -> None:
        (fault if len(faults) == 1 else pods_of)(self, plural, query)  # between the two watches

    monkeypatch.setattr(Request, "watch", breaks)
    monkeypatch.setattr(Request, "list", list_breaks)
    record = jobs.cancel(record.job_id, 1)
    assert record.state == State.CANCELED and not faults and not api.objects


def test_a_cancel_does_not_wait_for_the_log_of_a_lost_node(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = started(write_spec("hang"), wanted())
    until_runs(api, record)
    monkeypatch.setattr(Request, "log", cut)
    assert jobs.cancel(record.job_id, 30).state == State.CANCELED and not api.objects


def test_a_failed_job_is_over_though_its_log_is_lost(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Request, "log", cut)
    record = jobs.wait(started(write_spec("fail"), wanted()), 30)
    assert (record.state, record.exit_code) == (State.ERROR, 3)


@pytest.mark.parametrize(("status", "code"), [(429, "SILENT"), (500, "SILENT"), (403, "REFUSED"), (404, "REFUSED")])
def test_a_question_of_rights_without_an_answer(
    api: Cluster,
    wanted: Callable[..., Resources],
    write_spec: WriteSpec,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
) -> None:
    route = Request.route

    def asked(self: Request, path: str, query: dict[str, str], body: dict) -> None:
        (busy(status) if path.endswith("accessreviews") else route)(self, path, query, body)

    monkeypatch.setattr(Request, "route", asked)
    assert str(status) in problems_of_launch(write_spec("complete"), wanted())[f"PLATFORM_{code}"]


def test_a_job_that_is_refused_leaves_nothing(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec
) -> None:
    job, rendered, _, _ = dry_run("train", write_spec("complete"), "kubernetes", wanted())
    api.quota = "exceeded quota: gpus"  # someone else took the room since
    with pytest.raises(ProblemError, match="exceeded quota"):
        kubernetes.submit(job, rendered)
    assert not api.objects


def test_a_job_that_may_run_keeps_its_parts(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, rendered, _, _ = dry_run("train", write_spec("complete"), "kubernetes", wanted())
    api.room, post = False, Request.post

    def lost(self: Request, plural: str, body: dict, query: dict[str, str]) -> None:
        if plural != "jobs":
            return post(self, plural, body, query)
        with suppress(Refused):
            api.create(plural, body)
        cut(self)

    monkeypatch.setattr(Request, "post", lost)
    with pytest.raises(ProblemError, match="PLATFORM_SILENT"):
        kubernetes.submit(job, rendered)
    assert {plural for plural, _ in api.objects} >= {"jobs", "configmaps"}


@pytest.mark.parametrize(
    "text", ["hello", "[]", "{}", "clusters: 3", "contexts: [1]\n", "current-context: a\nusers: {}"]
)
def test_a_kubeconfig_that_is_none(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(ProblemError, match="PLATFORM_UNREACHABLE"):
        connect(KubernetesSite())


def test_a_context_that_is_asked_for_is_not_replaced(api: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes import config

    inside: list[object] = []
    monkeypatch.setattr(config, "load_incluster_config", lambda client_configuration: inside.append(1))
    with pytest.raises(ProblemError, match="tset"):
        connect(KubernetesSite(context="tset"))
    assert not inside
    monkeypatch.setenv("KUBECONFIG", str(api.folder / "absent"))
    connect(KubernetesSite())
    assert inside


def test_a_job_that_is_cancelled_while_it_is_submitted_does_not_run(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = kubernetes_client.Cluster.create

    def cancelled(self: Any, what: Any, *, dry_run: bool = False) -> Any:
        if what["kind"] == "Job" and not dry_run:
            assert jobs.cancel(records.scan()[0][0].job_id, 1).state == State.CANCELED
        return create(self, what, dry_run=dry_run)

    monkeypatch.setattr(kubernetes_client.Cluster, "create", cancelled)
    record = started(write_spec("hang"), wanted())
    assert record.state == State.CANCELED
    until(lambda: not api.objects, "an empty cluster")


def test_a_job_whose_receipt_never_came_is_found_by_its_name(
    api: Cluster, wanted: Callable[..., Resources], write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = kubernetes_client.Cluster.create

    def unanswered(self: Any, what: Any, *, dry_run: bool = False) -> Any:
        if what["kind"] != "Job" or dry_run:
            return create(self, what, dry_run=dry_run)
        with suppress(kubernetes_client.ApiError):  # asked again, it says that there is one
            create(self, what)
        raise PLATFORM_SILENT.error("the cluster", "timed out")

    with monkeypatch.context() as lossy, pytest.raises(ProblemError) as raised:
        lossy.setattr(kubernetes_client.Cluster, "create", unanswered)
        started(write_spec("complete"), wanted())
    (record,) = records.scan()[0]
    assert record.job_id in raised.value.problems[0].remedy and not record.state.is_terminal
    assert jobs.wait(record, 60).state == State.COMPLETE
