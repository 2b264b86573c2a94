"""What report.html of an evaluation holds: its script and the body of the page."""

from vidqa.pages.page import TILE

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

BODY = (
    TILE
    + """
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
"""
)
