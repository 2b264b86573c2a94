"""Problem codes of a run, for failures after the engine has started."""

import errno
import shutil
from pathlib import Path

from vidqa.core.cli import FILE_REFUSED
from vidqa.core.problem import Code, Exit, Problem

ENGINE_NOTHING_TRAINS = Code(
    "ENGINE_NOTHING_TRAINS",
    "No parameter is trainable, or LoRA matches no module, or not all of those that were named.",
    "Loosen policy.freeze_pattern or policy.trainable_pattern; name modules such as q_proj, v_proj, attn.qkv, or "
    "all-linear, in policy.lora.target_modules.",
)
ENGINE_NO_GRADIENT = Code(
    "ENGINE_NO_GRADIENT",
    "A trainable parameter got no gradient in the first step.",
    "Freeze it with policy.freeze_pattern, or add data that uses it (a vision tower needs videos or images).",
    Exit.JOB_FAILED,
)
ENGINE_NOT_FINITE = Code(
    "ENGINE_NOT_FINITE",
    "The loss or the gradient became NaN or infinite.",
    "Lower train.optm_lr, lengthen the warm-up, keep train.optm_grad_norm_clip at 1.0; resume from a checkpoint.",
    Exit.JOB_FAILED,
)
ENGINE_OUT_OF_MEMORY = Code(
    "ENGINE_OUT_OF_MEMORY",
    "The GPU ran out of memory.",
    "Raise policy.parallelism.dp_shard_size, lower engine.pack_tokens or total_pixels, or train with LoRA.",
    Exit.JOB_FAILED,
)
ENGINE_RANK_LOST = Code(
    "ENGINE_RANK_LOST",
    "Another rank ended, or did not answer within engine.step_timeout_s.",
    "Read in the log which rank ended first, and how; then resume: python scripts/jobs.py retry JOB",
    Exit.JOB_FAILED,
)
ENGINE_ROLLOUT_DIFFERS = Code(
    "ENGINE_ROLLOUT_DIFFERS",
    "The model that samples completions differs from the trained model in weights or log-probabilities.",
    "Report it with the run folder; resume from the last checkpoint.",
    Exit.JOB_FAILED,
)
ENGINE_SAVE_FAILED = Code(
    "ENGINE_SAVE_FAILED",
    "A checkpoint or export could not be written; earlier ones are untouched.",
    "Free disk space, then resume: python scripts/jobs.py retry JOB. On another disk, from the newest checkpoint: "
    "python scripts/build_spec.py train --parent-run RUN --results-dir FOLDER.",
    Exit.JOB_FAILED,
)
ENGINE_UNPROVEN = Code(
    "ENGINE_UNPROVEN",
    "A verification failed: an export or a quantized folder is not the model that it was made from, a replayed step is "
    "not the recorded one, or shared videos change losses. Nothing unverified is published.",
    "Restore what changed (files, data, reward functions, libraries); if nothing did, report it with the run folder, "
    "and avoid the feature: another quantize.quantization_scheme, engine.share_video_prefix = false.",
    Exit.JOB_FAILED,
)
ENGINE_PROOF_SAMPLE = Code(
    "ENGINE_PROOF_SAMPLE",
    "The sample whose loss verifies an export can no longer be read.",
    "Restore its annotations and its video at the paths in the run's spec.toml, then export again.",
)
ENGINE_REPLAY_MISSING = Code(
    "ENGINE_REPLAY_MISSING",
    "No step of the run can be replayed: none is recorded after a checkpoint or after the initial model.",
    "Replay with the run's own spec.toml and number of ranks; keep more checkpoints (train.ckpt.save_freq, max_keep).",
)
ENGINE_BAD_SAMPLE = Code(
    "ENGINE_BAD_SAMPLE",
    "A sample's video or image could not be decoded or planned; a question about it counts as unanswered.",
    'Repair or remove the file. With engine.on_bad_sample = "quarantine" a job continues without such samples; '
    "metrics.json of an evaluation lists them under quarantined.",
)
ENGINE_ANSWERS_MISSING = Code(
    "ENGINE_ANSWERS_MISSING",
    "Samples have no saved answer, so they cannot be scored; existing answers are kept.",
    "Continue with evaluation.skip_saved = true; if several machines evaluate, all must share the results_dir.",
    Exit.NOT_DONE,
)
ENGINE_TRACKER_FAILED = Code(
    "ENGINE_TRACKER_FAILED",
    "A tracker such as wandb failed or is unreachable; the training continues, and metrics.jsonl is complete.",
    "Check its key, its server and the network; upload wandb's offline data with `wandb sync`.",
    Exit.ENVIRONMENT,
)
ENGINE_QUANTIZE_GATE = Code(
    "ENGINE_QUANTIZE_GATE",
    "The quantized model scores lower than the original model by more than quantize.max_drop.",
    "Leave more layers unquantized (quantize.keep), use a scheme with more bits, or more calibration samples.",
    Exit.JOB_FAILED,
)
CHECK_LOG = "check the annotation file, and the samples that the log names as left out"


def unwritable(failed: OSError) -> Problem:
    """The problem of a failed write: a full disk is a failed save, any other error an unwritable folder."""
    full = failed.errno in (errno.ENOSPC, errno.EDQUOT)
    where, message = failed.filename or "the run folder", failed.strerror or str(failed)
    if full:
        remedy = "Free space, then: python scripts/jobs.py retry JOB. It goes on from its last checkpoint or answer."
        return ENGINE_SAVE_FAILED.at(where, message, remedy)
    return FILE_REFUSED.at(where, message, "Choose a folder you may write to for train.output_dir or results_dir.")


def with_free_space(failure: str, folder: Path) -> str:
    """A failure to write with the free space of the disk: for a full one PyTorch's writer only reports its position."""
    try:
        return f"{failure.strip()[:300]} ({shutil.disk_usage(folder).free / 1e6:,.1f} MB of the disk are free)"
    except OSError:
        return failure
