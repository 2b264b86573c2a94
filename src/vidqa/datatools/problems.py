"""Problems of the data tools: what they are asked for, what they would overwrite, formats they cannot read."""

from vidqa.problem import Code, Exit

OUTPUT_EXISTS = Code(
    "DATATOOLS_OUTPUT_EXISTS",
    "The output is there already and holds something else; it is never overwritten.",
    "Give another --out, or remove the earlier output yourself.",
)
OUTPUT_UNWRITABLE = Code(
    "DATATOOLS_OUTPUT_UNWRITABLE",
    "The output cannot be written.",
    "Give an --out or --html below a folder that you may write to, on a disk with free space.",
    Exit.ENVIRONMENT,
)
SHARE = Code(
    "DATATOOLS_SHARE",
    "The share of the validation part is not a number between 0 and 1.",
    "Give for example --share 0.1 for a tenth of the records.",
    Exit.USAGE,
)
SPLIT_ONE_VIDEO = Code(
    "DATATOOLS_SPLIT_ONE_VIDEO",
    "The records cannot be split, since all of them share one video or image, directly or in a chain.",
    "Have records about at least two videos; a video is never put on both sides.",
)
SPLIT_OFF = Code(
    "DATATOOLS_SPLIT_OFF",
    "The validation part is far from the share that was asked for, since whole videos are moved.",
    "Nothing needs doing if the counts suit you; else try another --seed or --share.",
)
SAMPLE_UNKNOWN = Code(
    "DATATOOLS_SAMPLE_UNKNOWN",
    "No usable record has the id that was asked for.",
    "Give an id as the annotation file has it, or leave --sample out.",
)
NOTHING_LEARNED = Code(
    "DATATOOLS_NOTHING_LEARNED",
    "A training sample has no token that is learned.",
    "End the conversation with an assistant turn, and check the response mode.",
)
