"""Requests of jobs to a cluster's API server, through the official client.

The official client finds the cluster, authenticates and encrypts. Objects are plain dicts, as in the manifest, so that
they do not depend on the client's version of the types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from vidqa.core import environment
from vidqa.core._optional import require
from vidqa.core.problem import Problem
from vidqa.jobs.platforms.kubernetes.site import KubernetesSite
from vidqa.jobs.problems import PLATFORM_REFUSED, PLATFORM_SILENT, PLATFORM_UNREACHABLE, REACH

CONNECT_S, READ_S = 5.0, 30.0
PLURALS = {"Job": "jobs", "ConfigMap": "configmaps", "Service": "services", "TrainJob": "trainjobs"}
Json = dict[str, Any]
ASK_FOR_RIGHTS = (
    "Request the rights to create, get, delete jobs (or trainjobs), configmaps, services; to get, list, watch, delete "
    "pods; to get pods/log."
)


class ApiError(Exception):
    """A refusal of the API server: 403, 404, 409 ... Temporary errors (429, 5xx) are PLATFORM_SILENT instead."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True)
class Cluster:
    """One namespace of one cluster. Every method raises ApiError, or PLATFORM_SILENT as a ProblemError."""

    api: Any  # kubernetes.client.ApiClient
    namespace: str

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        query = [("dryRun", "All")] if dry_run else []
        return self._json("POST", self._collection(body), query, body)

    def get(self, body: Json) -> Json | None:
        """The object in the cluster; None if it does not exist."""
        with _absent_is_fine():
            return self._json("GET", self._path(body))
        return None

    def delete(self, body: Json) -> None:
        """Delete an object and its dependents, if it exists; the server continues after the answer."""
        self._delete(self._path(body), propagationPolicy="Background")

    def patch(self, body: Json, change: Json) -> Json:
        """Merge a change into an object."""
        return self._json("PATCH", self._path(body), [], change)

    def delete_pod(self, name: str, grace_s: int) -> None:
        self._delete(f"{self._core}/pods/{name}", gracePeriodSeconds=grace_s)

    def pods(self, selector: str) -> tuple[list[Json], str]:
        """The pods with these labels, and the resource version from which a watch continues."""
        listed = self._json("GET", f"{self._core}/pods", [("labelSelector", selector)])
        return listed.get("items", []), listed["metadata"]["resourceVersion"]

    def watch_pods(self, selector: str, version: str, timeout_s: float) -> Iterator[tuple[str, Json]]:
        """Yield (ADDED | MODIFIED | DELETED, pod) from `version` until the server ends. Raises ApiError (410, too)."""
        query = [
            ("labelSelector", selector),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(max(1, round(timeout_s)))),
        ]
        with self._open("GET", f"{self._core}/pods", query, None, timeout_s + READ_S) as response:
            for line in response:
                if not line.endswith(b"\n") or not line.strip():  # truncated with its connection, or a keep-alive
                    continue
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise self._error(int(event["object"].get("code", 500)), event["object"])
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]

    def secret_keys(self, name: str) -> set[str]:
        """The keys of a Secret, without the values."""
        return set(self._json("GET", f"{self._core}/secrets/{name}").get("data") or {})

    def log(self, pod: str, container: str, since_s: int | None, tail_lines: int | None = None) -> bytes:
        """The log of a pod, each line after its RFC 3339 time; only the last `since_s` seconds."""
        query = [("container", container), ("timestamps", "true")]
        query += [("sinceSeconds", str(since_s))] if since_s else []
        query += [("tailLines", str(tail_lines))] if tail_lines else []
        with self._open("GET", f"{self._core}/pods/{pod}/log", query, None, READ_S) as response:
            return bytes(response.read())

    def may(self, verb: str, resource: str, group: str = "", subresource: str = "") -> bool:
        """Whether this user has the right in the namespace."""
        attributes = {"namespace": self.namespace, "verb": verb, "resource": resource, "group": group}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "subresource": subresource}},
        }
        answer = self._json("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", [], review)
        return bool(answer.get("status", {}).get("allowed"))

    @property
    def _core(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    def _collection(self, body: Json) -> str:
        group = body["apiVersion"]
        root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        return f"{root}/namespaces/{self.namespace}/{PLURALS[body['kind']]}"

    def _delete(self, path: str, **options: Any) -> None:
        with _absent_is_fine():
            self._json("DELETE", path, [], {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def _path(self, body: Json) -> str:
        return f"{self._collection(body)}/{body['metadata']['name']}"

    def _json(self, method: str, path: str, query: list[tuple[str, str]] | None = None, body: Any = None) -> Json:
        with self._open(method, path, query or [], body, READ_S) as response:
            answer = json.loads(response.read())
        return answer if isinstance(answer, dict) else {}

    @contextmanager
    def _open(self, method: str, path: str, query: list[tuple[str, str]], body: Any, read_s: float) -> Iterator[Any]:
        """Send one request, with the response unread. Network errors become PLATFORM_SILENT, also while reading."""
        urllib3 = require("urllib3", "kubernetes")
        place = self.api.configuration
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind, "Accept": "application/json"}
        for token in place.auth_settings().values():  # refreshed by the client before it expires
            headers[token["key"]] = token["value"]
        try:
            response = self.api.rest_client.pool_manager.request(
                method,
                f"{place.host}{path}{'?' * bool(query)}{urlencode(query)}",
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s),
                preload_content=False,
            )
            try:
                if response.status >= 300:
                    raise self._error(response.status, _status_object(response.read()))
                yield response
            finally:
                response.close()
        except (urllib3.exceptions.HTTPError, OSError, json.JSONDecodeError) as failed:
            raise PLATFORM_SILENT.error(place.host, f"{type(failed).__name__}: {_short(failed)}") from failed

    def _error(self, status: int, body: Json) -> Exception:
        """The exception for a status: PLATFORM_SILENT if another attempt may succeed (429, 5xx), else ApiError."""
        answer = ApiError(status, str(body.get("reason") or ""), str(body.get("message") or ""))
        if status == 429 or status >= 500:
            return PLATFORM_SILENT.error(self.api.configuration.host, _error_text(answer))
        return answer


def connect(site: KubernetesSite) -> Cluster:
    """Connect to the cluster of the kubeconfig; else, if the site names no context, to the cluster of this pod. Raises
    PLATFORM_UNREACHABLE."""
    config = require("kubernetes.config", "kubernetes")
    client = require("kubernetes.client", "kubernetes")
    yaml = require("yaml", "kubernetes")
    configuration = client.Configuration()
    configuration.retries = 1  # of connections only; a request is never sent twice
    try:
        files = environment.kubeconfig()
        config.load_kube_config(files, site.context or None, client_configuration=configuration, persist_config=False)
    # The client does not validate a kubeconfig: an invalid structure raises one of the last three.
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, LookupError, AttributeError) as bad:
        why = f"{type(bad).__name__}: {_short(bad)}"
        unusable = PLATFORM_UNREACHABLE.error(site.context or "kubeconfig", why, REACH["Kubernetes"])
        if site.context:  # it selects a cluster, and no other may replace it
            raise unusable from bad
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            raise unusable from bad
    return Cluster(client.ApiClient(configuration), site.namespace)


def refusal(answer: ApiError, what: str) -> Problem:
    """The problem of an error that ends a launch."""
    lacks_rights = answer.status in (401, 403) and "exceeded quota" not in answer.message
    return PLATFORM_REFUSED.at(what, _error_text(answer), ASK_FOR_RIGHTS if lacks_rights else None)


@contextmanager
def _absent_is_fine() -> Iterator[None]:
    """Ignore the error for a missing object."""
    try:
        yield
    except ApiError as answer:
        if answer.status != 404:
            raise


def _error_text(answer: ApiError) -> str:
    return f"{answer.status} {answer.reason}: {answer.message}"[:600]


def _status_object(body: bytes) -> Json:
    """Parse the Status that the server sends with an error; a proxy in between may send anything."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    return status if isinstance(status, dict) else {"message": body[:200].decode(errors="replace")}


def _short(failed: BaseException) -> str:
    return str(failed).replace("\n", " ")[:300]
