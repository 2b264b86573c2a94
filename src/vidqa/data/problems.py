"""Problems of annotation files, of the records in them, and of the media they name."""

from vidqa.core.problem import Code, Exit

EXAMPLE = (
    '{"id": "clip-1", "video": "clip-1.mp4", "conversations": '
    '[{"from": "human", "value": "<video>\\nIs the door open?"}, {"from": "gpt", "value": "Yes"}]}'
)

FILE_MISSING = Code(
    "DATA_FILE_MISSING",
    "An annotation file, dataset folder or media folder is not there or cannot be read.",
    "Give the path of an existing annotations .json or .jsonl file, or of a folder that holds annotations.json.",
)
SYNTAX = Code(
    "DATA_SYNTAX",
    "A file of records cannot be read: it is no valid JSON, JSONL, CSV, parquet or Arrow, or not UTF-8 text.",
    f"Write a JSON list of records, or one record per line (JSONL), each such as {EXAMPLE}; a CSV needs a header "
    f"line, and "
    "quotes around cells with commas or line breaks.",
)
EMPTY = Code(
    "DATA_EMPTY",
    "An annotation file holds no record.",
    f"Write at least one record, such as {EXAMPLE}",
)
TAG_COUNT = Code(
    "DATA_TAG_COUNT",
    "The <video> and <image> tags of a record do not match the media it names.",
    "Write one tag for each medium, at the place where the model should see it, or no tag at all (media come first).",
)
KEY_UNUSED = Code(
    "DATA_KEY_UNUSED",
    "A record, a turn or a part has a key that changes what other trainers teach or show, and that is not used here.",
    "Take the key out where nothing is meant by it; the page on data sets lists the keys that are used.",
)
THINK_UNCLOSED = Code(
    "DATA_THINK_UNCLOSED",
    "The tags of thinking in an answer are not in order; the model would learn them, and its reasoning, as the answer.",
    "Write <think>reasoning</think> before the answer, or no tag at all.",
)
ID_TWICE = Code(
    "DATA_ID_TWICE",
    "Two records of one file have the same id; their results could not be told apart.",
    "Give every record an id of its own, or leave all ids out (the index is used then).",
)
MEDIA_MISSING = Code(
    "DATA_MEDIA_MISSING",
    "A video or image that a record names is not there.",
    "Put the file where the annotation says, correct its name, or name the folder of the media. To leave such records "
    "out: preflight.py --fix FILE writes annotations without them; with engine.on_bad_sample=quarantine a run goes on.",
)
MEDIA_OUTSIDE_ROOT = Code(
    "DATA_MEDIA_OUTSIDE_ROOT",
    "A record names a file outside the folder that its media must stay in, by its name or through a link.",
    "Name media relative to the media folder, without `..`, such as videos/clip-1.mp4; put files there, not links.",
)
MEDIA_NONE = Code(
    "DATA_MEDIA_NONE",
    "A record names no video and no image; it is used as text only.",
    'If that is not meant, name the file, for example "video": "clip-1.mp4".',
)
TAR_BROKEN = Code(
    "DATA_TAR_BROKEN",
    "A media archive cannot be read or unpacked.",
    "Make the archive again (tar -cf videos.tar videos/), or unpack it and give the folder as media path.",
)
TAR_NO_ROOM = Code(
    "DATA_TAR_NO_ROOM",
    "What the records name of a compressed archive has no room in the cache: all unpacked archives together may take "
    "half of what its disk has left without them.",
    "Unpack the archive yourself and give the folder as media path, free space, or let VIDQA_CACHE_DIR name a folder "
    "on a larger disk.",
    Exit.ENVIRONMENT,
)
SPLIT_IMPOSSIBLE = Code(
    "DATA_SPLIT_IMPOSSIBLE",
    "The records cannot be split as asked into training and validation without a video on both sides.",
    "Choose a test_size between 0 and the number of records, have at least two videos, or give a validation set.",
)
COLUMNS = Code(
    "DATA_COLUMNS",
    "A table lacks columns that make a record.",
    "Name the columns video (or image, file, path, filename, clip), question and answer, or give --column video=NAME; "
    "id, kind, video_fps and options (a|b|c) are optional.",
)
FUNCTION = Code(
    "DATA_FUNCTION",
    "The user's function that gives records cannot be found, has failed, or gave something that is no record.",
    "Correct the function at the line that is named: it yields one dictionary for each record, in the same order each "
    "time; python FILE.py is a quick way to try it.",
)
LEFT_OUT = Code(
    "DATA_LEFT_OUT",
    "Files or rows of a source make no record: they are left out.",
    "Complete them (a label for the video, a text beside the medium, a value in the column), or remove them.",
)
CAPTIONS = Code(
    "DATA_CAPTIONS",
    "captions.yaml is not as it should be, or a label of a captions folder lacks the keys of its answer.",
    "captions.yaml, or FOLDER#FILE.yaml, may hold system_prompt (text), user_prompt (text) and keys (a list of names "
    "that the "
    "labels have, such as [weather]); a key that a label lacks is learned as null.",
)
FIELD = Code(
    "DATA_FIELD",
    "A record is not an object, lacks a field that it must have, or has a field of the wrong type.",
    f"Correct the record; a complete one is {EXAMPLE}",
)
TURNS = Code(
    "DATA_TURNS",
    "The turns of a conversation are not in order, or a turn has an unknown role.",
    'Order the turns as: system (optional), user, assistant, user, assistant, ... with "from": "human", "gpt" or '
    '"system" '
    '(or "role": "user", "assistant" or "system").',
)
TURN_EMPTY = Code(
    "DATA_TURN_EMPTY",
    "A user turn holds neither text nor media, an assistant turn holds no text, or the answer is missing.",
    'Write the question and the answer, for example {"from": "human", "value": "<video>\\nIs the door open?"}, '
    '{"from": '
    '"gpt", "value": "Yes"}, or leave the record out.',
)
SPLIT = Code(
    "DATA_SPLIT",
    "The split that is named behind # does not exist, or none is named where there are several.",
    "Write FOLDER#SPLIT, such as FOLDER#train[:100], or FOLDER#SUBSET:SPLIT.",
)
