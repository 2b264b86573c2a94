"""Tests of studies launch on the local platform; trials that take no time, where a test asks for them."""

import pytest
from small_studies import install

from tests.platforms.conftest import state

__all__ = ["quick_trials", "state"]


@pytest.fixture
def quick_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr)
