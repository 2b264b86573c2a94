"""Problems of handing on an export."""

from vidqa.core.problem import Code, Exit

NO_EXPORT = Code(
    "EXPORT_NOT_FOUND",
    "There is no export of a run there.",
    "Name a run folder, or one of the folders below its safetensors/; `latest` is the newest run of this folder.",
    Exit.USAGE,
)
UNPROVED = Code(
    "EXPORT_UNPROVED",
    "Nothing says which loss an export must have, so nobody can prove that what is made of it is the trained model.",
    "Name another export of the run, or train on: its next export is proved.",
)
OUT = Code(
    "EXPORT_OUT",
    "The folder that an export shall go to holds something else, or cannot be written.",
    "Name an empty or a new folder.",
    Exit.USAGE,
)
FAILED = Code(
    "EXPORT_FAILED",
    "The process that loads and writes the weights ended without a result.",
    "Read what it wrote; if it was killed, memory for the whole model was missing: run it on a larger machine.",
    Exit.ENVIRONMENT,
)
