"""Spec: every key and every rule that needs no data."""

from __future__ import annotations

from vidqa.preflight._base import Context
from vidqa.problem import Problem


def rules(context: Context) -> list[Problem]:
    """All errors and warnings; whether a short model_max_length matters is known once the tokens are counted."""
    return context.resolved.warnings
