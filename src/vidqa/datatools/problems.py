"""Problems of the data tools: duplicates, splits, prompt forms, unknown formats."""

from vidqa.core.problem import Code

DUPLICATES = Code(
    "DATATOOLS_DUPLICATES",
    "The same question about the same media is there more than once, or files of different names hold the same bytes.",
    "Leave all but one record out, of different answers the wrong ones, and name one file in all records. "
    "`split_dataset.py` keeps such files together; other ways to split do not.",
)
PROMPT = Code(
    "DATATOOLS_PROMPT",
    "A prompt form fits no record, or the answer of a multiple-choice question is not exactly one of its options.",
    "mcq needs an options column or options in the question, and an answer that is one of them or its letter (A is the "
    "first); yes_no needs answers that are yes or no and nothing else.",
)
SPLIT = Code(
    "DATATOOLS_SPLIT",
    "The parts of a split are far from the share, hold files whose names suggest one recording, or media could not be "
    "linked into them.",
    "Nothing needs doing if the counts suit you and such files are no clips of one recording; unlinked parts are used "
    "with the media path, as the next command shows. Else split again into "
    "another folder with another --seed or --share, with --ignore-looks where a fixed camera makes all clips look "
    "alike, or with --group-by '(.*[^0-9/])[0-9]+[.][^.]+$' or the field that names the recording.",
)
FORMAT = Code(
    "DATATOOLS_FORMAT",
    "The format of the input cannot be detected, or the input does not follow it.",
    "Say which it is with --from, and check that --in is the file or folder of the data set; a function of your own, "
    "FILE.py:records#FOLDER, reads any other, such as a text beside each video.",
)
