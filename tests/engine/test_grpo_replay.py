"""--verify of GRPO: a recorded step has the same rewards and gradient again, and what was changed since is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import events, one_rank
from rl_world import rl_here, rl_model, rl_spec

from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder, read_rollouts, rollout_file
from vidqa.engine.rl import replay
from vidqa.engine.rl.rollout import RolloutRecord, cut_off, frame_of
from vidqa.engine.rl.train import Training, open_training
from vidqa.spec import load
from vidqa.spec.keys import with_values

Line = dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(spec, run) of two steps with checkpoints, old log-probabilities and a reference."""
    folder = tmp_path_factory.mktemp("replay")
    over = {
        "train.ckpt.save_freq": 1,
        "train.train_policy.kl_beta": 0.05,
        "train.train_policy.mu_iterations": 2,
        "train.train_policy.reward_function": {f"{folder / 'reward.py'}:odd": 1.0, "token_f1": 0.5},
    }
    spec = rl_spec(folder / "spec", rl_model(folder), over)
    return spec, rl_here(spec, folder / "run")


@pytest.fixture(scope="module")
def second_step(finished: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """A training that is about to take the second step."""
    place = RunFolder(tmp_path_factory.mktemp("second"))
    start = {"train.resume": str(finished[1] / "checkpoints/step_1")}
    with one_rank(), open_training(with_values(load(finished[0], "grpo"), start), place) as training:
        yield training


@pytest.fixture
def run(finished: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the run that may be changed."""
    return Path(shutil.copytree(finished[1], tmp_path / "run", symlinks=True))


def replayed(finished: tuple[Path, Path], run: Path) -> dict[str, Any]:
    spec = load(finished[0], "grpo")
    (run / "proof").mkdir(exist_ok=True)
    with one_rank():
        replay.prove(spec, RunFolder(run / "proof"))
    facts: dict[str, Any] = json.loads((run / "proof/replay.json").read_text())
    return facts


def edit(run: Path, change: Callable[[Line], object], step: int = 2) -> None:
    """Change the first completion that was recorded of a step."""
    path = rollout_file(run, 0)
    lines = list(read_rollouts(path))
    change(next(line for line in lines if line["step"] == step))
    path.write_bytes(frame_of(lines))


def test_the_step_behind_the_newest_checkpoint_has_the_same_gradient(finished: tuple[Path, Path], run: Path) -> None:
    """And a recorded norm that is another by 2e-6 is told."""
    facts = replayed(finished, run)
    assert facts["agree"] and facts["step"] == 2 and facts["checkpoint"] == "step_1" and facts["completions"] == 16
    assert facts["grad_norm"] == events(run, "train/grad_norm")[2]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[1]["train/grad_norm"] *= 1 + 2e-6
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ProblemError, match="gradient norm") as raised:
        replay.judge(RunFolder(run / "proof"), RunFolder(run), facts, 1e-6)
    assert raised.value.problems[0].code == "ENGINE_UNPROVEN"
    assert json.loads((run / "proof/replay.json").read_text())["agree"] is False


def test_without_a_checkpoint_the_first_step_is_replayed_from_the_model(finished: tuple[Path, Path], run: Path) -> None:
    shutil.rmtree(run / "checkpoints/step_1")
    facts = replayed(finished, run)
    assert facts["agree"] and facts["step"] == 1 and facts["checkpoint"] is None
    assert facts["grad_norm"] == events(run, "train/grad_norm")[1]


def test_another_checkpoint_is_told(finished: tuple[Path, Path], run: Path) -> None:
    """Under the name and the number of the one that the step began with."""
    shutil.rmtree(run / "checkpoints/step_1")
    later = (run / "checkpoints/step_2").rename(run / "checkpoints/step_1")
    facts = json.loads((later / "trainer.json").read_text())
    (later / "trainer.json").write_text(json.dumps({**facts, "step": 1, "updates": facts["updates"] // 2}))
    with pytest.raises(ProblemError) as raised:
        replayed(finished, run)
    assert raised.value.problems[0].code in ("ENGINE_UNPROVEN", "ENGINE_ROLLOUT_DIFFERS")


def raised_reward(line: Line) -> None:
    line["reward"] += 0.25


def other_part(line: Line) -> None:
    line["parts"]["token_f1"] = 0.75


def other_token(line: Line) -> None:
    line["token_ids"][0] += 1


def no_token(line: Line) -> None:
    line["token_ids"][0] = 10**6


def other_question(line: Line) -> None:
    line["id"] = "r0" if line["id"] != "r0" else "r1"


def other_keys(line: Line) -> None:
    del line["finish_reason"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (raised_reward, "reward"),
        (other_part, "parts"),
        (other_token, "replayed"),
        (no_token, "token 1000000 is never drawn"),
        (other_question, "completions of"),
        (other_keys, "finish_reason"),
    ],
)
def test_an_edited_completion_is_told(
    second_step: Training, run: Path, change: Callable[[Line], object], text: str
) -> None:
    edit(run, change)
    with pytest.raises(ProblemError, match=text) as raised:
        replay.replayed_groups(second_step, RunFolder(run), 2)
    assert raised.value.problems[0].code == "ENGINE_UNPROVEN"


def test_where_no_step_can_be_replayed_it_says_so(
    finished: tuple[Path, Path], second_step: Training, run: Path
) -> None:
    spec, recorded = load(finished[0], "grpo"), RunFolder(run)

    def message(work: Callable[[], object]) -> str:
        with pytest.raises(ProblemError) as raised:
            work()
        assert raised.value.problems[0].code == "ENGINE_REPLAY_MISSING"
        return raised.value.problems[0].message

    later = with_values(spec, {"train.resume": str(run / "checkpoints/step_2/policy")})
    assert "checkpoints before step 3" in message(lambda: replay.replayable(later, recorded))
    shutil.copy(rollout_file(run, 0), rollout_file(run, 1))
    assert "more ranks than 1" in message(lambda: replay.replayed_groups(second_step, recorded, 2))
    for rank in (0, 1):
        cut_off(rollout_file(run, rank), 1)
    assert "no completion of step 2" in message(lambda: replay.replayed_groups(second_step, recorded, 2))
    for rank in (0, 1):
        rollout_file(run, rank).unlink()
    assert "no rollouts" in message(lambda: replay.replayable(spec, recorded))


def test_a_run_that_goes_on_with_fewer_ranks_drops_what_others_drew_later(run: Path) -> None:
    shutil.copy(rollout_file(run, 0), rollout_file(run, 1))
    RolloutRecord(run, 0, 1, 1)
    assert [line["step"] for rank in (0, 1) for line in read_rollouts(rollout_file(run, rank))] == [1] * 32


def test_a_frame_that_a_kill_cut_off_costs_its_own_lines_alone(run: Path) -> None:
    """And the file of a run that goes on is, byte by byte, that of the last step that is done."""
    path = rollout_file(run, 0)
    whole = path.read_bytes()
    lines = list(read_rollouts(path))
    cut_off(path, 1)
    first = path.read_bytes()
    assert whole.startswith(first) and len(first) < len(whole)
    for end in (len(first) + 1, len(first) + 40, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert list(read_rollouts(path))[:16] == lines[:16], end
        cut_off(path, 1)
        assert path.read_bytes() == first, end
