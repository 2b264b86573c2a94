"""Decode workers outlive a signal that asks a whole job to stop: what the engine still has to decode is decoded."""

import os
import signal
import time

import pytest
from clips import frame_numbers, write_clip
from decode_workers import pool_workers

from vidqa.video.pool import DecodePool, DecodeRequest


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_stop_for_the_whole_job_costs_no_request(tmp_path, number):
    request = DecodeRequest(str(write_clip(tmp_path / "a.mp4")), None, "video", (0, 5), 4, 6)
    with DecodePool(1, 60) as pool:
        first = pool.submit(request)
        while not pool_workers():
            time.sleep(0.001)
        os.kill(pool_workers()[0], number)  # while it starts
        assert frame_numbers(first.result(60)) == [0, 5]
        os.kill(pool_workers()[0], number)  # while it waits
        assert frame_numbers(pool.submit(request).result(60)) == [0, 5]
