"""Tests of jobs launch on the local platform with the stand-in engine, as those of platforms do."""

from tests.platforms.conftest import over_at_once, stand_in, state, write_spec

__all__ = ["over_at_once", "stand_in", "state", "write_spec"]
