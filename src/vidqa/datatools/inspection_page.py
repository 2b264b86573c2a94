"""The page of an inspected data set: counts, answer balance, histograms, duplicates, problems, some of its videos."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vidqa.dataset.record import MediaRef, Record
from vidqa.datatools.inspection import Inspection
from vidqa.datatools.pages import frame_urls
from vidqa.pages.page import PROBLEMS, TILE, page
from vidqa.video.types import VideoMeta

CARDS = 12  # media shown with frames
FRAMES = 4  # of each video
QUESTIONS = 6  # of each
BINS = 24
PROBLEMS_SHOWN = 30
WIDTH, HEIGHT, FLOOR = 330, 130, 110  # of a histogram, in its own units; bars stand on FLOOR
SHADES = 6

STYLE = """
.tiles { grid-template-columns:repeat(auto-fit,minmax(140px,1fr)); margin-bottom:12px }
.stack { display:flex; height:14px; border-radius:4px; overflow:hidden; background:var(--line); min-width:220px }
.stack i { display:block; height:100%; border-right:1px solid var(--card) } .stack i:last-child { border:0 }
.a0 { background:var(--accent) } .a1 { background:var(--warn) } .a2 { background:var(--good) }
.a3 { background:var(--bad) } .a4 { background:var(--soft) } .a5 { background:var(--faint) }
.legend { font-size:12.5px; color:var(--soft); display:flex; flex-wrap:wrap; gap:2px 12px; margin-top:4px }
.legend b { font-weight:550; color:var(--ink) }
.legend i { display:inline-block; width:9px; height:9px; border-radius:2px; margin-right:5px }
svg { width:100%; height:auto; display:block } svg rect { fill:var(--accent); opacity:.85 }
svg text { fill:var(--soft); font-size:11px; font-variant-numeric:tabular-nums } svg line { stroke:var(--line) }
.cards { grid-template-columns:repeat(auto-fill,minmax(340px,1fr)) } .frames img { max-height:110px }
.ask { display:grid; grid-template-columns:minmax(0,3fr) minmax(0,2fr); gap:2px 12px; font-size:13.5px }
.ask span { overflow-wrap:anywhere } .ask .truth { text-align:right }
.three { grid-template-columns:repeat(auto-fit,minmax(280px,1fr)) } .wide { width:60% }
ul.plain { margin:0; padding-left:18px; overflow-wrap:anywhere }
"""
BODY = (
    TILE
    + """
{%- macro histogram(name, h) -%}
<div class="panel"><h3>{{ name }}</h3>
<svg viewBox="0 0 {{ h.width }} {{ h.height }}" role="img" aria-label="{{ name }}">
<line x1="0" x2="{{ h.width }}" y1="{{ h.floor }}" y2="{{ h.floor }}"/>
{% for bar in h.bars %}<rect x="{{ bar.x }}" y="{{ bar.y }}" width="{{ bar.width }}" height="{{ bar.height }}">
<title>{{ bar.title }}</title></rect>{% endfor %}
{% for mark in h.marks %}<text x="{{ mark.x }}" y="{{ h.height - 4 }}" text-anchor="{{ mark.anchor }}">
{{- mark.text }}</text>
{% endfor %}</svg>
<p class="note">{{ h.note }}</p></div>
{%- endmacro -%}
{%- macro counts(name, table) -%}
<div class="panel"><h3>{{ name }}</h3><table>{% for key, n in table %}<tr><td>{{ key }}</td>
<td class="r">{{ n | number }}</td></tr>{% endfor %}</table></div>
{%- endmacro -%}
<p class="sub">{{ f.annotations }}</p>
<div class="tiles">{{ tile("Records", f.records | number, "questions: " ~ f.questions | number) }}
{{ tile("Videos", f.videos | number, length) }}
{{ tile("Images", f.images | number, "text only: " ~ f.text_only | number) }}
{{ tile("Media", size, "several in a record: " ~ f.several_media | number) }}
{% if f.tokens %}{{ tile("Tokens", "%g" | format(f.tokens.per_sample.median), "median of a sample, at most " ~
  f.tokens.per_sample.max | number) }}{% endif %}
{{ tile("Questions twice", (f.repeated | length + f.contradicting | length) | number,
  "contradictions: " ~ f.contradicting | length) }}
{{ tile("Files twice", f.same_content | length | number, "the same bytes; look alike: " ~ (f.look_alike | length
  if f.look_alike is not none else "not looked at")) }}
{% if f.unused_media %}{{ tile("Unused media", f.unused_media_count | number, "named by no record") }}{% endif %}</div>

<h2>Answers by kind</h2>
<div class="panel scroll"><table><tr><th>Kind</th><th class="r">Records</th><th class="wide">Answers</th>
<th class="r">Most common</th></tr>
{% for k in kinds %}<tr><td>{{ k.name }}</td><td class="r">{{ k.records | number }}</td><td>
<div class="stack">{% for a in k.answers %}<i class="a{{ a.shade }}" style="width:{{ a.percent }}%"
 title="{{ a.name }}: {{ a.n }}"></i>{% endfor %}</div>
<div class="legend">{% for a in k.answers %}<span><i class="a{{ a.shade }}"></i><b>{{ a.name }}</b> {{ a.n | number }}
</span>{% endfor %}</div></td><td class="r">{{ "%.0f" | format(100 * k.most) }} %</td></tr>{% endfor %}</table></div>
<p class="note">A model that always says the most common answer scores that share. “(text)” is free text.</p>

{% if histograms %}<h2>Distributions</h2>
<div class="grid three">{% for name, h in histograms %}{{ histogram(name, h) }}{% endfor %}</div>{% endif %}
{% if tables %}<h2>Media</h2><div class="grid three">
{% for name, table in tables %}{{ counts(name, table) }}{% endfor %}</div>{% endif %}

{% if duplicates %}<h2>Duplicates and unused media</h2>
{% for name, groups in duplicates %}<div class="panel notice"><strong>{{ name }}</strong> ({{ groups | length }})
<ul class="plain">{% for group in groups[:8] %}<li>{{ group[:6] | join(", ") }}
{% if group | length > 6 %}and {{ group | length - 6 }} more{% endif %}</li>{% endfor %}
{% if groups | length > 8 %}<li>and {{ groups | length - 8 }} more groups</li>{% endif %}</ul></div>{% endfor %}
{% endif %}
{% if n_problems %}<h2>Problems ({{ n_problems | number }})</h2>
"""
    + PROBLEMS
    + """
{% if n_problems > problems | length %}<p class="note">
{{ (n_problems - problems | length) | number }} more are not shown.</p>{% endif %}{% endif %}

{% if cards %}<h2>Some of the media</h2><div class="cards">{% for c in cards %}
<article class="panel case"><div class="frames">{% for url in c.frames %}
<img src="{{ url }}" alt="frame {{ loop.index }}">
{% else %}<p>No frames: {{ c.fault }}</p>{% endfor %}</div>
<div class="body"><div class="path" style="margin:0">{{ c.name }} · {{ c.about }}</div>
<div class="ask">{% for q in c.questions %}<span>{{ q.question | truncate(220) }}</span>
<span class="truth">{{ q.answer | truncate(90) }}</span>{% endfor %}</div>
{% if c.more %}<div class="note">and {{ c.more }} more questions</div>{% endif %}</div></article>{% endfor %}</div>
{% endif %}
"""
)


def inspection_page(found: Inspection) -> str:
    """The page as HTML."""
    facts = found.facts
    lengths = facts["duration_s"]
    groups = {
        "Contradicting answers": facts["contradicting"],
        "The same question and answer": facts["repeated"],
        "Files with the same content": facts["same_content"],
        "Files that look alike": facts["look_alike"] or [],
        "Media that no record names": [[name] for name in facts["unused_media"]],
    }
    shown = [problem for problem in found.problems if not problem.code.startswith("DATATOOLS_")]
    return page(
        BODY,
        style=STYLE,
        title="Data set",
        f=facts,
        length=f"{seconds(lengths['sum'])} in all" if lengths else "",
        size=_bytes(facts["bytes"]),
        kinds=[_kind(name, kind) for name, kind in facts["kinds"].items()],
        histograms=_histograms(found),
        tables=[
            (name, list(facts[key].items())[:8])
            for name, key in (("Sizes", "sizes"), ("Frames per second", "rates"), ("Codecs", "codecs"))
            if facts[key]
        ],
        duplicates=[(name, group) for name, group in groups.items() if group],
        n_problems=len(shown),
        problems=sorted(shown, key=lambda problem: problem.severity != "error")[:PROBLEMS_SHOWN],
        cards=[_card(found, ref, records) for ref, records in _spread(found.records)],
    )


def _kind(name: str, kind: dict[str, Any]) -> dict[str, Any]:
    answers = [
        {"name": answer, "n": n, "percent": round(100 * n / kind["records"], 3), "shade": min(at, SHADES - 1)}
        for at, (answer, n) in enumerate(kind["answers"].items())
    ]
    return {"name": name, "records": kind["records"], "answers": answers, "most": kind["most_common_share"]}


def _histograms(found: Inspection) -> list[tuple[str, dict[str, Any]]]:
    durations = [seen.duration_s for seen in found.media.values() if isinstance(seen, VideoMeta)]
    series: dict[str, Sequence[float]] = {
        "Duration of videos, seconds": durations,
        "Tokens of samples": [sample.length for sample in found.samples],
        "Learned tokens of samples": [sample.supervised for sample in found.samples],
    }
    return [(name, histogram(values)) for name, values in series.items() if values]


def histogram(values: Sequence[float], bins: int = BINS) -> dict[str, Any]:
    """Bars of equal width from the least to the greatest value, their heights to scale with the fullest."""
    low, high = min(values), max(values)
    step = (high - low) / bins
    counts = [0] * bins if step else [len(values)]
    for value in values if step else ():
        counts[min(bins - 1, math.floor((value - low) / step))] += 1
    wide = WIDTH / bins
    left = 0.0 if step else (WIDTH - wide) / 2
    bars = []
    for at, count in enumerate(counts):
        tall = (FLOOR - 8) * count / max(counts)
        title = f"{low + at * step:.4g} to {low + (at + 1) * step:.4g}: {count}"
        bar = {"x": left + at * wide + 1, "y": FLOOR - tall, "width": wide - 2, "height": tall}
        bars += [{**{name: round(value, 2) for name, value in bar.items()}, "title": title}] if count else []
    ends = ((0, "start", low), (WIDTH / 2, "middle", (low + high) / 2), (WIDTH, "end", high))
    marks = [{"x": x, "anchor": anchor, "text": f"{value:.4g}"} for x, anchor, value in (ends if step else ends[1:2])]
    note = f"{len(values):,} values, the fullest bar has {max(counts):,}"
    return {"width": WIDTH, "height": HEIGHT, "floor": FLOOR, "bars": bars, "marks": marks, "note": note}


def _spread(records: Sequence[Record]) -> list[tuple[MediaRef, list[Record]]]:
    """`CARDS` of the media, evenly over the set, each with the records that use it."""
    users: dict[str, tuple[MediaRef, list[Record]]] = {}
    for record in records:
        for ref in {ref.key: ref for ref in record.media}.values():
            users.setdefault(ref.key, (ref, []))[1].append(record)
    every = list(users.values())
    return [every[at * len(every) // CARDS] for at in range(CARDS)] if len(every) > CARDS else every


def _card(found: Inspection, ref: MediaRef, records: Sequence[Record]) -> dict[str, Any]:
    seen = found.media.get(ref.key)
    indices, about = [0], "not readable"
    if isinstance(seen, VideoMeta):
        indices = [(2 * at + 1) * seen.frame_count // (2 * FRAMES) for at in range(FRAMES)]
        about = f"{seconds(seen.duration_s)}, {seen.source_fps:.4g} frames per second, {seen.width}×{seen.height}"
    elif seen is not None:
        about = f"{seen.width}×{seen.height}"
    frames, fault = frame_urls(ref, indices) if seen is not None else ([], "the file cannot be read")
    asked = [{"question": record.question, "answer": record.answer} for record in records[:QUESTIONS]]
    more = max(0, len(records) - QUESTIONS)
    return {"name": ref.written, "about": about, "frames": frames, "fault": fault, "questions": asked, "more": more}


def seconds(value: float) -> str:
    """A length of time as a person says it."""
    if value < 90:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 5400 else f"{value / 3600:.3g} h"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
