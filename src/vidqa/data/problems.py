"""Problems of annotations, of their media, and of fetching and storing both; and a collector of many problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vidqa.core.files import absolute
from vidqa.core.problem import Code, Exit, Problem, ProblemError

SHOWN = 20  # places shown per code
NAMED = 5  # names in one message
EXAMPLE = (
    '{"id": "clip-1", "video": "clip-1.mp4", "conversations": '
    '[{"from": "human", "value": "<video>\\nIs the door open?"}, {"from": "gpt", "value": "Yes"}]}'
)

FILE_MISSING = Code(
    "DATA_FILE_MISSING",
    "An annotation file, dataset folder or media folder does not exist or cannot be read.",
    "Give the path of an existing annotations .json or .jsonl file, or of a folder that contains annotations.json.",
)
SYNTAX = Code(
    "DATA_SYNTAX",
    "A file of records cannot be parsed: it is not valid JSON, JSONL, CSV, parquet or Arrow, not UTF-8 text, or has an "
    "object that repeats a key.",
    f"Write a JSON list of records, or one record per line (JSONL), each such as {EXAMPLE}, with every key once; a CSV "
    "needs a header line, and quotes around cells with commas or line breaks.",
)
EMPTY = Code(
    "DATA_EMPTY",
    "An annotation file contains no record, or no usable one.",
    f"Write at least one record, such as {EXAMPLE}",
)
FIELD = Code(
    "DATA_FIELD",
    "A record is not an object, lacks a field, a question or an answer, repeats an id, or has a value of the wrong "
    "type or turns out of order; or a table lacks the columns, label or captions.yaml keys of a record.",
    f"Correct it, or name columns: python scripts/convert_dataset.py --column video=NAME; a full record is {EXAMPLE}",
)
TAG_COUNT = Code(
    "DATA_TAG_COUNT",
    "The <video> and <image> tags of a record do not match its media.",
    "Write one tag per medium, at the position where the model should see it, or no tag at all (media come first).",
)
LEFT_OUT = Code(
    "DATA_LEFT_OUT",
    "Files, rows or keys are not used, because a record or the output format has no field for them; some of these keys "
    "change the loss or the input in other trainers.",
    "Complete files and rows (a label for the video, a text beside the medium, a value in the column), and remove keys "
    "without meaning; references/datasets.md lists the keys that are used.",
)
OPTIONS = Code(
    "DATA_OPTIONS",
    "A record has options beside a question that does not list them: the model does not see them.",
    "List them in the question, as python scripts/convert_dataset.py --prompt mcq does, or take them out of it.",
)
USER_FUNCTION = Code(
    "USER_FUNCTION",
    "A user's function of records, scores or rewards is missing, broken, failed, timed out, or returned a wrong value.",
    "Correct the function at the location in the message, or raise its timeout. A function of records yields one "
    "dictionary per record, always in the same order (test it with python FILE.py). A score, FUNCTION(item of "
    "results.json), returns a number, a dictionary of numbers, or None; metrics.functions_timeout_s limits all answers "
    "together. A reward, FUNCTION(text, record, token_ids, finish_reason), returns a number or (number, table); "
    "engine.reward_timeout_s limits each call.",
)
MEDIA_MISSING = Code(
    "DATA_MEDIA_MISSING",
    "A video or image of a record does not exist.",
    "Put the file at the path in the annotation, correct that path, or give the media folder. Without such records: "
    "python scripts/preflight.py --spec SPEC --fix FILE writes the others; engine.on_bad_sample=quarantine skips them.",
)
MEDIA_OUTSIDE_ROOT = Code(
    "DATA_MEDIA_OUTSIDE_ROOT",
    "A record's path leads outside the media folder, directly or through a link.",
    "Write media paths relative to the media folder, without `..`, such as videos/clip-1.mp4; use files, not links.",
)
TAR_BROKEN = Code(
    "DATA_TAR_BROKEN",
    "A media archive cannot be read or unpacked.",
    "Create the archive again (tar -cf videos.tar videos/), or unpack it and give the folder as media path.",
)
SPLIT = Code(
    "DATA_SPLIT",
    "The split after # does not exist, is not given although there are several, or records cannot be split so that "
    "training and validation share no video.",
    "Write FOLDER#SPLIT, such as FOLDER#train[:100], or FOLDER#SUBSET:SPLIT; set test_size between 0 and the number of "
    "records, use at least two videos, or give a validation set.",
)
OUTPUT_EXISTS = Code(
    "OUTPUT_EXISTS",
    "The output path already exists with different content; it is never overwritten.",
    "Nothing was changed. Give another --out, or remove the existing file or folder yourself.",
)
NOT_FOUND = Code(
    "STORAGE_NOT_FOUND",
    "A data set or model does not exist in the bucket, on the hub or on this machine, or its name is malformed.",
    "Check the spelling: the path of a local folder, s3://bucket/path (aws s3 ls ADDRESS lists it), or "
    "hf_model://organisation/name, with @revision if needed; write media paths relative to the media path, without "
    "`..` and without an address.",
)
DENIED = Code(
    "STORAGE_DENIED",
    "A bucket or the hub denies these credentials read or write access, or there are no credentials.",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), or HF_TOKEN, to credentials with access; accept "
    "the agreement of a gated model on its page.",
    Exit.ENVIRONMENT,
)
DISK_SPACE = Code(
    "ENV_DISK_SPACE",
    "A disk has no space for a download, an unpacked archive or an output, denies writing, or has less space than the "
    "weights to download, the checkpoints and the exports will need. All unpacked archives together may use half of "
    "the space that the cache's disk has without them. As a warning: the frame cache cannot hold all frames or "
    "features, so they are computed again in every epoch.",
    "Free space, lower train.ckpt.max_keep, or choose a writable folder on another disk: --out, train.output_dir, "
    "VIDQA_CACHE_DIR (engine.frame_cache_dir for frames, HF_HOME for the hub's cache); unpack an archive yourself and "
    "give the folder as media path.",
    Exit.ENVIRONMENT,
)
UNREACHABLE = Code(
    "STORAGE_UNREACHABLE",
    "A storage or the hub does not respond, failed during a transfer, or delivered data of the wrong size or hash.",
    "Check the network, AWS_ENDPOINT_URL and HF_ENDPOINT and run this again: data that arrived is not transferred "
    "twice. If a file stays damaged, upload it again; a spec may use a local folder of the model instead.",
    Exit.ENVIRONMENT,
)
HUB_ANSWER = Code(
    "HUB_ANSWER",
    "The hub's response is malformed, or lists a file whose name is not safe to write.",
    "Nothing was written or removed. Check HF_ENDPOINT; tell the owner of the repository, and use another one.",
)
TO_FETCH = Code(
    "STORAGE_TO_FETCH",
    "Data in a bucket, or a model on the hub, is not on this machine yet.",
    "No action needed: a launch downloads it. Before submitting a dry run's files, run the download command in `next`.",
)


def shown_names(names: Sequence[str]) -> str:
    """Join the first names, for a message: "a, b, c, d, e and 7 more"."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(str(name)[:80] for name in names[:NAMED]) + more


def missing_file(path: str | Path, message: str, remedy: str | None = None) -> ProblemError:
    """DATA_FILE_MISSING at the absolute path."""
    return FILE_MISSING.error(absolute(path), message, remedy)


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
