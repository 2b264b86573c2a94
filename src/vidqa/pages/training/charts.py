"""The charts of a training: losses, rate, gradients, speed, waiting, utilisation, memory."""

from __future__ import annotations

from vidqa.pages.chart import Drawn, Line, Mark, draw, smoothed
from vidqa.pages.training.read import Training, number_in, other_run

SMOOTH_FROM = 40  # points from which the loss has a smoothed curve beside the one as it is
WIDE, TALL = 1080, 300
MOST_EPOCHS = 24  # that are marked


def loss_chart(training: Training) -> Drawn | None:
    """The training loss, smoothed where there is enough of it, and the validation loss."""
    loss, held_out = training.points("train/loss"), training.points("val/avg_loss")
    if len(loss) >= SMOOTH_FROM:
        lines = [Line("training, as it is", loss, "pale"), Line("training, smoothed", smoothed(loss))]
    else:
        lines = [Line("training", loss, dots=True)]
    lines.append(Line("validation", held_out, "two", dots=True))
    marks = [*_epochs(training), *_resumes(training), *_best(training)]
    return draw("Loss", lines, marks=marks, width=WIDE, height=TALL, may_be_log=True)


def other_charts(training: Training) -> list[Drawn]:
    """All others of which there is something to show."""
    at = training.points
    every = [
        *_rewards(training),
        draw(
            "Validation, generated answers",
            [Line("accuracy", at("val/accuracy"), dots=True), Line("cut off", at("val/truncated"), "two", dots=True)],
            from_zero=True,
        ),
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


def _rewards(training: Training) -> list[Drawn | None]:
    """Those of reinforcement learning."""
    at = training.points
    names = sorted({key for event in training.events for key in event if key.startswith("reward/")})
    parts = [name.removeprefix("reward/") for name in names if not name.endswith("_std")]
    kinds = ("", "two", "pale")
    return [
        draw(
            "Reward", [Line("training", at("rollout/reward")), Line("validation", at("val/reward"), "two", dots=True)]
        ),
        *(draw(f"Reward: {name}", [Line(name, at(f"reward/{name}"))], from_zero=True) for name in parts),
        draw(
            "Groups whose completions are all alike",
            [
                Line(name.replace("_", " "), at(f"rollout/groups_{name}"), kind)
                for name, kind in zip(("all_right", "all_wrong", "dropped"), kinds, strict=True)
            ],
            from_zero=True,
        ),
        draw("Tokens of a completion", [Line("mean", at("rollout/length"))], from_zero=True),
        draw("Completions that were cut off", [Line("share", at("rollout/truncated"))], from_zero=True),
        draw("Entropy, nats a token", [Line("entropy", at("train/entropy"))], from_zero=True),
        draw("Divergence from the start (KL), nats a token", [Line("KL", at("train/kl"))], from_zero=True),
        draw(
            "Trainer to rollout, log-probability",
            [Line("mean", at("train/rollout_difference")), Line("largest", at("train/rollout_difference_max"), "two")],
            from_zero=True,
        ),
        draw(
            "Seconds of the parts of a step",
            [
                Line(name, at(f"perf/{name}_s"), kind)
                for name, kind in zip(("rollout", "update", "sync"), kinds, strict=True)
            ],
            from_zero=True,
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
