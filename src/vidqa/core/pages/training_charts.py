"""The charts of a training: loss or reward, learning rate, gradients, speed, data wait, utilisation, memory."""

from __future__ import annotations

from typing import NamedTuple

from vidqa.core.pages.chart import Drawn, Line, Mark, draw, smoothed
from vidqa.core.pages.training_data import Point, Training, number_in, other_run

SMOOTH_FROM = 40  # points from which the loss has a smoothed curve beside the raw one
MOST_EPOCHS = 24  # marked in a chart


class Chart(NamedTuple):
    """A chart of metrics: (name in the legend, metric or points) of each line. `how` holds words: dots, capped (see
    `draw`), free (the axis need not begin at zero), percent (shares from 0 to 1 are drawn as percentages)."""

    title: str
    lines: tuple[tuple[str, str | list[Point]], ...]
    how: str = ""


CHARTS = (
    Chart(
        "Validation, generated answers, %",
        (("accuracy", "val/accuracy"), ("truncated", "val/truncated")),
        "dots percent",
    ),
    Chart("Learning rate", (("rate", "train/lr"),)),
    Chart("Gradient norm, before clipping", (("norm", "train/grad_norm"),), "capped"),
    Chart("Tokens per second, all ranks", (("tokens", "perf/tokens_per_s"),)),
    Chart("Step time, seconds", (("step", "perf/step_s"), ("waiting for video", "perf/data_wait_s")), "capped"),
    Chart("Model FLOPs utilization (MFU), %", (("MFU", "perf/mfu"),), "percent"),
    Chart("Peak GPU memory, GiB", (("memory", "perf/memory_gib"),)),
)
DIVERGENCE = Chart("KL divergence from the reference, nats per token", (("KL", "train/kl"),))
POLICY_CHARTS = (
    Chart(
        "Groups without a difference in reward",
        tuple((name, f"rollout/groups_{name.replace(' ', '_')}") for name in ("all right", "all wrong", "dropped")),
    ),
    Chart("Tokens per completion", (("mean", "rollout/length"), ("longest", "rollout/length_max"))),
    Chart("Truncated completions, %", (("share", "rollout/truncated"),), "percent"),
    Chart("Entropy, nats per token", (("entropy", "train/entropy"),)),
    Chart("Probability ratio", (("mean", "train/ratio"), ("largest change", "train/ratio_difference_max"))),
    Chart("Clipped tokens, %", (("below", "train/clip_low"), ("above", "train/clip_high")), "percent"),
    Chart(
        "Log-probability difference, trainer and rollout",
        (("mean", "train/rollout_difference"), ("largest", "train/rollout_difference_max")),
    ),
    Chart(
        "Main parts of a step, seconds",
        tuple((name, f"perf/{name}_s") for name in ("rollout", "update", "sync")),
        "capped",
    ),
)


def main_chart(training: Training) -> Drawn | None:
    """The first chart of the page: rewards of reinforcement learning, losses of other trainings."""
    marks = [*_epochs(training), *_resumes(training), *_best(training)]
    if training.points("rollout/reward"):
        lines = _with_validation(training.points("rollout/reward"), training.points("val/reward"))
        return draw("Reward", lines, marks=marks)
    lines = _with_validation(training.points("train/loss"), training.points("val/avg_loss"))
    return draw("Loss", lines, marks=marks, may_be_log=True)


def _with_validation(train: list[Point], held_out: list[Point]) -> list[Line]:
    """The training curve, smoothed if it has enough points, and the validation curve."""
    if len(train) >= SMOOTH_FROM:
        lines = [Line("training, raw", train, "pale"), Line("training, smoothed", smoothed(train))]
    else:
        lines = [Line("training", train, dots=True)]
    return [*lines, Line("validation", held_out, "two", dots=True)]


def other_charts(training: Training) -> list[Drawn]:
    """All other charts that have points."""
    charts = [_drawn(training, chart) for chart in [*_policy_charts(training), *CHARTS]]
    return [drawn for drawn in charts if drawn]


def _drawn(training: Training, chart: Chart) -> Drawn | None:
    scale = 100 if "percent" in chart.how else 1
    lines = []
    for (name, key), look in zip(chart.lines, ("one", "two", "three"), strict=False):
        points = training.points(key) if isinstance(key, str) else key
        lines.append(Line(name, [(step, scale * value) for step, value in points], look, dots="dots" in chart.how))
    return draw(chart.title, lines, from_zero="free" not in chart.how, capped="capped" in chart.how)


def _policy_charts(training: Training) -> list[Chart]:
    """The charts of reinforcement learning; empty for other trainings."""
    if not training.points("rollout/reward"):
        return []
    names = sorted({key for event in training.events for key in event if key.startswith("reward/")})
    parts = [name.removeprefix("reward/") for name in names if not name.endswith("_std")]
    old = dict(training.points("perf/old_s"))
    recomputed = [(step, seconds + old.get(step, 0.0)) for step, seconds in training.points("perf/reference_s")]
    log_probabilities = ("old and reference log-probabilities", recomputed)
    rewards, waiting = ("rewards", "perf/rewards_s"), ("waiting for video", "perf/data_wait_s")
    return [
        *(Chart(f"Reward: {name}", ((name, f"reward/{name}"),)) for name in parts),
        *POLICY_CHARTS,
        *([DIVERGENCE] if any(value for _, value in training.points("train/kl")) else []),  # 0 without a reference
        Chart("Other parts of a step, seconds", (rewards, log_probabilities, waiting), "capped"),
        Chart("Policy loss", (("loss", "train/loss"),), "free"),
    ]


def _epochs(training: Training) -> list[Mark]:
    """Marks at the ends of epochs, unless there are too many."""
    steps, total = (number_in(training.plan, key) or 0 for key in ("steps_per_epoch", "total_steps"))
    if not 1 < steps < total or total / steps > MOST_EPOCHS:
        return []
    reached = max((event["step"] for event in training.events), default=0)
    ends = range(int(steps), int(min(total, reached)) + 1, int(steps))
    return [Mark(end, f"epoch {number} ends", "end of an epoch") for number, end in enumerate(ends, 1)]


def _resumes(training: Training) -> list[Mark]:
    marks = []
    for resume in training.resumes:
        if (step := number_in(resume, "step")) is not None:
            other = other_run(resume, training.run)
            text = f"resumes after step {step}" + (f" of {other.name}" if other else "")
            marks.append(Mark(step, text, "resumed", "warn"))
    return marks


def _best(training: Training) -> list[Mark]:
    step = number_in(training.best, "step")
    return [] if step is None else [Mark(step, f"best: {training.best.get('name')}", "best export", "good")]
