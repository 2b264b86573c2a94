"""Problems of a sample (its record is valid but cannot be used), and of resuming a run."""

from vidqa.core.problem import Code

SAMPLE_TOO_LONG = Code(
    "SAMPLE_TOO_LONG",
    "A sample has more tokens than the spec allows; it is never truncated.",
    "Lower nframes, fps or total_pixels, or raise the limit (train: policy.model_max_length); preflight names the "
    "smallest change that fits.",
)
QUANTIZE_CALIBRATION = Code(
    "QUANTIZE_CALIBRATION",
    "The calibration samples are too few, have no video or image, or share videos with the evaluation that measures "
    "the model.",
    "Set dataset.annotation_path and dataset.media_dir to a training set of at least 64 records with their media and "
    "without videos of the evaluation; quantize.force = true accepts 16 or more.",
)
RESUME_NO_CHECKPOINT = Code(
    "RESUME_NO_CHECKPOINT",
    "No complete checkpoint to resume from exists, its files are truncated or changed, or no run of the same spec "
    "exists to continue or to verify.",
    "Give another checkpoint (RUN/checkpoints/step_N or epoch_N), set train.resume to true in the run's own spec, "
    "which uses its newest complete one, or start a new run: --new-run, or train.resume = false.",
)
RESUME_MISMATCH = Code(
    "RESUME_MISMATCH",
    "The data, batch, seed, base model or trained parameters differ from those of the checkpoint: samples would be "
    "repeated or left out, or the saved weights would not fit; or a saved answer is from another version.",
    "Restore what changed, such as the base model, trained parts and adapters of the earlier run, or start a new run "
    "from its export: python scripts/build_spec.py train --model RUN/best.",
)
