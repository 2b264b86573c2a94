"""The page of report.html: its template, style and script. Light and dark, for the screen and for paper."""

STYLE = """
:root { --ink:#1d2433; --soft:#5c667a; --faint:#8b94a7; --line:#e3e7ee; --paper:#f6f7fa; --card:#fff; --good:#1a7f5a;
  --bad:#b83227; --warn:#96600b; --accent:#3757c9; --accent-soft:#e6ebfb; --accent-rgb:55,87,201; --bad-rgb:184,50,39; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e9f0; --soft:#a3acbf; --faint:#79839a; --line:#2c3342;
  --paper:#12151c; --card:#1a1f29; --good:#4cc38a; --bad:#ff7b6e; --warn:#e5b04c; --accent:#8aa2ff;
  --accent-soft:#232c4a;
  --accent-rgb:122,146,255; --bad-rgb:255,110,97; } }
* { box-sizing:border-box }
body { margin:0; background:var(--paper); color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif }
main { max-width:1120px; margin:0 auto; padding:36px 24px 72px }
h1 { font-size:26px; line-height:1.25; margin:0; letter-spacing:-.015em; overflow-wrap:anywhere }
h2 { font-size:17px; margin:40px 0 12px; letter-spacing:-.005em }
h3 { font-size:14px; margin:0 0 8px }
.sub { color:var(--soft); margin:6px 0 22px }
.panel { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:16px 18px }
.tiles { display:grid; grid-template-columns:minmax(300px,1.7fr) repeat(auto-fit,minmax(140px,1fr)); gap:12px }
.tile .name { color:var(--soft); font-size:13px }
.tile .value { font-size:26px; font-weight:650; letter-spacing:-.02em }
.tile .note { color:var(--soft); font-size:12.5px } .tile.main .value { font-size:42px; line-height:1.15 }
.tile .value.bad { color:var(--bad) }
.change { font-size:15px; font-weight:600; margin-left:8px; color:var(--soft); letter-spacing:0 }
.change.up { color:var(--good) } .change.down { color:var(--bad) }
.bar { position:relative; height:10px; border-radius:5px; background:var(--line); margin:7px 0 5px }
.bar i { position:absolute; top:0; bottom:0; left:0; border-radius:5px; background:var(--accent); opacity:.85 }
.bar b { position:absolute; top:50%; height:2px; margin-top:-1px; background:var(--ink) }
.bar b::before,.bar b::after { content:""; position:absolute; top:-4px; height:10px; width:2px; background:var(--ink) }
.bar b::before { left:0 } .bar b::after { right:0 }
.bar u { position:absolute; top:-4px; bottom:-4px; width:2px; margin-left:-1px; background:var(--warn) }
.bar s { position:absolute; top:-4px; bottom:-4px; width:0; border-left:2px dotted var(--soft); margin-left:-1px }
.scroll { overflow-x:auto } table { border-collapse:collapse; width:100%; font-size:14px }
th { text-align:left; color:var(--soft); font-weight:550; font-size:12.5px; padding:6px 10px; white-space:nowrap }
td { padding:7px 10px; border-top:1px solid var(--line); vertical-align:middle }
.r { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap } td .bar { min-width:150px }
.grid { display:grid; grid-template-columns:repeat(auto-fit,minmax(430px,1fr)); gap:12px; align-items:start }
.matrix td { text-align:center; font-variant-numeric:tabular-nums; border:1px solid var(--line);
  min-width:38px; padding:6px; white-space:nowrap }
.matrix th { text-align:center; padding:6px 8px } .matrix th.row { text-align:right }
.zero { color:var(--faint) }
.matrix td.hit { background:rgba(var(--accent-rgb),var(--a)) }
.matrix td.miss { background:rgba(var(--bad-rgb),var(--a)) }
.note { color:var(--soft); font-size:13px; margin:8px 0 0 }
.notice { border-left:4px solid var(--warn); margin:0 0 14px } .notice ul { margin:6px 0 0; padding-left:20px }
.filters { display:flex; flex-wrap:wrap; gap:8px; align-items:center; position:sticky; top:0; z-index:1;
  background:var(--paper); padding:10px 0 }
.filters select,.filters input { font:inherit; font-size:14px; color:var(--ink); background:var(--card);
  border:1px solid var(--line); border-radius:7px; padding:6px 10px } .filters input { flex:1; min-width:180px }
.cards { display:grid; grid-template-columns:repeat(auto-fill,minmax(500px,1fr)); gap:12px }
@media (max-width:600px) { .cards,.grid { grid-template-columns:1fr } main { padding:24px 14px }
  .tiles { grid-template-columns:1fr 1fr }
  .tile.main { grid-column:1/-1 } }
.case { padding:0; overflow:hidden; display:flex; flex-direction:column }
.frames { display:flex; gap:2px; background:#0b0d12 }
.frames img { flex:1; min-width:0; max-height:130px; object-fit:contain }
.frames p { color:#9aa3b5; margin:0; padding:14px 16px; font-size:13px }
.body { padding:13px 16px 14px; display:flex; flex-direction:column; gap:9px; flex:1 }
.pills { display:flex; gap:6px; align-items:center; font-size:12px }
.pill { border-radius:20px; padding:1px 9px; background:var(--accent-soft); color:var(--accent); font-weight:600 }
.pill.error { background:transparent; border:1px solid currentColor; color:var(--bad) } .pill.soft { color:var(--warn) }
.id { color:var(--faint); margin-left:auto; overflow:hidden; text-overflow:ellipsis; white-space:nowrap; max-width:50% }
.q { font-weight:600; white-space:pre-wrap; overflow-wrap:anywhere }
.pair { display:grid; grid-template-columns:1fr 1fr; gap:12px }
.pair div div { white-space:pre-wrap; overflow-wrap:anywhere; max-height:112px; overflow-y:auto }
.label { display:block; color:var(--faint); font-size:12px } .said { color:var(--bad) } .truth { color:var(--good) }
.path { font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; color:var(--faint); overflow-wrap:anywhere;
  margin-top:auto } .hidden { display:none !important }
.few td { overflow-wrap:anywhere; vertical-align:top } .few { font-size:13px }
details summary { cursor:pointer; color:var(--soft) } pre { font-size:12px; overflow-x:auto; margin:10px 0 0 }
@media print { body { background:#fff; font-size:12px } .filters { display:none } main { max-width:none; padding:0 }
  .panel,.case { break-inside:avoid } .cards { grid-template-columns:1fr 1fr } h2 { break-after:avoid }
  * { print-color-adjust:exact; -webkit-print-color-adjust:exact } .pair div div { max-height:none } }
"""

SCRIPT = """
(function () {
  var kind = document.getElementById('kind'), error = document.getElementById('error');
  var words = document.getElementById('words'), shown = document.getElementById('shown');
  if (!kind) return;
  var cases = Array.prototype.slice.call(document.querySelectorAll('[data-kind]'));
  var texts = cases.map(function (c) { return c.textContent.toLowerCase(); });
  function filter() {
    var wanted = words.value.toLowerCase(), count = 0;
    cases.forEach(function (c, i) {
      var fits = (!kind.value || c.dataset.kind === kind.value) && (!error.value || c.dataset.error === error.value)
        && (!wanted || texts[i].indexOf(wanted) >= 0);
      c.classList.toggle('hidden', !fits);
      count += fits ? 1 : 0;
    });
    shown.textContent = count + ' of ' + cases.length + ' shown';
  }
  [kind, error].forEach(function (e) { e.addEventListener('change', filter); });
  words.addEventListener('input', filter);
  filter();
})();
"""

PAGE = """
{%- macro bar(row, earlier) -%}
<div class="bar" role="img" aria-label="{{ row.accuracy | percent }}">
{%- if row.accuracy is not none %}<i style="width:{{ 100 * row.accuracy }}%"></i>{% endif %}
{%- if row.accuracy_ci95 %}{% set low, high = row.accuracy_ci95 %}
<b style="left:{{ 100 * low }}%;width:{{ 100 * (high - low) }}%"></b>{% endif %}
{%- if earlier and earlier.accuracy is not none %}
<u style="left:{{ 100 * earlier.accuracy }}%" title="before: {{ earlier.accuracy | percent }}"></u>{% endif %}
{%- if row.majority_accuracy is not none %}
<s style="left:{{ 100 * row.majority_accuracy }}%"
 title="the commonest answer: {{ row.majority_accuracy | percent }}"></s>
{%- endif %}
</div>
{%- endmacro -%}
{%- macro change(row, earlier) -%}
{%- if earlier and row.accuracy is not none and earlier.accuracy is not none -%}
{%- set points = row.accuracy - earlier.accuracy -%}
<span class="change {{ 'up' if points > 0 else 'down' if points < 0 else '' }}">
{{- row.accuracy | points(earlier.accuracy) }} pts</span>
{%- endif -%}
{%- endmacro -%}
{%- macro commonest(row) -%}
{%- for kind, answer in row.majority_answers.items() -%}
{{ "; " if not loop.first }}{{ kind }} “{{ answer | truncate(24) }}”
{%- endfor -%}
{%- endmacro -%}
{%- macro interval(row) -%}
{%- if row.accuracy_ci95 -%}
{{ row.accuracy_ci95[0] | percent }} to {{ row.accuracy_ci95[1] | percent }}
{%- else %}–{% endif -%}
{%- endmacro -%}
{%- macro tile(name, value, note="", bad=false) -%}
<div class="panel tile"><div class="name">{{ name }}</div><div class="value{{ ' bad' if bad }}">{{ value }}</div>
<div class="note">{{ note }}</div></div>
{%- endmacro -%}
{%- macro matrix(name, table) -%}
{%- set used = [] -%}
{%- for column in table.columns -%}
{%- if column in table.classes or table.matrix | map(attribute=loop.index0) | sum -%}
{%- set _ = used.append(loop.index0) -%}
{%- endif -%}
{%- endfor -%}
<div class="panel"><h3>{{ name }}</h3><div class="scroll"><table class="matrix">
<tr><th class="row">expected ↓ said →</th>{% for at in used %}<th>{{ table.columns[at] }}</th>{% endfor %}
<th>recall</th><th>F1</th></tr>
{% for row in table.classes %}{% set cells = table.matrix[loop.index0] %}
<tr><th class="row">{{ row }}</th>
{%- for at in used %}
<td class="{{ 'hit' if table.columns[at] == row else 'miss' }} {{ 'zero' if not cells[at] }}"
 style="--a:{{ cells[at] | shade(cells | sum) }}">{{ cells[at] }}</td>
{%- endfor %}
<td>{{ table.per_class[row].recall | percent(0) }}</td><td>{{ table.per_class[row].f1 | percent(0) }}</td></tr>
{% endfor %}</table></div></div>
{%- endmacro -%}
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{{ script_hash }}'">
<style>{{ style | safe }}</style></head><body><main>
<h1>{{ title }}</h1>
<p class="sub">{{ metrics.n | number }} questions about {{ metrics.n_videos | number }} videos
{%- if metrics.n_without_ground_truth %}, {{ metrics.n_without_ground_truth | number }} without ground truth{% endif %}
{%- if metrics.task_type %} · task {{ metrics.task_type }}{% endif %}</p>

{% if differences %}
<div class="panel notice"><strong>The score before was made in another way; the two do not compare.</strong>
<ul>{% for line in differences[:12] %}<li>{{ line }}</li>{% endfor %}
{% if differences | length > 12 %}<li>and {{ differences | length - 12 }} more</li>{% endif %}</ul></div>
{% endif %}
{% for problem in metrics.problems %}
<div class="panel notice"><strong>{{ problem.code }}</strong> {{ problem.where }}: {{ problem.message }}.
{{ problem.remedy }}</div>
{% endfor %}

<div class="tiles">
<div class="panel tile main"><div class="name">Accuracy</div>
<div class="value">{{ metrics.accuracy | percent }}{{ change(metrics, before) }}</div>{{ bar(metrics, before) }}
<div class="note">{{ metrics.correct | number }} right; 95 % interval {{ interval(metrics) }} ({{ metrics.ci_method }})
{%- if before %}; before {{ before.accuracy | percent }} (amber line){% endif %}</div>
<div class="note">The commonest answer would get {{ metrics.majority_accuracy | percent }} (dotted line)
{%- if metrics.majority_answers %}: {{ commonest(metrics) }}{% endif %}</div></div>
{{ tile("Of answers understood", metrics.accuracy_of_parsed | percent,
  metrics.parse_status.parsed | number ~ " parsed") }}
{% set lost = metrics.parse_status.truncated + metrics.parse_status.unparsed + metrics.parse_status.empty %}
{{ tile("No clear answer", lost | number, metrics.parse_status.truncated | number ~ " truncated, " ~
  metrics.parse_status.unparsed | number ~ " unparsed, " ~ metrics.parse_status.empty | number ~ " empty", lost > 0) }}
{% if metrics.yes_no is defined %}
{{ tile("Yes/no F1", metrics.yes_no.f1 | percent, "balanced accuracy " ~ metrics.yes_no.balanced_accuracy | percent) }}
{% endif %}
{% if metrics.text is defined %}
{{ tile("Text, soft", metrics.text.soft_accuracy | percent, "token F1 of at least " ~ metrics.soft_f1_threshold) }}
{% endif %}
</div>

<h2>By kind of question</h2>
<div class="panel scroll"><table>
<tr><th>Kind</th><th class="r">Questions</th><th class="r">Accuracy</th><th></th><th>95 % interval</th>
<th class="r">Commonest answer</th>
{% if before %}<th class="r">Before</th><th class="r">Change</th>{% endif %}
<th class="r">Truncated</th><th class="r">Unparsed</th><th class="r">Empty</th></tr>
{% for kind, row in metrics.by_kind.items() %}{% set earlier = (before or {}).get("by_kind", {}).get(kind) %}
<tr><td>{{ kind }}</td><td class="r">{{ row.n | number }}</td><td class="r">{{ row.accuracy | percent }}</td>
<td>{{ bar(row, earlier) }}</td><td class="r">{{ interval(row) }}</td>
<td class="r" title="{{ commonest(row) }}">{{ row.majority_accuracy | percent }}</td>
{% if before %}<td class="r">{{ earlier.accuracy | percent if earlier else "–" }}</td>
<td class="r">{{ change(row, earlier) }}</td>{% endif %}
<td class="r">{{ row.truncated | number }}</td><td class="r">{{ row.unparsed | number }}</td>
<td class="r">{{ row.empty | number }}</td></tr>
{% endfor %}</table></div>
<p class="note">Unparsed, truncated and empty answers count as not right, and never as another class. Empty: the model
said nothing, or its video could not be decoded. The commonest answer (dotted line): what giving the commonest right
answer to every question of an answer kind would get.</p>

{% if metrics.confusion or metrics.yes_no is defined or metrics.text is defined %}
<h2>What was said instead</h2>
<div class="grid">
{% for kind, table in metrics.confusion.items() %}{{ matrix(kind, table) }}{% endfor %}
{% if metrics.its_directionality is defined %}{{ matrix("directionality", metrics.its_directionality) }}{% endif %}
{% if metrics.yes_no is defined %}{% set t = metrics.yes_no %}
<div class="panel"><h3>Yes/no, all kinds</h3><table>
<tr><td>True / false positives</td><td class="r">{{ t.tp }} / {{ t.fp }}</td></tr>
<tr><td>True / false negatives</td><td class="r">{{ t.tn }} / {{ t.fn }}</td></tr>
<tr><td>Unanswered (expected yes / no)</td><td class="r">{{ t.unanswered_yes }} / {{ t.unanswered_no }}</td></tr>
<tr><td>Precision / recall</td><td class="r">{{ t.precision | percent }} / {{ t.recall | percent }}</td></tr>
<tr><td>Balanced accuracy</td><td class="r">{{ t.balanced_accuracy | percent }}</td></tr></table></div>{% endif %}
{% if metrics.text is defined %}{% set t = metrics.text %}
<div class="panel"><h3>Free text</h3><table>
<tr><td>Exact match, normalised</td><td class="r">{{ t.exact_match | percent }}</td></tr>
<tr><td>Soft accuracy</td><td class="r">{{ t.soft_accuracy | percent }}</td></tr>
<tr><td>Token F1</td><td class="r">{{ t.token_f1 | percent }}</td></tr>
{% if t.rouge_l is defined %}<tr><td>ROUGE-L</td><td class="r">{{ t.rouge_l | percent }}</td></tr>{% endif %}
{% if t.bleu is defined %}<tr><td>BLEU</td><td class="r">{{ "%.1f" | format(t.bleu) }}</td></tr>{% endif %}
</table></div>{% endif %}
</div>
{% endif %}

<h2>Failures ({{ n_failures | number }})</h2>
{% if not n_failures %}<p class="sub">Every answer with a ground truth is right.</p>{% else %}
<div class="filters"><select id="kind" aria-label="Kind"><option value="">All kinds</option>
{% for kind in kinds %}<option>{{ kind }}</option>{% endfor %}</select>
<select id="error" aria-label="Error"><option value="">All errors</option>
{% for error, count in errors.items() %}<option value="{{ error }}">{{ error }} ({{ count }})</option>
{% endfor %}</select>
<input id="words" type="search" placeholder="Find in questions, answers, paths" aria-label="Find">
<span id="shown" class="note"></span></div>
<div class="cards">
{% for c in cards %}
<article class="panel case" data-kind="{{ c.kind }}" data-error="{{ c.error }}">
<div class="frames">{% for frame in c.frames %}<img src="{{ frame }}" alt="frame {{ loop.index }}">{% else %}
<p>No frames{% if c.fault %}: {{ c.fault }}{% endif %}</p>{% endfor %}</div>
<div class="body"><div class="pills"><span class="pill">{{ c.kind }}</span>
<span class="pill error{{ ' soft' if c.error != 'wrong' }}">{{ c.error }}</span>
{% if c.finish_reason not in ("stop", "") %}
<span class="id" style="margin:0">finished by {{ c.finish_reason }}</span>{% endif %}
<span class="id" title="{{ c.sample_id }}">{{ c.sample_id }}</span></div>
<div class="q">{{ c.question }}</div>
<div class="pair"><div><span class="label">answered{% if c.parsed_response %}, read as
“{{ c.parsed_response | truncate(40) }}”{% endif %}</span><div class="said">{{ c.response or "(nothing)" }}</div></div>
<div><span class="label">expected</span><div class="truth">{{ c.gt }}</div></div></div>
<div class="path">{{ c.video_id }}</div></div></article>
{% endfor %}</div>
{% if rows %}
<h2>Further failures, without frames</h2>
<div class="panel scroll"><table class="few"><tr><th>Kind</th><th>Error</th><th>Question</th><th>Answered</th>
<th>Expected</th><th>Video</th></tr>
{% for c in rows %}<tr data-kind="{{ c.kind }}" data-error="{{ c.error }}"><td>{{ c.kind }}</td><td>{{ c.error }}</td>
<td>{{ c.question | truncate(200) }}</td><td>{{ c.response | truncate(200) }}</td><td>{{ c.gt | truncate(200) }}</td>
<td>{{ c.video_id }}</td></tr>
{% endfor %}</table></div>
{% if n_hidden %}<p class="note">{{ n_hidden | number }} more are in results.json.</p>{% endif %}
{% endif %}{% endif %}

<h2>Recipe</h2>
<div class="panel"><details><summary>How these scores were made</summary><pre>{{ recipe }}</pre></details></div>
</main><script>{{ script | safe }}</script></body></html>
"""
