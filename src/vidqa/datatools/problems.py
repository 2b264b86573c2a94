"""Problems of the data tools: duplicates, splits, prompt forms, unknown formats."""

from vidqa.core.problem import Code

DUPLICATES = Code(
    "DATATOOLS_DUPLICATES",
    "The same question about the same media occurs more than once, or files with different names have the same bytes.",
    "Keep one record of each (of different answers the right one), and use one file in all records. "
    "scripts/split_dataset.py keeps such files together; other ways to split do not.",
)
PROMPT = Code(
    "DATATOOLS_PROMPT",
    "A prompt form fits no record, or the answer of a multiple-choice question is not exactly one of its options.",
    "mcq needs an options column or options in the question, and an answer that is one of them or its letter (A is the "
    "first); yes_no needs answers that are yes or no and nothing else.",
)
SPLIT = Code(
    "DATATOOLS_SPLIT",
    "The parts of a split are far from the share, contain files whose names suggest one recording, or lack links to "
    "their media.",
    "No action needed if the counts suit you and such files are not clips of one recording; unlinked parts are used "
    "with the media path, as the next command shows. Otherwise split again into another folder with another --seed or "
    "--share, with --skip-near-duplicates if a fixed camera makes all clips look alike, or with --group-by "
    "'(.*[^0-9/])[0-9]+[.][^.]+$' or the field that names the recording.",
)
FORMAT = Code(
    "DATATOOLS_FORMAT",
    "The format of the input cannot be detected, or the input does not follow it.",
    "Set it with --from, and check that --in is the file or folder of the data set; your own function, "
    "FILE.py:records#FOLDER, reads any other format, such as a text beside each video.",
)
