"""The names of all metrics that reinforcement learning and answering log, which runs of the tests are compared with."""

from __future__ import annotations

from vidqa.core.metric_names import ANSWERED, COUNTS, GPU, PHASES, POLICY, POLICY_MAXIMA, REWARD, REWARD_STD, UPDATE

COMPLETIONS = ("reward", "reward_std", "length", "length_max", "truncated")
OF_GRPO = (
    *UPDATE,
    *(f"train/{name}" for name in (*POLICY, *POLICY_MAXIMA)),
    *(f"rollout/{name}" for name in (*COMPLETIONS, *COUNTS)),  # beside reward/PART and reward/PART_std
    *(f"perf/{name}_s" for name in (*PHASES, "step")),
    "perf/tokens_per_s",
    *GPU,
    *(REWARD, REWARD_STD),
    *ANSWERED,
    "val/length",
    "val/questions",
)
OF_ANSWERING = (
    *("perf/batch_s", "perf/answers_per_s", "perf/answering_s"),
    *("perf/first_rank_s", "perf/data_wait_s"),
)
