"""Metrics of the server for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Figures:
    """Metrics since the start, with the memory and CPU time of the process."""

    def __init__(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("vidqa_requests", "Requests answered, by HTTP status.", ["status"], registry=registry)
        self.prompt_tokens = Counter("vidqa_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.answer_tokens = Counter("vidqa_answer_tokens", "Tokens of answers.", registry=registry)
        self.left = Counter("vidqa_clients_left", "Clients that left before their answer.", registry=registry)
        self.media_s = Histogram(
            "vidqa_media_seconds", "To fetch and plan a request's media.", buckets=SECONDS, registry=registry
        )
        self.first_token_s = Histogram(
            "vidqa_first_token_seconds", "From the request to its first token.", buckets=SECONDS, registry=registry
        )
        self.answer_s = Histogram(
            "vidqa_answer_seconds", "From the request to its whole answer.", buckets=SECONDS, registry=registry
        )
        Gauge("vidqa_requests_running", "Requests that wait or are answered.", registry=registry).set_function(running)
        Gauge("vidqa_answers_waiting", "Answers that wait for their turn.", registry=registry).set_function(waiting)

    def text(self) -> bytes:
        return generate_latest(self.registry)
