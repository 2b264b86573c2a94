"""The files of a run folder: status, metrics, problems, facts, checkpoints, completions, and their names."""

from __future__ import annotations

import json
import os
import re
import stat
import time
import tomllib
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from vidqa import __version__
from vidqa.core import environment
from vidqa.core.files import objects_in, open_plain, read_json, read_object, remove, write_json, write_text
from vidqa.core.locks import locked
from vidqa.core.metric_names import LOSS, REWARD
from vidqa.core.problem import Problem, ProblemError

RUN_SCHEMA = 1  # schema version of run.json
METRICS = "metrics.jsonl"  # one event per line
PLAN = "plan.msgpack"  # the samples of the run (vidqa.planning.plan_cache)
ANSWERS, ANSWERS_TABLE = "answers.jsonl", "answers.parquet"  # of an inference: a line, or a row, for each record
EMBEDDINGS = "embeddings.parquet"  # of an embedding: a row for each record
QUERY_EMBEDDINGS = "query_embeddings.parquet"  # the same of the second set, if there is one
TRAINER = "trainer.json"  # the facts of a checkpoint
EXPORT = "export.json"  # the facts of a complete export: step, spec, data, the trainer's loss
QUARANTINE = "quarantine.json"  # problems of samples that turned out to be broken during the run
PROOF = "proof.json"  # of a reloaded export: the trainer's loss and the export's own
MERGED_LORA = "merged.json"  # of an export of a merged adapter: how it was merged
UPLOADS = "uploads.json"  # the record of uploads of a run, or of an export
OF_ONE_EXPORT = (EXPORT, PROOF, MERGED_LORA, UPLOADS)  # false in an export that is trained from this one
POLICY, METADATA = "policy", ".metadata"  # a checkpoint's folder of tensors, and their index in it
UNFINISHED = ".unfinished-"  # name prefix of a folder that is being written or removed
OLDER = f"{UNFINISHED}older-"  # name prefix of a folder that is about to be replaced
_STATUS = {
    "state": str,
    "step": int,
    "total_steps": int,
    "eta_s": float,
    "message": str,
    "exit_code": int,
    "updated": str,
}
SET_ASIDE = "set-aside-"  # name prefix of a checkpoint that is damaged, or later than the step of a resume
MOST_SECONDS = 1e12
READ_BYTES = 16 << 20
ROLLOUT_BYTES = 1 << 20  # per read of a rollouts file
LOCK_WAIT_S = 30.0  # for another rank that is writing a status
_JOB_ID = re.compile(r"\w[\w.-]*")
_NUMBERED = re.compile(r"(step|epoch)_(\d+)")


def run_named(name: str) -> str:
    """Resolve a path that may begin with a job id: JOB is the run folder of that job, JOB/best its best export. An
    existing path and any other text are unchanged."""
    first, slash, rest = name.partition("/")
    if not _JOB_ID.fullmatch(first) or os.path.exists(name):
        return name
    run_dir = read_object(environment.jobs_folder() / f"{first}.json").get("run_dir")
    return f"{run_dir}{slash}{rest}" if isinstance(run_dir, str) and run_dir else name


def run_path(name: str) -> Path:
    """`run_named` as a path, with ~ expanded."""
    return Path(os.path.expanduser(run_named(name)))


class RunFolder:
    """One run's folder. Only rank 0 of a run writes to it, and a rank that fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.exports = path / "safetensors"

    def write_status(
        self,
        state: str,
        *,
        step: int | None = None,
        total_steps: int | None = None,
        eta_s: float | None = None,
        message: str = "",
        exit_code: int | None = None,
        unless: Collection[str] = (),
        problems: Sequence[Problem] | None = None,
    ) -> bool:
        """Write status.json. `state` is PENDING, RUNNING, COMPLETE, ERROR, CANCELED or STOPPED; the last four keep the
        steps of the current status unless others are given. If the current state is one of `unless`, write nothing and
        return False; a lock prevents other processes, such as a failing rank, from writing in between. `problems` are
        written with it."""
        with self._status_locked():
            current = self.read_status()
            if current.get("state") in unless:
                return False
            before = {} if state in ("PENDING", "RUNNING") else current
            status = {
                "state": state,
                "step": before.get("step", 0) if step is None else step,
                "total_steps": before.get("total_steps", 0) if total_steps is None else total_steps,
                "eta_s": eta_s,
                "message": message,
                "exit_code": exit_code,
                "updated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            if problems is not None:
                self.write_problems(problems)
            write_json(self.path / "status.json", status)
        return True

    @contextmanager
    def _status_locked(self) -> Iterator[None]:
        """A lock among all ranks; no lock on a disk that does not support one."""
        with ExitStack() as held:
            with suppress(ProblemError):
                held.enter_context(locked(self.path / ".status.lock", wait_s=LOCK_WAIT_S))
            yield

    def read_status(self) -> dict[str, Any]:
        """Read the last status, without values of a wrong type; empty if there is none yet."""
        status = read_object(self.path / "status.json")
        return {name: status[name] for name, kind in _STATUS.items() if _is(status.get(name), kind)}

    def write_problems(self, problems: Sequence[Problem], name: str = "problems.json") -> None:
        write_json(self.path / name, [problem.as_dict() for problem in problems])

    def read_problems(self, name: str = "problems.json") -> list[Problem]:
        """The problems that stopped the run, or those in QUARANTINE; empty if there is no such file, or it is
        invalid."""
        import msgspec  # takes 50 ms; not needed by scripts that read no run

        try:
            problems = msgspec.convert(read_json(self.path / name), list[Problem])
        except (OSError, ValueError, msgspec.ValidationError):
            return []
        return problems if all(p.code and p.where and p.message and p.remedy for p in problems) else []

    def add_to_quarantine(self, problems: Sequence[Problem]) -> None:
        """Add samples that turned out to be broken, and are left out, to those from before the run was resumed."""
        self.write_problems(list(dict.fromkeys([*self.read_problems(QUARANTINE), *problems])), QUARANTINE)

    def log_metrics(self, step: int, values: dict[str, float], at: float) -> None:
        """Append one event to metrics.jsonl; `at` is its time in seconds since 1970."""
        line = json.dumps({"step": step, "time": round(at, 3), **values})
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def forget_metrics_after(self, step: int, *, owed: bool = False) -> int:
        """Drop events that a resumed run logs again: those later than `step`, and its validation if that is `owed`.
        Returns the last step that an earlier attempt had reached, 0 without one."""
        path = self.path / METRICS
        if not path.exists():
            return 0
        before, again = read_metrics(path), {LOSS, REWARD} if owed else set()
        events = [e for e in before if e["step"] < step or (e["step"] == step and not again & e.keys())]
        write_text(path, "".join(json.dumps(event) + "\n" for event in events))
        return max((event["step"] for event in before), default=0)

    def complete(self, folder: Path, facts: str) -> list[Path]:
        """The folders step_N and epoch_N below `folder` with a JSON file `facts`, sorted by the step in it."""
        steps = {p: _step_of(p / facts) for p in folder.glob("*_*") if _NUMBERED.fullmatch(p.name)}
        return sorted((p for p, step in steps.items() if step >= 0), key=lambda p: steps[p])

    def newest_checkpoints(self) -> list[Path]:
        """Checkpoint folders, the newest first; before them broken ones, which have files but lack their facts."""
        complete = self.complete(self.checkpoints, TRAINER)
        numbered = sorted(p for p in self.checkpoints.glob("*_*") if _NUMBERED.fullmatch(p.name) and any(p.glob("*")))
        return [*(path for path in numbered if path not in complete), *reversed(complete)]

    def set_aside_after(self, step: int) -> list[str]:
        """Rename checkpoints later than the step of a resume, and broken ones, so that no run resumes from them.
        Returns their names. They are removed when a checkpoint of the same name is published."""
        later = [p for p in self.newest_checkpoints() if not 0 <= _step_of(p / TRAINER) <= step]
        for path in later:
            aside = path.with_name(f"{SET_ASIDE}{path.name}")
            remove(aside, owner=self.checkpoints)
            path.rename(aside)
        return [path.name for path in later]

    def prune(self, folder: Path, facts: str, keep: int, also: set[str], upto: int) -> None:
        """Remove complete folders up to the step `upto`, except the newest `keep` (-1: all) and those named in `also`.
        Later ones are from an earlier attempt, whose last step this run has not reached yet."""
        reached = [path for path in self.complete(folder, facts) if _step_of(path / facts) <= upto]
        for old in reached[: -max(keep, 1)] if keep >= 0 else []:
            if old.name not in also:
                doomed = old.with_name(f"{UNFINISHED}{old.name}")  # a published name never has a partial folder
                old.rename(doomed)
                remove(doomed, owner=folder)

    @staticmethod
    def begin(folder: Path, name: str) -> Path:
        """Create an empty folder below `folder` in which `name` is written before it is published."""
        fresh = folder / f"{UNFINISHED}{name}"
        remove(fresh, owner=folder)
        fresh.mkdir(parents=True)
        return fresh

    @staticmethod
    def publish(unfinished: Path) -> Path:
        """Rename a folder of `begin` to its final name, replacing an older one of that name."""
        published = unfinished.with_name(unfinished.name.removeprefix(UNFINISHED))
        older = unfinished.with_name(f"{OLDER}{published.name}")
        if published.exists():
            published.rename(older)  # removal is slow, and after a kill one of the two must exist
        unfinished.rename(published)
        remove(older, owner=unfinished.parent)
        remove(published.with_name(f"{SET_ASIDE}{published.name}"), owner=unfinished.parent)
        return published

    def sweep(self) -> None:
        """Remove the remains of killed or failed saves. If a kill came between the two renames of `publish`, the older
        folder gets its name back."""
        for folder in (self.checkpoints, self.exports):
            for older in folder.glob(f"{OLDER}*"):
                if not (published := folder / older.name.removeprefix(OLDER)).exists():
                    older.rename(published)
            for left in folder.glob(f"{UNFINISHED}*"):
                remove(left, owner=folder)

    def read_spec(self) -> tuple[dict[str, Any], str]:
        """Read spec.toml as a table and as text; both are empty if it cannot be read."""
        try:
            with open_plain(self.path / "spec.toml") as file:
                text = file.read().decode("utf-8")
            return tomllib.loads(text), text
        except (OSError, ValueError, RecursionError):
            return {}, ""

    def read_run(self) -> dict[str, Any]:
        """Read run.json; empty if it cannot be read, or its `jobs` are not a list."""
        facts = read_object(self.path / "run.json")
        return facts if isinstance(facts.get("jobs", []), list) else {}

    def update_run(self, **facts: Any) -> None:
        """Add facts to run.json, which the launcher created."""
        path = self.path / "run.json"
        write_json(path, {"schema_version": RUN_SCHEMA, "vidqa_version": __version__, **read_object(path), **facts})

    def read_resumes(self) -> list[dict[str, Any]]:
        """The `resumes` of run.json. Each names the checkpoint of a resume as `from`, or if none was left, `lost`, the
        last step of the attempt before."""
        return objects_in(self.read_run().get("resumes"))

    def add_resume(self, facts: dict[str, Any]) -> None:
        self.update_run(resumes=[*self.read_resumes(), facts])


def checkpoint_folder(name: str) -> Path:
    """The folder step_N or epoch_N of a spec's train.resume, which names it or its folder of tensors."""
    folder = Path(os.path.expanduser(name))
    return folder.parent if folder.name == POLICY else folder


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Read the facts (trainer.json) of a checkpoint whose files all exist in the recorded sizes. Raises ValueError with
    the fault. Checkpoints of earlier versions do not list their files."""
    try:
        facts = read_json(folder / TRAINER)
    except (OSError, ValueError) as unreadable:
        raise ValueError(f"{TRAINER} cannot be read: {unreadable}") from unreadable
    if not isinstance(facts, dict) or not _is(facts.get("step"), int):
        raise ValueError(f"{TRAINER} has no step")
    table = f"{POLICY}/{METADATA}"
    for name, file in {table: {}, **_files_of(facts)}.items():
        size = _size_of(folder / name)
        if size is None:
            raise ValueError(f"{name} is missing")
        if size != file.get("bytes", size):
            raise ValueError(f"{name} has {size} bytes; {file['bytes']} were written")
    return facts


def changed_file(folder: Path, facts: dict[str, Any], part: int = 0, parts: int = 1) -> str | None:
    """An error message about the first file of a checkpoint with a wrong checksum; None if all are right. Reads every
    `parts`-th file, so that several processes can share the work."""
    for name, file in list(_files_of(facts).items())[part::parts]:
        try:
            checksum = _crc32(folder / name)
        except OSError as unreadable:
            return f"{name} cannot be read: {unreadable.strerror or unreadable}"
        if checksum != file["crc32"]:
            return f"{name} has changed since it was written (checksum {checksum} instead of {file['crc32']})"
    return None


def _files_of(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The files listed in a checkpoint's facts, with sizes and checksums. Raises ValueError."""
    files = facts.get("files", {})
    for name, file in files.items() if isinstance(files, dict) else [("", None)]:
        plain = name.startswith(f"{POLICY}/") and Path(name).name == name.removeprefix(f"{POLICY}/")
        if not (
            plain and isinstance(file, dict) and _is(file.get("bytes"), int) and isinstance(file.get("crc32"), str)
        ):
            raise ValueError(f"{TRAINER} names no files: {name!r}")
    return files


def _size_of(path: Path) -> int | None:
    """The size of a plain file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _crc32(path: Path) -> str:
    crc = 0
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            crc = zlib.crc32(data, crc)
    return f"{crc:08x}"


def _step_of(path: Path) -> int:
    """The step in a facts file; -1 if there is none."""
    step: Any = read_object(path).get("step")
    return step if _is(step, int) else -1


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The events of a metrics.jsonl; a last line truncated by a kill is left out."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [event for event in map(_parse_metric, lines) if event is not None]


def _parse_metric(line: str | bytes) -> dict[str, Any] | None:
    """The event in a line of metrics.jsonl; None for an invalid line, such as a truncated one."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and _is(event.get("step"), int) else None


def rollout_file(folder: Path, rank: int) -> Path:
    """The file of a rank's completions, one line each, with a compressed frame for every step:

    {"step", "slot", "id", "question", "answer", "media", "completion", "token_ids", "logprobs", "finish_reason",
     "text", "reward", "parts", "advantage", "dropped"}

    "dropped": dapo did not learn from the group; older files lack it. "media" is [{"path", "member", "frames"}]: the
    file, its name inside an archive or null, and the numbers of some of its frames.
    """
    return folder / f"rollouts-{rank}.jsonl.zst"


def rank_of(path: Path) -> int:
    """The rank of a completions file; -1 if the name has none."""
    number = path.name.removeprefix("rollouts-").removesuffix(".jsonl.zst")
    return int(number) if number.isdecimal() else -1


def rollout_files(folder: Path) -> list[Path]:
    """The completions files of all ranks, in the order of the ranks."""
    return sorted((path for path in folder.glob("rollouts-*.jsonl.zst") if rank_of(path) >= 0), key=rank_of)


def read_rollouts(path: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of one rank's file, up to a last frame truncated by a kill. Raises ValueError for a line that is
    not JSON."""
    rest = b""
    for block in _blocks(path):
        *lines, rest = (rest + block).split(b"\n")
        yield from map(json.loads, lines)


def _blocks(path: Path) -> Iterator[bytes]:
    """Decompress the file in blocks. A read that reaches the end of a truncated frame also loses the frames before it;
    these are read again in smaller blocks."""
    import pyarrow as pa

    position, size = 0, ROLLOUT_BYTES
    while size:
        with pa.OSFile(str(path), "rb") as file, pa.CompressedInputStream(file, "zstd") as stream:
            skipped = 0
            while skipped < position:
                skipped += len(stream.read(min(ROLLOUT_BYTES, position - skipped)))
            try:
                while block := stream.read(size):
                    position += len(block)
                    yield block
                return
            except OSError:
                size //= 32


def _is(value: object, kind: type) -> bool:
    """Whether a JSON value has a type; booleans are not numbers, and floats are bounded by MOST_SECONDS."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST_SECONDS
    return isinstance(value, kind) and not isinstance(value, bool)
