"""The page of previewed samples: the chat as the model sees it, learned text on a coloured ground, planned frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vidqa.contract.problem import Problem
from vidqa.datatools.pages import frame_urls
from vidqa.datatools.preview import Piece, Preview, token_line
from vidqa.pages.page import PROBLEMS, page

MOST_FRAMES = 32  # pictures of one medium; the line above them names how many there are
STYLE = """
.chat { white-space:pre-wrap; overflow-wrap:anywhere; margin:12px 0 0;
  font:13px/1.6 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace }
.chat .given { color:var(--soft) }
mark,.key { background:rgba(26,127,90,.22); color:var(--ink); border-radius:3px; padding:1px 2px;
  box-decoration-break:clone; -webkit-box-decoration-break:clone }
.medium { border:1px solid var(--line); border-radius:8px; background:var(--paper); padding:10px 12px; margin:8px 0;
  white-space:normal; font:13px/1.5 system-ui,sans-serif }
.film { display:grid; grid-template-columns:repeat(auto-fill,minmax(120px,1fr)); gap:6px; margin-top:8px }
.film figure { margin:0 } .film img { width:100%; border-radius:4px; display:block; background:#0b0d12 }
.film figcaption { color:var(--soft); font-size:11.5px; font-variant-numeric:tabular-nums; text-align:center }
.sample { margin-bottom:14px }
.sample h2 { margin:0 0 4px; overflow-wrap:anywhere }
.counts { color:var(--soft); margin:0 }
"""
BODY = (
    """<p class="sub">{{ samples | length }} samples as the model sees them.
<span class="key">What is learned</span> has this ground; everything else is given.</p>"""
    + PROBLEMS
    + """
{% for s in samples %}<article class="panel sample"><h2>{{ s.id }}</h2>
<p class="counts">{{ s.source }}{% if s.kind %} · <span class="pill">{{ s.kind }}</span>{% endif %} ·
{{ s.tokens | number }} tokens, {{ s.media_tokens | number }} of media,
{% if s.for_generation %}none learned: the answer is generated{% else %}<strong>{{ s.learned_tokens | number }}
learned</strong>{% endif %}</p>
<div class="chat">{% for p in s.pieces %}
{% if p.plan %}<div class="medium"><strong>{{ p.kind }}</strong> {{ p.text }} ·
{% if p.kind == "video" %}{{ p.plan.indices | length }} frames · {% endif %}
{{ p.plan.width }}×{{ p.plan.height }} pixels ·
grid {{ p.plan.grid | join("×") }} · {{ p.token_line }}
{% if p.fault %}<p class="note">No frames: {{ p.fault }}</p>{% endif %}
<div class="film">{% for frame in p.frames %}<figure><img src="{{ frame.url }}" alt="frame {{ frame.index }}">
{% if p.kind == "video" %}<figcaption>{{ frame.index }} · {{ "%.2f" | format(frame.time) }} s</figcaption>
{% endif %}</figure>{% endfor %}</div></div>
{%- else %}<{{ "mark" if p.kind == "learned" else "span" }} class="{{ p.kind }}">{{ p.text -}}
</{{ "mark" if p.kind == "learned" else "span" }}>{%- endif %}{% endfor %}</div>
{% if s.for_generation %}<p class="note">Expected: <span class="truth">{{ s.answer }}</span></p>{% endif %}
</article>{% endfor %}
"""
)


def preview_page(title: str, made: Sequence[Preview], problems: Sequence[Problem]) -> str:
    """The page as HTML. Of long videos `MOST_FRAMES` of the planned frames are shown, evenly spread."""
    samples = [
        {**preview.as_dict(), "for_generation": preview.for_generation, "pieces": list(map(_shown, preview.pieces))}
        for preview in made
    ]
    return page(BODY, style=STYLE, title=title, samples=samples, problems=problems)


def _shown(piece: Piece) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": piece.kind, "text": piece.text, "plan": piece.plan}
    if piece.plan is None or piece.ref is None:
        return shown
    indices, times = piece.plan.indices, piece.plan.times_s or (0.0,)
    step = max(1, -(-len(indices) // MOST_FRAMES))
    urls, fault = frame_urls(piece.ref, indices[::step])
    frames = [
        {"url": url, "index": index, "time": time}
        for url, index, time in zip(urls, indices[::step], times[::step], strict=False)
    ]
    return {**shown, "token_line": token_line(piece), "frames": frames, "fault": fault}
