"""The names of metrics in metrics.jsonl, of supervised training and of reinforcement learning.

A training logs no other names, so that an objective can be checked before a job starts. The scores of an evaluation, in
metrics.json, depend on its questions: `vidqa.evaluation.metrics.score` names them.
"""

from __future__ import annotations

LOSS, ACCURACY, REWARD = "val/avg_loss", "val/accuracy", "val/reward"  # criteria for the best export
REWARD_STD = "val/reward_std"  # over answers
UPDATE = ("train/loss", "train/grad_norm", "train/lr")
GPU = ("perf/mfu", "perf/memory_gib")  # with a GPU only
ANSWERED = (ACCURACY, "val/truncated")  # if validation generates answers
# Logged as train/NAME; those of preference pairs also as val/NAME.
PREFERENCE = ("reward_margin", "reward_accuracy", "reward_chosen", "reward_rejected")
POLICY = ("entropy", "kl", "clip_low", "clip_high", "ratio", "rollout_difference")
POLICY_MAXIMA = ("rollout_difference_max", "ratio_difference_max")
# Logged as rollout/NAME.
COUNTS = ("groups", "groups_dropped", "groups_equal", "groups_all_right", "groups_all_wrong")
# Logged as perf/NAME_s.
PHASES = ("rollout", "rewards", "data_wait", "plan", "old", "reference", "update", "sync", "validation")

# Values of metrics.names whose scores need a second model; the scores are under `text` in metrics.json.
OF_SECOND_MODELS = {
    "bertscore": ("bertscore_precision", "bertscore_recall", "bertscore_f1"),
    "similarity": ("similarity",),
}


def training_metrics(objective: str) -> tuple[str, ...]:
    """The metrics that a supervised training can log; `objective` is that of its spec."""
    pairs = PREFERENCE if objective == "dpo" else ()
    return (
        LOSS,
        *ANSWERED,
        *UPDATE,
        *(f"{part}/{name}" for part in ("val", "train") for name in pairs),
        *("perf/step_s", "perf/data_wait_s", "perf/tokens_per_s", "perf/tokens_per_s_per_rank"),
        *(*GPU, "perf/mfu_attention_not_halved"),
    )
