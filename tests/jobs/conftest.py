"""Tests of jobs launch on the local platform with the stand-in engine, as those of platforms do."""

from tests.platforms.conftest import stand_in, state, write_spec

__all__ = ["stand_in", "state", "write_spec"]
