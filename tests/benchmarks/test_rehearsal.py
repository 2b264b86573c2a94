"""The benchmarks run from end to end on a tiny model, and what they tell of their measurements is true."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.slow
def test_both_recipes_are_trained_and_compared(tmp_path: Path) -> None:
    words = ["--tiny", "--gpus", "1", "--row", "2", "--timeout", "280", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "throughput.py"), *words], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (call,) = json.loads((tmp_path / "results/throughput.json").read_text())
    ours, theirs = call["rows"]
    assert (ours["run"], theirs["run"]) == ("ours-full", "ordinary-full")
    line = next(line for line in done.stdout.splitlines() if "against the ordinary recipe" in line)
    assert float(line.split()[6]) == pytest.approx(ours["tokens/s/gpu"] / theirs["tokens/s/gpu"], rel=0.01)
    assert all(0 <= row["data_wait"] < 1 and row["samples/s"] > 0 for row in call["rows"])


def test_a_program_over_its_limit_is_killed_with_all_it_started(tmp_path: Path) -> None:
    from processes import finish, start

    child = "import os, time; os.setsid(); open('child', 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    program = tmp_path / "parent.py"
    program.write_text(f"import os; os.chdir({str(tmp_path)!r}); {parent}")
    started = start([str(program)], tmp_path / "log.txt", 600)
    deadline = time.monotonic() + 60
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < deadline, (tmp_path / "log.txt").read_text()
        time.sleep(0.05)
    started.limit_s = 0
    finish([started])
    assert started.timed_out and started.failure and "over" in started.failure
    state = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_step_lasts_until_the_next_one_ends_whatever_the_trainer_did(tmp_path: Path) -> None:
    from training import Place, Training, our_steps

    place = Place(tmp_path, {})
    training = Training("one", "ours", "tiny", 2, "set", 3, 0, per_rank=4)
    run = place.run_dir(training) / "run"
    run.mkdir(parents=True)
    measured = {"perf/step_s": 2.0, "perf/data_wait_s": 1.0, "perf/tokens_per_s": 1000.0}
    events = [{"step": n + 1, "time": at, **measured} for n, at in enumerate((103.0, 105.0, 109.0))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    steps = our_steps(training, place, 100.0)
    assert [step["step_s"] for step in steps] == [3.0, 2.0, 4.0]
    assert steps[2]["tokens/s/gpu"] == 2000 / 4 / 2  # the tokens of the step, over the time until the next one
    assert steps[2]["samples/s"] == 2.0 and steps[2]["data_wait"] == 0.25


def test_runs_go_side_by_side_while_there_are_gpus() -> None:
    from throughput import groups_of

    runs = [SimpleNamespace(gpus=gpus) for gpus in (4, 1, 1, 4, 2)]
    assert [[run.gpus for run in group] for group in groups_of(runs, 4)] == [[4], [1, 1], [4], [2]]


def test_kernels_are_counted_where_they_belong(tmp_path: Path) -> None:
    from breakdown import rows_of, works_of

    def operation(number: int, name: str, shapes: list[list[int]]) -> dict:
        facts = {"External id": number, "Input Dims": shapes}
        return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 0, "dur": 1, "tid": 1, "args": facts}

    def kernel(number: int, name: str, start: int, length: int) -> dict:
        facts = {"External id": number}
        return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": length, "tid": 7, "args": facts}

    events = [
        operation(1, "aten::mm", [[100, 4096], [4096, 12288]]),
        operation(2, "aten::addmm", [[1152], [100, 4304], [4304, 1152]]),
        operation(3, "aten::_flash_attention_forward", [[1, 16, 836, 72], [1, 16, 836, 72]]),
        kernel(1, "nvjet_tst_128", 0, 400_000),
        kernel(2, "sm90_xmma_gemm", 400_000, 100_000),
        kernel(3, "flash_fwd_kernel", 500_000, 100_000),
        kernel(9, "ncclDevKernel_AllGather", 550_000, 150_000),  # 50 ms beside the attention
        kernel(9, "triton_red_fused_mul", 800_000, 100_000),
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    text = {"hidden_size": 4096, "intermediate_size": 12288, "head_dim": 128}
    text |= {"num_attention_heads": 32, "num_key_value_heads": 8}
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "spatial_merge_size": 2}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text, "vision_config": vision}))
    rows = rows_of(works_of(tmp_path / "trace.json"), {"seconds": 1.0, "steps": 1}, tmp_path, True)
    assert {row["what"]: pytest.approx(row["s/step"]) for row in rows} == {
        "GEMM decoder": 0.4,
        "GEMM vision": 0.1,
        "attention vision": 0.1,
        "elementwise, norms, other": 0.1,
        "communication": 0.1,  # what computing does not hide
        "nothing runs": 0.2,
    }


def test_results_are_added_to_those_of_earlier_calls(tmp_path: Path) -> None:
    from ledger import Ledger, table

    for value in (0.123456, 12345.6):
        Ledger("some", tmp_path).add({"value": value})
    calls = json.loads((tmp_path / "some.json").read_text())
    assert [call["rows"] for call in calls] == [[{"value": 0.1235}], [{"value": 12346}]]
    assert calls[0]["machine"] and calls[0]["versions"]["torch"]
    assert table([{"run": "a", "x": 12345}, {"run": "bcd"}]) == "run       x\na    12,345\nbcd       -"
