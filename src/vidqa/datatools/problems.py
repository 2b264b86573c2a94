"""Problems of the data tools: what they are asked for, what they would overwrite, formats they cannot read."""

from vidqa.core.problem import Code, Exit

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
SPLIT_ONE_VIDEO = Code(
    "DATATOOLS_SPLIT_ONE_VIDEO",
    "The records cannot be split, since all of them share one video or image or what must stay together with it.",
    "Have records about at least two videos; where all clips are of one fixed camera, --ignore-looks.",
)
NOT_LINKED = Code(
    "DATATOOLS_NOT_LINKED",
    "The media could not be linked into the two parts, so these cannot be used in root mode.",
    "Use the command that the result names: it gives the media path. For parts of their own, put --out on the disk of "
    "the media, in a folder where you may make links to them.",
    Exit.ENVIRONMENT,
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
REPEATED = Code(
    "DATATOOLS_REPEATED",
    "The same question about the same media is asked more than once, with the same answer.",
    "Leave all but one of them out, unless you mean the question to weigh more.",
)
CONTRADICTION = Code(
    "DATATOOLS_CONTRADICTION",
    "The same question about the same media has different answers.",
    "Decide which answer is right, and leave the others out.",
)
SAME_CONTENT = Code(
    "DATATOOLS_SAME_CONTENT",
    "Files of different names hold the very same bytes.",
    "Name one file in all records. `split_dataset.py` keeps such files together; other ways to split do not.",
)
MERGE_ARCHIVE = Code(
    "DATATOOLS_MERGE_ARCHIVE",
    "Media inside an archive have no name by which a file elsewhere could reach them, so the sets cannot become one.",
    "Unpack the archive (tar -xf videos.tar) beside its annotations, and merge again.",
)
NOT_AN_OPTION = Code(
    "DATATOOLS_NOT_AN_OPTION",
    "The answer of a multiple-choice question is neither the letter nor the text of exactly one option.",
    "Write the answer as one of the options, or as its letter: A is the first.",
)
PROMPT_UNUSED = Code(
    "DATATOOLS_PROMPT_UNUSED",
    "A prompt form was asked for that fits no record.",
    "mcq needs an options column or options in the question; yes_no needs answers that are yes or no and nothing else.",
)
FIELDS_DROPPED = Code(
    "DATATOOLS_FIELDS_DROPPED",
    "Some fields have no place in the format that was written.",
    "Nothing needs doing if they are not needed; the JSON formats keep all fields of a record beside the conversation.",
)
OPTION = Code(
    "DATATOOLS_OPTION",
    "An option of a data tool has a value that does not fit the data or the other options.",
    "Change it as the message says; --help shows an example.",
    Exit.USAGE,
)
SPLIT = Code(
    "DATATOOLS_SPLIT",
    "The parts of a split are far from the share, or hold files whose names suggest one recording.",
    "Nothing needs doing if the counts suit you and such files are no clips of one recording; else split again into "
    "another folder with another --seed or --share, with --ignore-looks where a fixed camera makes all clips look "
    "alike, "
    "or with --group-by '(.*[^0-9/])[0-9]+[.][^.]+$' or the field that names the recording.",
)
FORMAT = Code(
    "DATATOOLS_FORMAT",
    "The format of the input cannot be detected, or the input does not follow it.",
    "Say which it is with --from, and check that --in is the file or folder of the data set. cosmos-reason-v1.0 is a "
    "folder "
    "with meta.json, text/ and media/; tao-vl-reason-v1.0 is JSON with a list of items.",
)
