"""The charts of a training: losses or rewards, rate, gradients, speed, waiting, utilisation, memory."""

from __future__ import annotations

from vidqa.pages.chart import Drawn, Line, Mark, draw, smoothed
from vidqa.pages.training.read import Point, Training, number_in, other_run

SMOOTH_FROM = 40  # points from which the loss has a smoothed curve beside the one as it is
WIDE, TALL = 1080, 300
MOST_EPOCHS = 24  # that are marked


def main_chart(training: Training) -> Drawn | None:
    """The first chart of the page: rewards of reinforcement learning, losses of any other training."""
    marks = [*_epochs(training), *_resumes(training), *_best(training)]
    if training.points("rollout/reward"):
        lines = _with_validation(training.points("rollout/reward"), training.points("val/reward"))
        return draw("Reward", lines, marks=marks, width=WIDE, height=TALL)
    lines = _with_validation(training.points("train/loss"), training.points("val/avg_loss"))
    return draw("Loss", lines, marks=marks, width=WIDE, height=TALL, may_be_log=True)


def _with_validation(train: list[Point], held_out: list[Point]) -> list[Line]:
    """The curve of training, smoothed where there is enough of it, and that of validation."""
    if len(train) >= SMOOTH_FROM:
        lines = [Line("training, as it is", train, "pale"), Line("training, smoothed", smoothed(train))]
    else:
        lines = [Line("training", train, dots=True)]
    return [*lines, Line("validation", held_out, "two", dots=True)]


def other_charts(training: Training) -> list[Drawn]:
    """All others of which there is something to show."""
    at = training.points
    every = [
        *_policy_charts(training),
        draw(
            "Validation, generated answers",
            [Line("accuracy", at("val/accuracy"), dots=True), Line("cut off", at("val/truncated"), "two", dots=True)],
            from_zero=True,
        ),
        draw("Loss of the policy", [Line("loss", at("train/loss"))]) if at("rollout/reward") else None,
        draw("Learning rate", [Line("rate", at("train/lr"))], from_zero=True),
        draw("Gradient norm, before clipping", [Line("norm", at("train/grad_norm"))], from_zero=True, capped=True),
        draw("Tokens a second, all ranks", [Line("tokens", at("perf/tokens_per_s"))], from_zero=True),
        draw(
            "Seconds of a step",
            [Line("step", at("perf/step_s")), Line("of it waiting for video", at("perf/data_wait_s"), "two")],
            from_zero=True,
            capped=True,
        ),
        draw("Share of the GPUs' peak (MFU)", [Line("MFU", at("perf/mfu"))], from_zero=True),
        draw("GPU memory, highest so far, GiB", [Line("memory", at("perf/memory_gib"))], from_zero=True),
    ]
    return [drawn for drawn in every if drawn]


def _policy_charts(training: Training) -> list[Drawn | None]:
    """Those of reinforcement learning; none of another training."""
    at = training.points
    if not at("rollout/reward"):
        return []
    names = sorted({key for event in training.events for key in event if key.startswith("reward/")})
    parts = [name.removeprefix("reward/") for name in names if not name.endswith("_std")]
    old = dict(at("perf/old_s"))
    recomputed = [(step, seconds + old.get(step, 0.0)) for step, seconds in at("perf/reference_s")]

    def chart(title: str, *lines: tuple[str, list[Point]], capped: bool = False) -> Drawn | None:
        looks = ("one", "two", "pale")
        drawn = [Line(name, points, look) for (name, points), look in zip(lines, looks, strict=False)]
        return draw(title, drawn, from_zero=True, capped=capped)

    groups = [(name.replace("_", " "), at(f"rollout/groups_{name}")) for name in ("all_right", "all_wrong", "dropped")]
    return [
        *(chart(f"Reward: {name}", (name, at(f"reward/{name}"))) for name in parts),
        chart("Groups whose completions are all alike", *groups),
        chart("Tokens of a completion", ("mean", at("rollout/length")), ("longest", at("rollout/length_max"))),
        chart("Completions that were cut off", ("share", at("rollout/truncated"))),
        chart("Entropy, nats a token", ("entropy", at("train/entropy"))),
        chart("Divergence from the start (KL), nats a token", ("KL", at("train/kl"))),
        chart("Probability ratio", ("mean", at("train/ratio")), ("largest change", at("train/ratio_difference_max"))),
        chart("Clipped tokens", ("below", at("train/clip_low")), ("above", at("train/clip_high"))),
        chart(
            "Trainer to rollout, log-probability",
            ("mean", at("train/rollout_difference")),
            ("largest", at("train/rollout_difference_max")),
        ),
        chart(
            "Seconds of the main parts of a step",
            *((name, at(f"perf/{name}_s")) for name in ("rollout", "update", "sync")),
            capped=True,
        ),
        chart(
            "Seconds of the other parts of a step",
            ("rewards", at("perf/rewards_s")),
            ("old and reference log-probabilities", recomputed),
            ("waiting for video", at("perf/data_wait_s")),
            capped=True,
        ),
    ]


def _epochs(training: Training) -> list[Mark]:
    """Where epochs end, as long as they are few."""
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
            text = f"goes on after step {step}" + (f" of {other.name}" if other else "")
            marks.append(Mark(step, text, "resumed", "warn"))
    return marks


def _best(training: Training) -> list[Mark]:
    step = number_in(training.best, "step")
    return [] if step is None else [Mark(step, f"best: {training.best.get('name')}", "best export", "good")]
