"""Problems of a sample (its record is valid but cannot be used), and of resuming a run."""

from vidqa.core.problem import Code

SAMPLE_TOO_LONG = Code(
    "SAMPLE_TOO_LONG",
    "A sample has more tokens than the spec allows. It is never cut.",
    "Take fewer frames, lower the pixel budget, or raise the limit; preflight names the smallest change that fits.",
)
QUANTIZE_CALIBRATION = Code(
    "QUANTIZE_CALIBRATION",
    "The samples to calibrate on are too few, have no video or image, or have videos of the evaluation that measures "
    "the model.",
    "Name a training set of at least 64 records with their media, and of other videos than the evaluation's, in "
    "dataset.annotation_path and dataset.media_dir; quantize.force = true takes 16 and more.",
)
RESUME_NO_CHECKPOINT = Code(
    "RESUME_NO_CHECKPOINT",
    "There is no complete checkpoint to resume from, its files are cut off or changed, or there is no run of the same "
    "spec to continue or to prove.",
    "Name another checkpoint (RUN/checkpoints/step_N or epoch_N), set train.resume to true in the run's own spec, "
    "which takes its newest whole one, or start anew: --new-run, or train.resume = false.",
)
RESUME_MISMATCH = Code(
    "RESUME_MISMATCH",
    "The data, batch, seed, base model or trained part is not what the checkpoint was trained with: samples would be "
    "repeated or left out, or the saved weights mean something else; or a saved answer is not of this version.",
    "Restore what changed, such as the base model, trained parts and adapters of the earlier run, or start a new run "
    "from its export: build_spec.py train --model RUN/best.",
)
