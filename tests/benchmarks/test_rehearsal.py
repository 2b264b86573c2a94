"""The benchmarks run from end to end on a tiny model, and what they tell of their measurements is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
# What these measure belongs to processes from their start on; those of the others may fork.
MEASURE_PROCESSES = ("preflight",)
# As benchmarks/processes.py sets them, so that what the programs start forks from the same process.
OF_BENCHMARKS = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def rehearse(program: str, out: Path, *words: str) -> tuple[str, list[dict]]:
    """What a program prints on a tiny model, and the calls in its result file."""
    command = [sys.executable, str(BENCHMARKS / f"{program}.py"), "--tiny", "--out", str(out), *words]
    if program in MEASURE_PROCESSES:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    else:
        done = forked.run(command, timeout=1500, env={**os.environ, **OF_BENCHMARKS})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, json.loads((out / "results" / f"{program}.json").read_text())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the programs that train: the first makes the model, the others find it."""
    return tmp_path_factory.mktemp("rehearsed")


def test_a_program_started_by_nobodys_test_has_a_folder_for_its_forks() -> None:
    environment = {name: value for name, value in os.environ.items() if name != forked.SHARED}
    program = "import os, forked; print(os.environ[forked.SHARED], os.path.isdir(os.environ[forked.SHARED]))"
    command, place = [sys.executable, "-c", program], Path(forked.__file__).parent
    printed = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True).stdout.split()
    assert printed[1:] == ["True"] and not Path(printed[0]).exists(), "it ends with the program"


@pytest.mark.slow
def test_rows_of_the_table_are_measured_and_told(out: Path) -> None:
    """One of each kind: both recipes, in full and with adapters, another program."""
    from throughput import ROWS, TRAININGS

    rows = {number: ROWS[number] for number in ("2", "5", "8")}
    words = ["--row", *rows, "--gpus", "1", "--minutes", "25", "--timeout", "280"]
    printed, (call,) = rehearse("throughput", out, *words)
    found = {row["run"]: row for row in call["rows"]}
    assert set(found) >= {run for each in rows.values() for row in each for run in row.runs}
    ran = [found[one.name] for one in TRAININGS if one.name in found]
    assert all(0 <= row["data_wait"] < 1 and row["samples/s"] > 0 for row in ran)
    for way in ("full", "lora"):
        assert found[f"ours-{way}"]["trained"] == found[f"ordinary-{way}"]["trained"] > 0
    started = found["ours-full"]
    assert 0 < started["planned_at_s"] < started["loaded_at_s"] < started["first_step_at_s"] < started["whole_s"]
    told = {line["what"]: line["value"] for line in call["told"]}
    assert [number for number in rows for _ in rows[number]] == [line["row"] for line in call["told"]]
    assert None not in told.values()
    speeds = [found[run]["tokens/s/gpu"] for run in ("ours-full", "ordinary-full")]
    assert told["against the ordinary recipe"] == pytest.approx(speeds[0] / speeds[1], rel=0.01)
    assert all(row.says in printed for each in rows.values() for row in each)
    _, (again,) = rehearse("throughput", out, *words, "--go-on")
    assert again == call, "everything was there already"


@pytest.mark.slow
def test_a_profiled_step_is_told_by_kind_of_kernel(out: Path) -> None:
    printed, calls = rehearse("throughput", out, "--row", "1", "--gpus", "2", "--profile")
    (row,) = calls[-1]["rows"]
    kinds = {kind["what"]: kind["s/step"] for kind in row["kinds"]}
    assert row["run"] == "ours-16k-packs-profiled" and {"communication", "attention decoder", "GEMM vision"} <= set(
        kinds
    )
    assert 0 <= row["waited_s"] < row["profiled_s"] and row["kernels"][0]["kernel"] in printed


@pytest.mark.slow
def test_memory_rows_say_all_that_the_prediction_needs(out: Path) -> None:
    from predictions import compare, read_rows

    rehearse("memory", out, "--gpus", "1")
    rows = read_rows(out / "rows.json")
    assert [row["run"] for row in rows] == ["8b-1gpu-lora-kept-16k", "2b-1gpu-full-kept-8k"]
    assert all(row["pack"]["tokens"] and row["parameters"]["trained"] for row in rows)
    assert all(each.predicted_gib > 0 for each in compare([{**row, "memory_gib": 1.0} for row in rows]))


@pytest.mark.slow
def test_a_choice_stands_beside_fixed_ones_and_a_careful_user(out: Path) -> None:
    from predictions import compare

    words = ("--case", "lora", "--only", "chosen", "careful", "none 8192")
    _, (call,) = rehearse("policies", out, *words)
    rows = {row["run"]: row for row in call["rows"]}
    assert list(rows) == ["lora chosen", "lora careful", "lora none 8192"]
    tried = [one["settings"] for one in rows["lora careful"]["tried"]]
    assert len(tried) == 3 and rows["lora careful"]["settings"] in tried
    (line,) = call["told"]
    speeds = {name: row["tokens/s/gpu"] for name, row in rows.items()}
    assert line["best_fixed"] == "none 8192" and line["fixed"] == 1
    assert line["against_best_fixed"] == pytest.approx(speeds["lora chosen"] / speeds["lora none 8192"], rel=0.01)
    assert line["against_careful"] == pytest.approx(speeds["lora chosen"] / speeds["lora careful"], rel=0.01)
    row = {**rows["lora chosen"], "memory_gib": 1.0}
    assert compare([row])[0].predicted_gib == pytest.approx(line["predicted_gib"], rel=0.01)


@pytest.mark.slow
def test_an_engine_slower_than_before_is_told_by_its_exit_code(tmp_path: Path) -> None:
    from ledger import machine

    results = tmp_path / "results"
    results.mkdir()
    earlier = {"machine": f"{machine()}, another driver", "rows": [{"run": "prefill", "share": 1e6}]}
    (results / "guard.json").write_text(json.dumps([earlier]))
    command = [sys.executable, str(BENCHMARKS / "guard.py"), "--tiny", "--out", str(tmp_path)]
    done = forked.run(command, timeout=1500, env={**os.environ, **OF_BENCHMARKS})
    assert done.returncode == 1 and "prefill is 100.0% slower than before" in done.stderr, done.stderr[-3000:]
    kept, call = json.loads((results / "guard.json").read_text())
    assert kept == earlier and [row["run"] for row in call["rows"]] == ["lora", "2b", "prefill"]
    assert all(row["share"] > 0 and row["product_tflops"] > 0 for row in call["rows"])


def test_an_entry_that_was_slower_is_not_what_the_next_is_measured_by() -> None:
    from guard import judged, last_good

    def entry(share: float, *, slower: bool, machine: str = "1 x H100, 580") -> dict:
        told = [{"run": "lora", "slower": slower}]
        return {"machine": machine, "rows": [{"run": "lora", "share": share}], "told": told}

    calls = [entry(0.6, slower=False), entry(0.5, slower=True), entry(0.9, slower=False, machine="1 x H200, 580")]
    before = last_good(calls, {"machine": "1 x H100, 590"})
    assert before == {"lora": 0.6}
    lines = {share: judged([{"run": "lora", "share": share}], before) for share in (0.58, 0.583, 0.7)}
    assert [line["slower"] for (line,) in lines.values()] == [True, False, False]


@pytest.mark.slow
def test_an_evaluation_on_two_ranks_is_compared_with_one_on_one(out: Path) -> None:
    _, (call,) = rehearse("evaluation", out, "--gpus", "1", "2")
    one, two = call["rows"]
    assert (one["gpus"], two["gpus"]) == (1, 2) and one["answers"] == two["answers"] == 4
    for row in (one, two):
        assert row["answers_per_s"] == pytest.approx(4 / row["answering_s"], rel=0.01)
        assert 0 < row["first_rank_s"] <= row["answering_s"] < row["whole_s"]
    (told,) = call["told"]
    assert told["kept"] == pytest.approx(two["answers_per_s"] / one["answers_per_s"] / 2, rel=0.01)


@pytest.mark.slow
def test_losses_of_8_bit_products_are_compared_step_by_step(out: Path) -> None:
    _, (call,) = rehearse("float8", out, "--gpus", "1")
    plain, rounded = call["rows"]
    assert plain["losses"] and len(plain["losses"]) == len(rounded["losses"]) and plain["loss_off_most"] == 0
    assert 0 < rounded["loss_off_mean"] <= rounded["loss_off_most"] < 0.01


@pytest.mark.slow
def test_quantized_weights_are_measured_beside_plain_ones(tmp_path: Path) -> None:
    _, (call,) = rehearse("quantize", tmp_path)
    rows = {row["run"]: row for row in call["rows"]}
    products = [row for run, row in rows.items() if run.endswith(("1 rows", "4 rows"))]
    assert len(products) == 8 and all(0.02 < row["off"] < 0.05 for row in products), "what rounding to E4M3 changes"
    for run in ("decode, 2 rows, 64 tokens", "prefill"):
        assert rows[f"{run}, bf16"]["speed"] == 1
        assert rows[f"{run}, FP8"]["speed"] > 0 and rows[f"{run}, W4A16"]["speed"] > 0
    plain, quantized = (rows[f"weights, {precision}"] for precision in ("bf16", "FP8"))
    assert plain["share"] == 1 and rows["weights, W4A16"]["gpu_gb"] < quantized["gpu_gb"] < plain["gpu_gb"]
    # A number of the 14 matrices is one byte instead of two; each of their outputs has a scale of two bytes.
    linear = 2 * (64 * (128 + 64 + 64) + 128 * 64 + 3 * 64 * 128)
    whole = rows["size, FP8"]["file_gb"] * 1e9 / rows["size, FP8"]["share"]
    scales = 2 * 2 * (128 + 64 + 64 + 64 + 128 + 128 + 64)
    assert rows["size, FP8"]["share"] == pytest.approx((whole - linear + scales) / whole, rel=0.01)
    assert rows["size, W4A16"]["share"] < rows["size, FP8"]["share"]


@pytest.mark.slow
def test_what_stands_before_a_first_step_is_measured_each_by_itself(tmp_path: Path) -> None:
    _, (call,) = rehearse("preflight", tmp_path)
    first, again, training = call["rows"]
    assert again["cpu_s"] < training["cpu_s"] and first["records"] == 300
    (event,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert event["train/loss"] > 0


@pytest.mark.slow
def test_a_step_of_reinforcement_learning_is_measured(tmp_path: Path) -> None:
    words = ("--only", "memory", "profile", "--cases", "2b, KL divergence", "--set", "engine.pack_tokens=2048")
    printed, (call,) = rehearse("rl", tmp_path, *words)
    rows = {row["row"]: row for row in call["rows"]}
    assert list(rows) == ["2b, KL divergence", "tiny: profile"]
    assert all(row["update_s"] > 0 and row["pack_tokens"] == 2048 for row in rows.values())
    assert rows["2b, KL divergence"]["rollout/length"] == 8  # to the limit
    profile = rows["tiny: profile"]
    kinds = {kind["what"]: kind["s/step"] for kind in profile["kinds"]}
    assert {"GEMM decoder", "attention decoder", "optimizer"} <= set(kinds)
    assert sum(kinds.values()) < 1.5 * profile["profiled_s"] and 0 <= profile["waited_s"] < profile["profiled_s"]
    assert profile["kernels"][0]["ms"] >= profile["kernels"][-1]["ms"] and profile["kernels"][0]["kernel"] in printed


@pytest.mark.slow
def test_fine_tuning_and_reinforcement_learning_are_compared_on_held_out_clips(tmp_path: Path) -> None:
    _, (call,) = rehearse("rl_sft_to_rl", tmp_path, "--gpus", "1", "--timeout", "600")
    (row,) = call["rows"]
    comparison = json.loads((tmp_path / "shown" / "comparison.json").read_text())
    assert row["questions"] == comparison["whole"]["n"] > 0 and "diagonal" not in {
        part["kind"] for part in row["slices"]
    }
    assert row["difference"] == pytest.approx(row["accuracy_rl"] - row["accuracy_sft"], abs=1e-3)
    steps = [event["step"] for event in json.loads((tmp_path / "shown" / "rl-curve.json").read_text())]
    assert steps[-1] == row["rl_steps"] and set(row["seconds"]) >= {"sft", "sft-evaluation", "rl", "rl-evaluation"}


def test_the_command_for_memory_trains_what_the_result_file_holds() -> None:
    from memory import RUNS

    results = json.loads((BENCHMARKS / "results/memory-4xH200-compiled.json").read_text())
    runs = {one.name: one for one in RUNS}
    assert len(results) >= 11
    for row in results:
        one = runs[row["run"]]
        assert (one.gpus, one.over["engine.recompute"]) == (row["ranks"], row["recompute"])
        adapts, freezes = row["spec"]["policy.lora"] is not None, bool(row["spec"]["policy.freeze_pattern"])
        assert ("policy.lora.r" in one.over, "policy.freeze_pattern" in one.over) == (adapts, freezes)


def test_a_program_over_its_limit_is_killed_with_all_it_started(tmp_path: Path) -> None:
    from processes import finish, start

    child = "import os, time; os.setsid(); open('child', 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    program = tmp_path / "parent.py"
    program.write_text(f"import os; os.chdir({str(tmp_path)!r}); {parent}")
    started = start([str(program)], tmp_path / "log.txt", 600)
    deadline = time.monotonic() + 300
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
    from video_set import SetShape

    place = Place(tmp_path)
    training = Training("one", "ours", "tiny", 2, SetShape(1, (1, 1)), 3, 0, per_rank=4)
    run = place.run_dir(training) / "run"
    run.mkdir(parents=True)
    measured = {"perf/step_s": 2.0, "perf/data_wait_s": 1.0, "perf/tokens_per_s": 1000.0, "train/loss": 1.5}
    events = [{"step": n + 1, "time": at, **measured} for n, at in enumerate((103.0, 105.0, 109.0))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    steps = our_steps(training, place, 100.0)
    assert [step["step_s"] for step in steps] == [3.0, 2.0, 4.0]
    assert steps[2]["tokens/s/gpu"] == 2000 / 4 / 2  # the tokens of the step, over the time until the next one
    assert steps[2]["samples/s"] == 2.0 and steps[2]["data_wait"] == 0.25


def test_runs_go_side_by_side_while_there_are_gpus() -> None:
    from training import side_by_side

    runs = [SimpleNamespace(gpus=gpus) for gpus in (4, 1, 1, 4, 2)]
    assert [[run.gpus for run in group] for group in side_by_side(runs, 4)] == [[4], [1, 1], [4], [2]]


def test_kernels_are_counted_where_they_belong(tmp_path: Path) -> None:
    from kernel_times import rows_of, works_of

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
        kernel(9, "triton_red_fused__to_copy_mul", 800_000, 100_000),
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    text = {"hidden_size": 4096, "intermediate_size": 12288, "head_dim": 128}
    text |= {"num_attention_heads": 32, "num_key_value_heads": 8}
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "spatial_merge_size": 2}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text, "vision_config": vision}))
    rows = rows_of(works_of(tmp_path / "trace.json"), 1.0, tmp_path, True)
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

    options = SimpleNamespace(results=tmp_path)
    for value in (0.123456, 12345.6):
        Ledger("some", options).add({"value": value})
    Ledger("some", options, go_on=True).add({"value": 1})
    calls = json.loads((tmp_path / "some.json").read_text())
    assert [call["rows"] for call in calls] == [[{"value": 0.1235}], [{"value": 12346}, {"value": 1}]]
    assert calls[0]["machine"] and calls[0]["versions"]["torch"]
    assert table([{"run": "a", "x": 12345}, {"run": "bcd"}]) == "run       x\na    12,345\nbcd       -"


def test_a_call_does_not_go_on_from_another_machine(tmp_path: Path) -> None:
    from ledger import Ledger

    Ledger("some", SimpleNamespace(results=tmp_path)).add({"value": 1})
    (call,) = json.loads((tmp_path / "some.json").read_text())
    (tmp_path / "some.json").write_text(json.dumps([{**call, "machine": "8 x another"}]))
    assert Ledger("some", SimpleNamespace(results=tmp_path), go_on=True).rows == []


def test_the_page_names_the_programs_that_there_are() -> None:
    programs = {path.stem for path in BENCHMARKS.glob("*.py") if "arguments(__doc__" in path.read_text()}
    assert set(re.findall(r"benchmarks/(\w+)\.py", (BENCHMARKS / "README.md").read_text())) == programs


def test_sets_of_clips_never_share_a_folder() -> None:
    from training import SETS, Training, as_tiny

    trainings = [Training("one", "ours", "8b", gpus, shape, 3, 0) for gpus in (1, 4) for shape in SETS.values()]
    names = [one.clips.name for one in trainings] + [as_tiny(one, 3).clips.name for one in trainings]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_small_cards_are_rehearsed_with_every_method(out: Path) -> None:
    lanes = ("8b-nf4", "8b-fp8", "2b-full-8bit", "8b-full-offload")  # parts of names
    printed, (call,) = rehearse("small_card", out, "--only", *lanes)
    rows = {row["run"]: row for row in call["rows"]}
    assert set(rows) == {*lanes, "8b-nf4-ordinary", "2b-full-8bit-offload"}
    assert all(row["tokens/s/gpu"] > 0 and "failed" not in row for row in rows.values())
    assert call["told"][0]["against_ordinary"] > 0 and "8b-full-offload" in printed
