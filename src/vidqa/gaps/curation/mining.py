"""Mining: samples of a pool that are similar to the gaps. Labelled ones become annotations, others annotation tasks.

mined = mine(Mining(gaps=gaps, pool=pool, query=query, pool_annotations=annotations, out=out))
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.core.files import remove, replacing, write_json
from vidqa.core.pages.page import page
from vidqa.data.load import Pair
from vidqa.data.problems import OUTPUT_EXISTS
from vidqa.data.record import Provenance
from vidqa.datatools.outputs import json_list, write_page
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.thumbnails import card_frames
from vidqa.gaps.curation import labels, selection
from vidqa.gaps.curation.embeddings import Part, Table, queries_in
from vidqa.gaps.curation.rows import LABELLED, MINED, Row, counted, read_columns, read_rows, written
from vidqa.gaps.curation.search import Candidates, nearest, pool_mean
from vidqa.gaps.curation.selection import Chosen, Limits
from vidqa.gaps.problems import INPUT, NOTHING_NEW

TEXTS = ("sample_id", "media", "question", "answer", "kind", "problem")
DEEPER = 4  # neighbours per row that a gap may take: some are near copies, or have the other answer
SHOWN_GAPS, SHOWN_ROWS, FRAMES = 24, 6, 3  # on the page: gaps, rows of one gap, frames of one video
TABLE, PAGE, CONTROL, SUMMARY = "mined.parquet", "mined.html", "control.json", "summary.json"


@dataclass(frozen=True, kw_only=True)
class Mining(Limits):
    """The options of mine_samples.py. `pool_annotations` is empty for a pool of media alone; `tried` are the
    mined.parquet of earlier rounds, whose rows are left out; `media_weight` is 0 to compare questions alone, 1 to
    compare media alone."""

    gaps: Path
    pool: Path
    query: Path
    out: Path
    pool_annotations: str = ""
    pool_media: str = ""
    media_weight: float = 0.5
    round: int = 1
    tried: tuple[Path, ...] = ()


@dataclass
class Mined:
    """The result of a mining: mined rows in order, with the texts of their pool rows."""

    finds: list[Chosen]
    texts: dict[int, dict[str, Any]]
    gaps: list[dict[str, Any]]
    left_out: dict[str, int]
    annotations: list[Row] = field(default_factory=list)
    tasks: list[Row] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        takers = {chosen.gap for chosen in self.finds}
        quantiles = np.quantile([chosen.similarity for chosen in self.finds], (0, 0.5, 1))
        return {
            "gaps": len(self.gaps),
            "gaps_served": len(takers),
            "mined": len(self.annotations),
            "to_label": len(self.tasks),
            "by_kind": counted(self.annotations),
            "similarity": dict(zip(("least", "median", "most"), quantiles.round(4).tolist(), strict=True)),
            "left_out": self.left_out,
        }


def mine(request: Mining) -> Mined:
    """Select samples and write them to `request.out`, in place of an earlier mining. Raises CURATION_* problems, and
    OUTPUT_EXISTS if a person has labelled clips there that this mining did not select."""
    pool, query = Table(request.pool), queries_in(request.query)
    pool.require_like(query)
    kpi = query.whole(TEXTS)
    gaps, vectors = _gaps_of(request.gaps, kpi)
    mean = pool_mean(pool, request.media_weight)
    if not pool.rows or not (mean.media.any() or mean.text.any()):
        remedy = "give a pool with videos that can be decoded; summary.json of its embed job has the errors"
        message = f"{pool.rows} rows, none with a vector that differs from the others"
        raise NOTHING_NEW.error(pool.path, message, remedy)
    candidates = nearest(pool, mean.queries(vectors), max(50, DEEPER * request.per_gap), mean)
    texts = pool.texts_at(candidates.row[candidates.row >= 0], TEXTS)
    classes = {row: _answer_class(row_texts) for row, row_texts in texts.items() if row_texts["answer"]}
    forbidden = frozenset(name for name in kpi.columns["media"] if name)
    _leave_out(candidates, texts, request.tried)
    choice = selection.choose(candidates, texts, classes, request, forbidden)
    if not choice.rows:
        shown = ", ".join(f"{count} {why}" for why, count in choice.left_out.items()) or "no neighbours"
        raise NOTHING_NEW.error(pool.path, f"none of the rows nearest to {len(gaps)} gaps: {shown}")
    answered = {texts[chosen.row]["sample_id"] for chosen in choice.rows if texts[chosen.row]["answer"]}
    drawn = selection.random_rows(pool, len(answered) or len(choice.rows), request.seed, forbidden)
    control = [row["sample_id"] for row in pool.texts_at(drawn, ("sample_id",)).values()]
    pairs = _pool_pairs(request, answered, control)
    mined = Mined(choice.rows, texts, gaps, dict(choice.left_out))
    _add_rows(request, mined, pairs)
    _write(request, mined, [pairs[name] for name in control if name in pairs])
    return mined


def _leave_out(candidates: Candidates, texts: dict[int, dict[str, Any]], tried: tuple[Path, ...]) -> None:
    """Remove rows that an earlier round tried from the candidates. Raises CURATION_INPUT."""
    names = {row["sample_id"] for table in tried for row in read_columns(table, "sample_id")}
    gone = [row for row, row_texts in texts.items() if row_texts["sample_id"] in names]
    candidates.row[np.isin(candidates.row, gone)] = -1


def _gaps_of(place: Path, kpi: Part) -> tuple[list[dict[str, Any]], Part]:
    """The gaps that have an embedding, and their embeddings. Raises CURATION_INPUT, CURATION_NOTHING_NEW."""
    table = read_columns(place, "sample_id", "video_id", "question", "ground_truth", "kind")
    names = kpi.columns
    by_id = _unique(names["sample_id"])
    by_pair = _unique(zip(names["media"], names["question"], strict=True))
    rows: dict[int, dict[str, Any]] = {}
    for gap in table:
        at = by_id.get(gap["sample_id"], by_pair.get((gap["video_id"], gap["question"])))
        if at is not None and (kpi.media[at].any() or kpi.text[at].any()):
            rows.setdefault(at, {**gap, "sample_id": names["sample_id"][at]})
    if not rows:
        raise NOTHING_NEW.error(place, f"{len(table)} gaps, none of them has a vector")
    order = list(rows)
    return list(rows.values()), Part({}, kpi.media[order], kpi.text[order])


def _unique(keys: Iterable[Any]) -> dict[Any, int]:
    """The index of each key that occurs once: a repeated key identifies no row."""
    places: dict[Any, list[int]] = {}
    for at, key in enumerate(keys):
        places.setdefault(key, []).append(at)
    return {key: at[0] for key, at in places.items() if len(at) == 1}


def _answer_class(texts: dict[str, Any]) -> str:
    parsed = parse_expected(texts["answer"], texts["question"] or "")
    return parsed.answer or " ".join(texts["answer"].casefold().split())


def _pool_pairs(request: Mining, answered: set[str], control: list[str]) -> dict[str, Pair]:
    """The annotations of mined rows with an answer, and of the control, by id. Raises CURATION_INPUT."""
    names = {*answered, *control}
    pairs = read_rows(request.pool_annotations, request.pool_media, names) if request.pool_annotations else []
    by_id = {pair.record.id: pair for pair in pairs}
    if missing := sorted(answered - by_id.keys()):
        message = f"{len(missing)} of {len(answered)} chosen rows are not in these annotations, such as {missing[0]!r}"
        remedy = "set --pool-annotations to the annotations that the pool was embedded from"
        raise INPUT.error(request.pool_annotations or "--pool-annotations", message, remedy)
    return by_id


def _add_rows(request: Mining, mined: Mined, pairs: dict[str, Pair]) -> None:
    """Add annotations of rows with an answer, and tasks of the others."""
    for chosen in mined.finds:
        gap, own = mined.gaps[chosen.gap], mined.texts[chosen.row]
        provenance = Provenance("mined", request.round, gap["sample_id"])
        details = {"similarity": round(chosen.similarity, 4)}
        if own["answer"]:
            mined.annotations.append(written(*pairs[own["sample_id"]], provenance, details))
        else:
            mined.tasks.append(labels.task(own, gap, provenance, details))


def _write(request: Mining, mined: Mined, control: list[Pair]) -> None:
    import pyarrow
    import pyarrow.parquet

    request.out.mkdir(parents=True, exist_ok=True)
    answered, names = request.out / LABELLED, {row["id"] for row in mined.tasks}
    if answered.is_file() and labels.read_tasks(request.out / labels.TASKS).keys() != names:
        raise OUTPUT_EXISTS.error(answered, "it has a person's labels of clips of an earlier mining")
    for name in (CONTROL, *labels.FILES):  # of which this mining may write none
        remove(request.out / name, owner=request.out)
    (request.out / MINED).write_bytes(json_list(mined.annotations))
    rows = [
        {
            **{name: mined.texts[chosen.row][name] for name in TEXTS if name != "problem"},
            "gap": mined.gaps[chosen.gap]["sample_id"],
            "similarity": chosen.similarity,
            "round": request.round,
        }
        for chosen in mined.finds
    ]
    with replacing(request.out / TABLE) as temporary:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)
    if control:
        random = [written(*pair, Provenance("mined", request.round), {"drawn": "at random"}) for pair in control]
        (request.out / CONTROL).write_bytes(json_list(random))
    if mined.tasks:
        labels.write_tasks(request.out, mined.tasks)
    write_json(request.out / SUMMARY, {"schema_version": 1, **mined.as_dict()})
    _write_page(request.out / PAGE, mined)


def _write_page(path: Path, mined: Mined) -> None:
    """Write a page of gaps with their mined rows and frames. Raises ENV_DISK_SPACE."""
    rows_of = defaultdict(list)
    for chosen in mined.finds:
        rows_of[chosen.gap].append(chosen)
    shown: list[dict[str, Any]] = []
    for gap, finds in list(rows_of.items())[:SHOWN_GAPS]:
        rows = [{**mined.texts[chosen.row], "similarity": chosen.similarity} for chosen in finds[:SHOWN_ROWS]]
        rows = [{**row, **card_frames(row["media"], FRAMES)} for row in rows]
        about = {**mined.gaps[gap], **card_frames(mined.gaps[gap]["video_id"], FRAMES)}
        shown.append({**about, "finds": rows, "count": len(finds)})
    write_page(path, page("gaps/curation/mined.html.j2", title="Mined samples", facts=mined.as_dict(), gaps=shown))
