"""Problems of annotations, of their media, and of fetching and storing both; and a collector of many problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vidqa.core.problem import Code, Exit, Problem

SHOWN = 20  # places shown per code
NAMED = 5  # names in one message
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
    f"Write a JSON list of records, or one record per line (JSONL), each such as {EXAMPLE}; a CSV needs a header line, "
    "and quotes around cells with commas or line breaks.",
)
EMPTY = Code(
    "DATA_EMPTY",
    "An annotation file holds no record, or none that can be used.",
    f"Write at least one record, such as {EXAMPLE}",
)
FIELD = Code(
    "DATA_FIELD",
    "A record is not an object, lacks a field, a question or an answer, repeats an id, has a value of a wrong type or "
    "turns out of order; or a table lacks columns, a label or captions.yaml keys, that make a record.",
    f"Correct the record, or name the columns with --column video=NAME; a complete record is {EXAMPLE}",
)
TAG_COUNT = Code(
    "DATA_TAG_COUNT",
    "The <video> and <image> tags of a record do not match the media it names.",
    "Write one tag for each medium, at the place where the model should see it, or no tag at all (media come first).",
)
LEFT_OUT = Code(
    "DATA_LEFT_OUT",
    "Files, rows or keys have no place in a record, or in the format that is written, and are not used; keys among "
    "them that change what other trainers teach or show.",
    "Complete files and rows (a label for the video, a text beside the medium, a value in the column), and take keys "
    "out where nothing is meant by them; the page on data sets lists those that are used.",
)
OPTIONS = Code(
    "DATA_OPTIONS",
    "A record has options beside a question that does not list them: the model does not see them.",
    "List them in the question, as convert_dataset.py --prompt mcq does, or take them out of the record.",
)
USER_FUNCTION = Code(
    "USER_FUNCTION",
    "The user's function that gives records, scores answers or rewards completions cannot be found or loaded, failed, "
    "took too long, or gave something else.",
    "Correct the function at the place that is named, or give it more time. One of records yields a dictionary for "
    "each, in the same order each time (try it with python FILE.py). A score, FUNCTION(item of results.json), returns "
    "a number, a dictionary of numbers, or None; metrics.functions_timeout_s is for all answers. A reward, "
    "FUNCTION(text, record, token_ids, finish_reason), returns a number or (number, table); engine.reward_timeout_s is "
    "for each call.",
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
TAR_BROKEN = Code(
    "DATA_TAR_BROKEN",
    "A media archive cannot be read or unpacked.",
    "Make the archive again (tar -cf videos.tar videos/), or unpack it and give the folder as media path.",
)
SPLIT = Code(
    "DATA_SPLIT",
    "The split behind # does not exist, none is named where there are several, or records cannot be split as asked "
    "into training and validation without a video on both sides.",
    "Write FOLDER#SPLIT, such as FOLDER#train[:100], or FOLDER#SUBSET:SPLIT; choose a test_size between 0 and the "
    "number of records, have at least two videos, or give a validation set.",
)
OUTPUT_EXISTS = Code(
    "OUTPUT_EXISTS",
    "A file or folder of another content is in the place of an output; it is never overwritten.",
    "Nothing was changed. Give another --out, or remove what is there yourself.",
)
NOT_FOUND = Code(
    "STORAGE_NOT_FOUND",
    "A bucket, the hub or this machine has nothing by the name of a data set or model, or the name has another form.",
    "Check the spelling: the path of a local folder, s3://bucket/path (aws s3 ls ADDRESS lists it), or "
    "hf_model://organisation/name, with @revision where it is meant; media are named relative to the media path, "
    "without `..` and without an address.",
)
DENIED = Code(
    "STORAGE_DENIED",
    "A bucket or the hub does not let these credentials read or write there, or there are none.",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), or HF_TOKEN, to ones that may; accept the "
    "agreement of a gated model on its page.",
    Exit.ENVIRONMENT,
)
DISK_SPACE = Code(
    "ENV_DISK_SPACE",
    "A disk has no room for what is fetched, unpacked or written, refuses it, or has less than the weights to fetch, "
    "the checkpoints and the exports will need. All unpacked archives together may take half of what the cache's disk "
    "has left without them. As a warning: the frame cache cannot hold all frames or features, which are then made "
    "again in every epoch.",
    "Free space, lower train.ckpt.max_keep, or name a folder on another disk that you may write to: --out, "
    "train.output_dir, VIDQA_CACHE_DIR (engine.frame_cache_dir for frames, HF_HOME for what the hub keeps); of an "
    "archive, unpack it yourself and give the folder as media path.",
    Exit.ENVIRONMENT,
)
UNREACHABLE = Code(
    "STORAGE_UNREACHABLE",
    "A storage or the hub does not answer, failed in the middle of a transfer, or what arrived differs from what was "
    "sent, by its size or hash.",
    "Check the network, AWS_ENDPOINT_URL and HF_ENDPOINT and run this again: what has arrived is not transferred "
    "twice. If a file stays damaged, store it anew; a spec may name a local folder of the model instead.",
    Exit.ENVIRONMENT,
)
HUB_ANSWER = Code(
    "HUB_ANSWER",
    "The hub's answer is not of the form that a hub gives, or it lists a file whose name is not safe to write.",
    "Nothing was written or removed. Check HF_ENDPOINT; tell the owner of the repository, and use another one.",
)
TO_FETCH = Code(
    "STORAGE_TO_FETCH",
    "Data in a bucket, or a model of the hub, are not on this machine yet.",
    "Nothing: a launch fetches them by itself. To submit what a dry run wrote, fetch them before, as `next` says.",
)


def shown_names(names: Sequence[str]) -> str:
    """Join the first names, for a message: "a, b, c, d, e and 7 more"."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(str(name)[:80] for name in names[:NAMED]) + more


class ProblemCollector:
    """Problems in the order in which they were found, at most `SHOWN` of each code and then one that counts the rest.
    Without `need_answers` rows may be questions alone."""

    def __init__(self, file: str, need_answers: bool = True) -> None:
        self.file = file
        self.need_answers = need_answers
        self.errors = 0
        self._counts: Counter[tuple[Code, str]] = Counter()
        self._shown: list[Problem] = []

    def add(self, code: Code, where: str, message: str, remedy: str | None = None, severity: str = "error") -> None:
        self.errors += severity == "error"
        self._counts[code, severity] += 1
        if self._counts[code, severity] <= SHOWN:
            self._shown.append(code.at(where, message, remedy, severity=severity))

    @property
    def problems(self) -> list[Problem]:
        more = [
            code.at(self.file, f"{count - SHOWN} more places have the same problem, {count} in all", severity=severity)
            for (code, severity), count in self._counts.items()
            if count > SHOWN
        ]
        return self._shown + more
