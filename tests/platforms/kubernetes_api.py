"""A small cluster for tests: an API server over HTTP, a job controller, and a node that runs pods as real processes.

    with cluster(tmp_path) as api:      api.kubeconfig is a file for KUBECONFIG

It answers as a real API server does for the objects that jobs need: validation against the published schemas, 409 and
404 as Status objects, list and watch with resource versions, bookmarks and 410, logs with times, deletion with grace.
The controller follows a Job's podFailurePolicy, backoffLimit and podReplacementPolicy.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import psutil

Json = dict[str, Any]
TOKEN = "token-of-the-test"
SOURCE = Path(__file__).resolve().parents[2] / "src"
POD = "STAND_IN_POD"  # in every process of a pod
INDEX = "batch.kubernetes.io/job-completion-index"


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def status(self) -> Json:
        body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        return {**body, "code": self.code, "reason": self.reason, "message": self.message}


class Cluster(ThreadingHTTPServer):
    """The state of the cluster. Knobs for tests are plain attributes."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.folder = folder
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.objects: dict[tuple[str, str], Json] = {}  # (plural, name)
        self.events: list[tuple[int, str, Json]] = []  # of pods
        self.expired_watches = 0  # so many watches are told at once that their version is too old
        self.version = 100
        self.secrets: dict[str, dict[str, str]] = {}
        self.requests: list[str] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: dict[str, list[tuple[str, bytes]]] = {}
        self.forbidden: set[str] = set()  # "verb resource"
        self.quota = ""  # message of an admission that refuses
        self.room = True  # whether pods find a node
        self.silent = False  # accept and never answer
        self.lose_answers = 0  # how many creations of Jobs happen without an answer
        self.image_waits: dict[str, str] = {}  # image -> why it cannot be pulled
        self.oom = False  # ends that come from SIGKILL count as OOMKilled
        self.bookmark_s = 0.2
        self.closing = False
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))

    def _kubeconfig(self) -> Json:
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }

    # --- the store

    def create(self, plural: str, body: Json, *, dry_run: bool = False) -> Json:
        with self.changed:
            name = body["metadata"]["name"]
            validate(body)
            if self.quota and plural == "jobs":
                raise Refused(403, "Forbidden", self.quota)
            if (plural, name) in self.objects:
                raise Refused(409, "AlreadyExists", f'{plural} "{name}" already exists')
            made = json.loads(json.dumps(body))
            made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp()[:19] + "Z"}
            made.setdefault("status", {})
            if not dry_run:
                self.objects[plural, name] = made
                self.touch(plural, made, "ADDED")
            return made

    def get(self, plural: str, name: str) -> Json:
        with self.lock:
            if (plural, name) not in self.objects:
                raise Refused(404, "NotFound", f'{plural} "{name}" not found')
            return self.objects[plural, name]

    def touch(self, plural: str, thing: Json, kind: str = "MODIFIED") -> None:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        if plural == "pods":
            self.events.append((self.version, kind, json.loads(json.dumps(thing))))
        self.changed.notify_all()

    def select(self, plural: str, selector: str) -> list[Json]:
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        with self.lock:
            things = [thing for (kind, _), thing in self.objects.items() if kind == plural]
            return [thing for thing in things if matches(thing, wanted)]

    def pods_of(self, job: Json) -> list[Json]:
        uid = job["metadata"]["uid"]
        with self.lock:
            pods = [pod for (kind, _), pod in self.objects.items() if kind == "pods"]
            return [pod for pod in pods if pod["metadata"]["ownerReferences"][0]["uid"] == uid]

    def delete(self, plural: str, name: str, options: Json) -> None:
        with self.changed:
            thing = self.get(plural, name)
            if plural == "pods":
                grace = options.get("gracePeriodSeconds", thing["spec"].get("terminationGracePeriodSeconds", 30))
                self.end_pod(thing, grace)
                return
            del self.objects[plural, name]
            for key, other in list(self.objects.items()):
                owners = other["metadata"].get("ownerReferences") or []
                if any(owner["uid"] == thing["metadata"]["uid"] for owner in owners):
                    self.delete(*key, {})
            self.changed.notify_all()

    # --- the controller

    def reconcile(self) -> None:
        with self.changed:
            for (plural, _), thing in list(self.objects.items()):
                if self.closing:
                    return
                if plural == "jobs" and not ended(thing) and not thing["spec"].get("suspend"):
                    self.reconcile_job(thing)

    def reconcile_job(self, job: Json) -> None:
        spec, status, pods = job["spec"], job["status"], self.pods_of(job)
        counted = status.setdefault("countedFailures", [])
        for pod in pods:
            if pod["status"]["phase"] == "Failed" and pod["metadata"]["name"] not in counted:
                counted.append(pod["metadata"]["name"])
                action = policy(spec.get("podFailurePolicy", {}).get("rules", []), pod)
                if action == "FailJob":
                    return self.fail_job(job, pods, "PodFailurePolicy", f"pod {pod['metadata']['name']} failed")
                status["failed"] = status.get("failed", 0) + (action != "Ignore")
        if status.get("failed", 0) > spec.get("backoffLimit", 6):
            return self.fail_job(job, pods, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        done = {index_of(pod) for pod in pods if pod["status"]["phase"] == "Succeeded"}
        active = {index_of(pod) for pod in pods if pod["status"]["phase"] in ("Pending", "Running")}
        wanted = range(spec.get("completions", 1))
        if done >= set(wanted):
            status["conditions"] = [{"type": "Complete", "status": "True", "reason": "CompletionsReached"}]
            return self.touch("jobs", job)
        for index in sorted(set(wanted) - done - active):
            self.start_pod(job, index)

    def fail_job(self, job: Json, pods: list[Json], reason: str, message: str) -> None:
        job["status"]["conditions"] = [{"type": "Failed", "status": "True", "reason": reason, "message": message}]
        self.touch("jobs", job)
        for pod in pods:
            if pod["status"]["phase"] in ("Pending", "Running"):
                self.end_pod(pod, pod["spec"].get("terminationGracePeriodSeconds", 30))

    # --- the node

    def start_pod(self, job: Json, index: int) -> None:
        template, owner = job["spec"]["template"], job["metadata"]["name"]
        name = f"{owner}-{index}-{uuid.uuid4().hex[:5]}"
        labels = {**template["metadata"]["labels"]}
        if job["spec"].get("completionMode") == "Indexed":
            labels[INDEX] = str(index)
        metadata = {
            "name": name,
            "labels": labels,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": stamp()[:19] + "Z",
            "ownerReferences": [{"kind": "Job", "name": owner, "uid": job["metadata"]["uid"]}],
        }
        pod = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending", "conditions": []}}
        self.objects["pods", name] = pod
        self.touch("pods", pod, "ADDED")
        image = pod["spec"]["containers"][0]["image"]
        if not self.room:
            no = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"]["conditions"] = [{**no, "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}]
        elif image in self.image_waits:
            waiting = {"reason": self.image_waits[image], "message": f'Back-off pulling image "{image}"'}
            self.set_state(pod, {"waiting": waiting})
        elif lacking := self.lacking(pod["spec"]["containers"][0]):
            message = f"couldn't find key {lacking} in Secret default"
            self.set_state(pod, {"waiting": {"reason": "CreateContainerConfigError", "message": message}})
        else:
            self.run(pod)

    def set_state(self, pod: Json, state: Json) -> None:
        pod["status"]["containerStatuses"] = [{"name": pod["spec"]["containers"][0]["name"], "state": state}]
        self.touch("pods", pod)

    def run(self, pod: Json) -> None:
        """Start the container's command with what a kubelet would give it; host paths stand for mounts."""
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        home = self.folder / "pods" / name
        variables = self.variables(pod, container)
        places = self.mounted(pod, container, home) | {container["terminationMessagePath"]: str(home / "last-words")}
        places |= self.names(pod)
        words = []
        for word in container["command"]:
            word = re.sub(
                r"\$\$|\$\((\w+)\)", lambda found: variables.get(found[1], found[0]) if found[1] else "$", word
            )
            for inside, outside in places.items():
                word = word.replace(inside, outside)
            words.append(word)
        process = subprocess.Popen(
            words,
            env={**os.environ, "PYTHONPATH": str(SOURCE), POD: name, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes[name] = process
        pod["status"]["phase"] = "Running"
        self.set_state(pod, {"running": {"startedAt": stamp()}})
        threading.Thread(target=self.follow, args=(pod, process, home), daemon=True).start()

    def lacking(self, container: Json) -> str:
        """The first key of a Secret that the container has to have and that is not there."""
        keys = [each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each]
        needed = [key for key in keys if not key.get("optional")]
        return next((key["key"] for key in needed if key["key"] not in self.secrets.get(key["name"], {})), "")

    def variables(self, pod: Json, container: Json) -> dict[str, str]:
        found = {}
        for each in container["env"]:
            key = each.get("valueFrom", {}).get("secretKeyRef")
            value = self.secrets.get(key["name"], {}).get(key["key"]) if key else each["value"]
            if value is not None:
                found[each["name"]] = value
        index = pod["metadata"]["labels"].get(INDEX)
        return found if index is None else {**found, "JOB_COMPLETION_INDEX": index}

    def mounted(self, pod: Json, container: Json, home: Path) -> dict[str, str]:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        places = {}
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "configMap" in volume:
                folder = home / "given"
                folder.mkdir(parents=True, exist_ok=True)
                for key, text in self.get("configmaps", volume["configMap"]["name"])["data"].items():
                    (folder / key).write_text(text)
                places[mount["mountPath"]] = str(folder)
        return places

    def names(self, pod: Json) -> dict[str, str]:
        """The cluster's DNS: the first node of every headless Service is on this machine, at a port of its own."""
        name = pod["metadata"]["ownerReferences"][0]["name"]
        if pod["spec"].get("subdomain") != name or ("services", name) not in self.objects:
            return {}
        service = self.objects["services", name]
        port = service["status"].setdefault("port", free_port())
        return {"--master-port=29500": f"--master-port={port}", f"{name}-0.{name}": "127.0.0.1"}

    def follow(self, pod: Json, process: subprocess.Popen[bytes], home: Path) -> None:
        name = pod["metadata"]["name"]
        log = self.logs.setdefault(name, [])

        def read() -> None:
            for line in process.stdout or ():
                log.append((stamp(), line.rstrip(b"\n")))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        code = process.wait()
        kill_pod(name)
        reader.join()
        killed = code == -signal.SIGKILL
        code = 128 - code if code < 0 else code
        words = home / "last-words"
        with self.changed:
            reason = "OOMKilled" if self.oom and (killed or code == 137) else "Error" if code else "Completed"
            said = words.read_text()[:4096] if words.exists() else ""
            pod["status"]["phase"] = "Failed" if code else "Succeeded"
            ending = {"exitCode": code, "reason": reason, "message": said, "finishedAt": stamp()}
            self.set_state(pod, {"terminated": ending})
            if pod["metadata"].get("deletionTimestamp"):
                self.forget_pod(pod)

    def forget_pod(self, pod: Json) -> None:
        if self.objects.pop(("pods", pod["metadata"]["name"]), None):
            self.touch("pods", pod, "DELETED")

    def end_pod(self, pod: Json, grace_s: int) -> None:
        """SIGTERM, and SIGKILL when the shortest grace that anybody asked for is over."""
        pod["metadata"]["deletionTimestamp"] = stamp()
        self.touch("pods", pod)
        process = self.processes.get(pod["metadata"]["name"])
        if process is None or self.has_ended(pod):
            return self.forget_pod(pod)
        if process.poll() is not None:
            return  # how it ended is about to be written; the pod goes with that
        process.send_signal(signal.SIGTERM if grace_s else signal.SIGKILL)
        if grace_s:
            timer = threading.Timer(grace_s, lambda: kill_group(process.pid))
            timer.daemon = True
            timer.start()
        else:
            kill_group(process.pid)

    def has_ended(self, pod: Json) -> bool:
        statuses = pod["status"].get("containerStatuses", [])
        return any("terminated" in each["state"] for each in statuses)

    def disrupt(self, pod: Json, reason: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Take a pod away as a preemption does, or, by SIGKILL, the end of its grace."""
        with self.changed:
            target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "preempted by another"}
            pod["status"]["conditions"] = [*pod["status"]["conditions"], target]
            self.touch("pods", pod)
            self.processes[pod["metadata"]["name"]].send_signal(how)

    def shut(self) -> None:
        with self.changed:  # once no pod can be started any more
            self.closing = True
            self.changed.notify_all()
        for name in self.processes:
            kill_pod(name)
        self.shutdown()
        self.server_close()


class Request(BaseHTTPRequestHandler):
    """One HTTP request."""

    server: Cluster
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_DELETE = do_PATCH = do_GET

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        self.server.requests.append(f"{self.command} {self.path}")
        while self.server.silent and not self.server.closing:
            time.sleep(0.05)
        try:
            if self.headers.get("authorization") != f"Bearer {TOKEN}":
                raise Refused(401, "Unauthorized", "Unauthorized")
            self.route(url.path, query, body)
        except Refused as refused:
            self.reply(refused.status, refused.code)
        except BrokenPipeError:
            self.close_connection = True

    def route(self, path: str, query: dict[str, str], body: Json) -> None:
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            name = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            allowed = f"{asked['verb']} {name}" not in self.server.forbidden
            return self.reply({**body, "status": {"allowed": allowed}}, 201)
        found = re.fullmatch(r"/(?:api|apis/[^/]+)/v1[^/]*/namespaces/([^/]+)/(\w+)(?:/([^/]+))?(/log)?", path)
        if not found:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        namespace, plural, name, log = found.groups()
        if f"{self.command} {plural}" in self.server.forbidden:
            raise Refused(403, "Forbidden", f'User "test" cannot {self.command.lower()} resource "{plural}"')
        if namespace != "default":
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        if log:
            return self.log(name, query)
        if plural == "secrets" and name in self.server.secrets:
            values = {key: b64encode(text.encode()).decode() for key, text in self.server.secrets[name].items()}
            return self.reply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": values})
        if self.command == "POST":
            return self.post(plural, body, query)
        if self.command == "GET" and name is None:
            return self.watch(query) if query.get("watch") == "true" else self.list(plural, query)
        self.one(plural, name, body)

    def post(self, plural: str, body: Json, query: dict[str, str]) -> None:
        made = self.server.create(plural, body, dry_run=query.get("dryRun") == "All")
        if plural in ("jobs", "trainjobs") and not query and self.server.lose_answers:
            self.server.lose_answers -= 1
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.reply(made, 201)

    def one(self, plural: str, name: str, body: Json) -> None:
        with self.server.changed:
            thing = self.server.get(plural, name)
            if self.command == "DELETE":
                self.server.delete(plural, name, body)
            elif self.command == "PATCH":
                assert self.headers["Content-Type"] == "application/merge-patch+json"
                thing["metadata"] |= body.get("metadata", {})
                self.server.touch(plural, thing)
            shown = json.loads(json.dumps(thing))
        self.reply(shown)

    def list(self, plural: str, query: dict[str, str]) -> None:
        with self.server.lock:
            items = json.loads(json.dumps(self.server.select(plural, query.get("labelSelector", ""))))
            version = str(self.server.version)
        self.reply({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items})

    def watch(self, query: dict[str, str]) -> None:
        """Every change of matching pods after a version, bookmarks in between, until the time asked for is over."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        api, sent = self.server, int(query["resourceVersion"])
        wanted = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
        deadline = time.monotonic() + float(query.get("timeoutSeconds", "60"))
        while time.monotonic() < deadline and not api.closing:
            with api.changed:
                if api.expired_watches:
                    api.expired_watches -= 1
                    gone = Refused(410, "Expired", f"too old resource version: {sent} ({api.version})")
                    self.chunk({"type": "ERROR", "object": gone.status})
                    break
                news = [event for event in api.events if event[0] > sent]
                if not news:
                    api.changed.wait(api.bookmark_s)
                    sent = max(sent, api.version) if not [e for e in api.events if e[0] > sent] else sent
            for version, kind, thing in news:
                sent = version
                if matches(thing, wanted):
                    self.chunk({"type": kind, "object": thing})
            if not news and query.get("allowWatchBookmarks") == "true":
                mark = {"kind": "Pod", "metadata": {"resourceVersion": str(sent)}}
                self.chunk({"type": "BOOKMARK", "object": mark})
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, event: Json) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log(self, name: str, query: dict[str, str]) -> None:
        pod = self.server.get("pods", name)
        state = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
        if not {"running", "terminated"} & set(state):
            raise Refused(400, "BadRequest", f'container "{query.get("container")}" is waiting to start')
        lines = list(self.server.logs.get(name, []))
        if "sinceSeconds" in query:
            since = datetime.now(UTC).timestamp() - int(query["sinceSeconds"])
            lines = [line for line in lines if datetime.fromisoformat(line[0]).timestamp() >= since]
        if "tailLines" in query:
            lines = lines[-int(query["tailLines"]) :]
        timed = query.get("timestamps") == "true"
        text = b"".join((f"{when} ".encode() if timed else b"") + line + b"\n" for when, line in lines)
        self.reply_bytes(text, 200, "text/plain")

    def reply(self, body: Json, status: int = 200) -> None:
        self.reply_bytes(json.dumps(body).encode(), status, "application/json")

    def reply_bytes(self, body: bytes, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *ignored: object) -> None:
        """The test run's output stays quiet."""


def validate(body: Json) -> None:
    """As the server's strict field validation; kinds of other projects are accepted as they are."""
    if body["apiVersion"] not in ("v1", "batch/v1"):
        return
    try:
        kubernetes_validate.validate(body, "1.34", strict=True)
    except kubernetes_validate.ValidationError as wrong:
        raise Refused(422, "Invalid", str(wrong.message)) from wrong


def policy(rules: list[Json], pod: Json) -> str:
    """What a podFailurePolicy says of a failed pod: the first rule that matches."""
    code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    held = {(each["type"], each["status"]) for each in pod["status"].get("conditions", [])}
    for rule in rules:
        codes = rule.get("onExitCodes")
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            return str(rule["action"])
        if any((each["type"], each["status"]) in held for each in rule.get("onPodConditions", [])):
            return str(rule["action"])
    return "Count"


def ended(job: Json) -> bool:
    return any(each["type"] in ("Complete", "Failed") for each in job["status"].get("conditions", []))


def index_of(pod: Json) -> int:
    return int(pod["metadata"]["labels"].get(INDEX, 0))


def matches(thing: Json, wanted: dict[str, str]) -> bool:
    labels = thing["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in wanted.items())


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").replace("Z", "000Z")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill_group(pid: int) -> None:
    """End a pod's first process and those of its session, which was started here."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def kill_pod(name: str) -> None:
    """End every process of a pod, as the end of a container does. torchrun gives each engine process a session of its
    own: what is left of them would train on, and hold the pod's output open for ever."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(POD) == name:
                process.kill()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    folder.mkdir(parents=True, exist_ok=True)
    api = Cluster(folder)

    def control() -> None:
        while not api.closing:
            api.reconcile()
            time.sleep(0.05)

    threads = [threading.Thread(target=api.serve_forever, args=(0.02,), daemon=True)]
    threads.append(threading.Thread(target=control, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield api
    finally:
        api.shut()


def until(true: Callable[[], Any], what: str, limit_s: float = 180) -> Any:
    """Wait for something to hold; its value."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := true():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come about in {limit_s:.0f} s")
