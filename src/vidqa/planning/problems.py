"""Problems of a sample: a record that is well written and still cannot be used."""

from vidqa.core.problem import Code

SAMPLE_TOO_LONG = Code(
    "SAMPLE_TOO_LONG",
    "A sample has more tokens than the spec allows. It is never cut.",
    "Take fewer frames, lower the pixel budget, or raise the limit; preflight names the smallest change that fits.",
)
SAMPLE_NOTHING_LEARNED = Code(
    "SAMPLE_NOTHING_LEARNED",
    "A training sample has no token to learn from.",
    "Give the record an answer, or choose a response_mode that keeps it.",
)
SAMPLE_TWO_KINDS = Code(
    "SAMPLE_TWO_KINDS",
    "One file is named as a video by one record and as an image by another.",
    "Name the file as what it is in every record.",
)
QUANTIZE_GROUP_SIZE = Code(
    "QUANTIZE_GROUP_SIZE",
    "The weights that share a scale do not divide a layer's inputs.",
    "Set quantize.group_size to a divisor of every layer's inputs, or keep the layer (quantize.keep).",
)
QUANTIZE_KEEP = Code(
    "QUANTIZE_KEEP",
    "A pattern of modules that stay as they are matches none, or all are kept.",
    "Name decoder modules, such as layers\\.0\\. or down_proj, in quantize.keep.",
)
QUANTIZE_OVERLAP = Code(
    "QUANTIZE_OVERLAP",
    "Videos of the evaluation would calibrate the model that it measures.",
    "Calibrate on the training set alone: take these videos out of one of the two.",
)
QUANTIZE_FEW = Code(
    "QUANTIZE_FEW",
    "There are too few samples to calibrate on.",
    "Name a training set of at least 64 samples; quantize.force = true takes 16 and more.",
)
QUANTIZE_NO_MEDIA = Code(
    "QUANTIZE_NO_MEDIA",
    "No sample that calibrates has a video or an image, so that scales would be those of text.",
    "Name the training records with their media in dataset.annotation_path and dataset.media_dir.",
)
