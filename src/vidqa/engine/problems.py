"""Problems of a run: what can go wrong once the engine has started."""

import errno
import shutil
from pathlib import Path

from vidqa.core.problem import Code, Exit, Problem

ENGINE_WEIGHTS_MISMATCH = Code(
    "ENGINE_WEIGHTS_MISMATCH",
    "The weights in a folder are not those of the model its config describes.",
    "Use the complete folder of one model; for an adapter give model.base_model_path and model.enable_lora.",
)
ENGINE_NOTHING_TRAINS = Code(
    "ENGINE_NOTHING_TRAINS",
    "No parameter is left to train.",
    "Loosen policy.freeze_pattern or policy.trainable_pattern, or check policy.lora.target_modules.",
)
ENGINE_NO_GRADIENT = Code(
    "ENGINE_NO_GRADIENT",
    "A parameter that should train got no gradient in the first step.",
    "Freeze it with policy.freeze_pattern, or give data that reaches it (a vision tower needs videos or images).",
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
ENGINE_ROLLOUT_WEIGHTS = Code(
    "ENGINE_ROLLOUT_WEIGHTS",
    "The model that draws completions does not have the weights that are trained.",
    "Report it with the run folder; resume from the last checkpoint.",
    Exit.JOB_FAILED,
)
ENGINE_ROLLOUT_DIFFERS = Code(
    "ENGINE_ROLLOUT_DIFFERS",
    "The trainer gives other log-probabilities to drawn tokens than the model that drew them.",
    "Report it with the run folder; resume from the last checkpoint.",
    Exit.JOB_FAILED,
)
ENGINE_RESUME_MISMATCH = Code(
    "ENGINE_RESUME_MISMATCH",
    "The checkpoint was made by another spec or from other data.",
    "Resume with the spec and the data of that run, or start a new run (train.resume = false).",
)
ENGINE_NO_CHECKPOINT = Code(
    "ENGINE_NO_CHECKPOINT",
    "There is no checkpoint to resume from.",
    "Give train.resume the path of a folder step_N or epoch_N, or set it to false.",
)
ENGINE_CHECKPOINT_DAMAGED = Code(
    "ENGINE_CHECKPOINT_DAMAGED",
    "The files of a checkpoint are not what was written: missing, cut off, changed, or not those of a checkpoint.",
    "Resume from an earlier one: train.resume = true takes the run's newest whole checkpoint, or name its folder.",
)
ENGINE_SAVE_FAILED = Code(
    "ENGINE_SAVE_FAILED",
    "A checkpoint or export could not be written; earlier ones are untouched.",
    "Free disk space or choose another train.output_dir, then resume with train.resume = true.",
    Exit.JOB_FAILED,
)
ENGINE_EXPORT_UNPROVEN = Code(
    "ENGINE_EXPORT_UNPROVEN",
    "An export was written but does not load as the model that was trained.",
    "Report it with the run folder; do not use the export.",
    Exit.JOB_FAILED,
)
ENGINE_PROOF_SAMPLE = Code(
    "ENGINE_PROOF_SAMPLE",
    "The sample whose loss proves an export cannot be read any more.",
    "Put its annotations and its video back where the run's spec.toml names them, then export again.",
)
ENGINE_SHARING_UNPROVEN = Code(
    "ENGINE_SHARING_UNPROVEN",
    "The proof of shared videos found losses that differ, or no videos to share.",
    "Train with engine.share_video_prefix = false, and report it with the run folder.",
    Exit.JOB_FAILED,
)
ENGINE_REPLAY_MISSING = Code(
    "ENGINE_REPLAY_MISSING",
    "No step of the run can be replayed: none is recorded behind a checkpoint or the model that it started from.",
    "Replay with the run's own spec.toml and number of ranks; keep more checkpoints (train.ckpt.save_freq, max_keep).",
)
ENGINE_REPLAY_DIFFERS = Code(
    "ENGINE_REPLAY_DIFFERS",
    "A step that was replayed has other rewards or another gradient than the run recorded.",
    "Put back the run's files, data, reward functions and libraries; if nothing was changed, report it with the run.",
    Exit.JOB_FAILED,
)
ENGINE_OUTPUT_UNWRITABLE = Code(
    "ENGINE_OUTPUT_UNWRITABLE",
    "The run folder cannot be written.",
    "Choose a folder you may write to for train.output_dir or results_dir.",
    Exit.ENVIRONMENT,
)
ENGINE_BAD_SAMPLE = Code(
    "ENGINE_BAD_SAMPLE",
    "A sample's video or image could not be decoded.",
    "Repair or remove the file, or set engine.on_bad_sample to quarantine to go on without such samples.",
)
ENGINE_NO_SAMPLES = Code(
    "ENGINE_NO_SAMPLES",
    "No sample is left to work on.",
    "Check the annotation file and the quarantined samples named in the log.",
)
ENGINE_ANSWERS_UNREADABLE = Code(
    "ENGINE_ANSWERS_UNREADABLE",
    "A saved answer has other fields than this version writes.",
    "Correct or remove the line, or answer everything again with evaluation.skip_saved = false.",
)
ENGINE_ANSWERS_MISSING = Code(
    "ENGINE_ANSWERS_MISSING",
    "Samples that were asked have no saved answer, so they cannot be scored; the answers that are there are kept.",
    "Continue with evaluation.skip_saved = true; where several machines answer, all must share the results_dir.",
    Exit.NOT_DONE,
)
ENGINE_NOT_ANSWERED = Code(
    "ENGINE_NOT_ANSWERED",
    "Samples could not be asked, because their media cannot be decoded or planned; they count as not answered.",
    "Repair their files (metrics.json names them under quarantined), then evaluate again.",
)
ENGINE_TRACKER_FAILED = Code(
    "ENGINE_TRACKER_FAILED",
    "A tracker such as wandb failed or cannot be reached; the training goes on, and metrics.jsonl is complete.",
    "Check its key, its server and the network; what wandb wrote offline is sent with `wandb sync`.",
    Exit.ENVIRONMENT,
)
ENGINE_LORA_TARGETS = Code(
    "ENGINE_LORA_TARGETS",
    "LoRA finds no module, or not the ones asked for.",
    "Use names such as q_proj, v_proj, attn.qkv, or all-linear in policy.lora.target_modules.",
)
ENGINE_QUANTIZE_AWQ = Code(
    "ENGINE_QUANTIZE_AWQ",
    "AWQ runs on a GPU alone.",
    "Leave quantize.method at auto, which takes GPTQ, or run it where a GPU is.",
    Exit.ENVIRONMENT,
)
ENGINE_QUANTIZE_ADAPTER = Code(
    "ENGINE_QUANTIZE_ADAPTER",
    "An adapter to quantize lies in no run of training, so that nothing says how it was trained.",
    "Name RUN/safetensors/NAME of the run that trained it, or merge it first and quantize the merged folder.",
)
ENGINE_QUANTIZE_UNPROVEN = Code(
    "ENGINE_QUANTIZE_UNPROVEN",
    "A quantized folder was written and is not what was planned and calibrated; it is not published.",
    "Report it with the run folder; try another quantize.quantization_scheme.",
    Exit.JOB_FAILED,
)
ENGINE_QUANTIZE_EVALUATION = Code(
    "ENGINE_QUANTIZE_EVALUATION",
    "The evaluation that quantize.evaluate names did not run to its end; the quantized folder is there.",
    "Read the log of its folder below evaluations/; evaluate both models with scripts/launch.py evaluate.",
    Exit.JOB_FAILED,
)
ENGINE_QUANTIZE_GATE = Code(
    "ENGINE_QUANTIZE_GATE",
    "The quantized model answers worse than the model before, by more than quantize.max_drop.",
    "Keep layers (quantize.keep), take a scheme with more bits, or more calibration samples.",
    Exit.JOB_FAILED,
)
CACHE_DISK_FULL = Code(
    "CACHE_DISK_FULL",
    "The disk of the frame cache is full, or its quota is used up; the run goes on and decodes every time.",
    "Free space, point the cache at another disk (VIDQA_CACHE_DIR), or lower its limit.",
    Exit.ENVIRONMENT,
)
CACHE_UNUSABLE = Code(
    "CACHE_UNUSABLE",
    "The folder of the frame cache cannot be created or written.",
    "Point the cache at a folder that you may write (VIDQA_CACHE_DIR).",
    Exit.ENVIRONMENT,
)


def unwritable(failed: OSError) -> Problem:
    """A full disk is a failed save; any other refusal means that the folder cannot be written."""
    full = failed.errno in (errno.ENOSPC, errno.EDQUOT)
    where, message = failed.filename or "the run folder", failed.strerror or str(failed)
    if full:
        remedy = "Free space on that disk, then jobs.py retry JOB: a training goes on from its last checkpoint, "
        return ENGINE_SAVE_FAILED.at(where, message, remedy + "an evaluation after its last answer.")
    return ENGINE_OUTPUT_UNWRITABLE.at(where, message)


def with_free_space(failure: str, folder: Path) -> str:
    """A failure to write, and how much room the disk had then: of a full one PyTorch's writer says where it stood."""
    try:
        return f"{failure.strip()[:300]} ({shutil.disk_usage(folder).free / 1e6:,.1f} MB of the disk are free)"
    except OSError:
        return failure
