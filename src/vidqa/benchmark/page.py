"""The reference page on the benchmark: how it is run, what is counted, and what others have published."""

from __future__ import annotations

from vidqa.benchmark.questions import SUBSETS
from vidqa.benchmark.report import published
from vidqa.benchmark.settings import RETRIES
from vidqa.evaluation.cosmos_protocol import LONGER, WARMER
from vidqa.evaluation.intervals import accuracy_interval
from vidqa.spec.pages import GENERATED, row

SIZES = {name: 110 if name == "robovqa" else 100 for name in SUBSETS}
TEXT = f"""# The benchmark of Cosmos-Reason1

{GENERATED}

Read it to score a model as Cosmos-Reason1 and Cosmos-Reason2 are scored, or to count result files of theirs.

```bash
python scripts/fetch_data.py cosmos-reason1-benchmark av robovqa --out DATA/benchmark
python scripts/run_benchmark.py --data DATA/benchmark --datasets av robovqa --model TRAIN_RUN --answer-type reasoning
python scripts/score_results.py --result-dir outputs/benchmark/RUN/reasoning --dataset robovqa
```

The questions become an evaluation, a job like any other: `--platform`, `--gpus` and `--site` are those of launch.py,
and `--set` takes every key of an evaluation, such as `evaluation.generator=vllm` or `num_gpus=4`. The same command
again finds its jobs, goes on with what was stopped, and writes the same files. `--config` reads the YAML file of
Cosmos-Reason1's evaluation; options win over it. Its `tp_size` is not taken over, because each GPU holds the model
here.

## The protocol

| | `letter` | `reasoning` |
|---|---|---|
| asked | the question, a line `(A) text` for each choice, the request for the letter | the same, and a line with the \
form of thinking and answer |
| generated | greedy, 10 tokens | temperature 0.6, top p 0.95, 1,024 tokens |
| read as the answer | the first capital letter | the first capital letter inside `<answer>` |

Both: system prompt "Answer the questions.", 4 frames a second, seed 1, up to 128,000 tokens. An open question,
without choices, is right if the texts are equal but for case. A response without an answer is asked again up to
{RETRIES} times, each time with {WARMER} more temperature, {LONGER} more tokens and the next seed, in the same job.
A clip that is missing or broken counts as wrong, is not asked again, and is in `failed`.

**Retrying raises the score**: a model that answers nothing where it is unsure gets {RETRIES} more guesses. So the
report has both, `one_shot` and `with_retries`; published figures are usually of the second kind. `own_rules` is the
accuracy of the first answers by the rules of [evaluation.md](evaluation.md), which do not take the T of "The pan" for
an answer.

## Clips that do not come with it

Clips of av, robovqa and robofail come with the benchmark. Those of the other subsets are cut out of the sets that
they come from, which their owners give out:

```bash
python scripts/cut_clips.py holoassist --raw RAW --data DATA/benchmark
```

| subset | what RAW holds | a clip |
|---|---|---|
| holoassist | `data-annotation-trainval-v1_1.json`, and `video_pitch_shifted.tar` or what is in it | \
`VIDEO_coarse_I_fine_J`: the seconds of the event J with the label "Fine grained action" |
| agibot | `observations/TASK/EPISODE/videos/CAMERA.mp4` of AgiBotWorld-Beta, unpacked or in its tars (AV1) | \
`TASK-EPISODE-CAMERA-FIRST-END`: these frames, the last one left out |
| bridgev2 | the TFRecord files of `bridge_dataset/1.0.0`, split val; TensorFlow is not needed | \
`FOLDER.EPISODE.X.clipframeNNN`: frames 0 to NNN, at 30 a second |

Clips become H.264 without sound, at the rate and size of their video. A clip is written whole or not at all, one that
is there is left as it is, and each that cannot be cut is a `BENCHMARK_CUT` that says why. Cosmos-Reason1's own script
writes whole episodes of bridgev2, whatever the frame in the name; clips cut here end where the question was asked.

## What is written

`--results-dir` gets MODEL/ANSWER_TYPE, with `benchmark.json` (all scores, with 95 % intervals by video), for every
video SUBSET/VIDEO.json in the fields of Cosmos-Reason1 (`datasource`, `video_id`, `prompt`, `correct_answer`,
`reasoning`, `answer`, `full_response`, `is_correct`), and `job` with the spec and the run folder. The run folder is an
ordinary evaluation of the first answers, with those of further attempts in `retries.json`: compare.py compares it with
another model's, analyze_gaps.py lists its gaps. Answers belong to questions by their ids; a clip that fails shifts no
other answer, and a second run adds nothing twice.

`score_results.py --result-dir DIR --dataset NAME` gives accuracy by both rules (`protocol` and `metrics`), for files
of Cosmos-Reason1 and for ours. Of a question that a file answers twice, the last answer counts, with `RESULTS_TWICE`.

## Published scores

In per cent, each with half the width of its 95 % interval, which follows from the number of questions alone (100
each, 110 of robovqa). Two scores whose difference is smaller mean nothing without compare.py, and the two rows of
Cosmos-Reason2-2B, one model evaluated twice, differ by up to 5 points.

{{scores}}

Known differences between reports: bridgev2 35 measured against 58.8 in the paper of Cosmos-Reason1, with clips that
did not fit their questions (cosmos-reason1, issue 26); 50.7 measured against 56.4 published for Cosmos-Reason2-2B
over all of Physical AI Bench (cosmos-reason2, issue 52). This project has no score of its own in the table: the
weights are not part of it. The commands above print yours beside these.
"""


def benchmark_page() -> str:
    """Markdown with one line for every published evaluation."""
    lines = [row("model", "how", *SUBSETS, "source"), row(*["---"] * (len(SUBSETS) + 3))]
    for each in published():
        cells = [_cell(name, each["scores"].get(name)) for name in SUBSETS]
        lines.append(row(each["model"], each["how"], *cells, each["source"]))
    return TEXT.format(scores="\n".join(lines))


def _cell(name: str, score: float | None) -> str:
    if score is None:
        return ""
    n = SIZES[name]
    right = round(score * n / 100)
    interval = accuracy_interval([at < right for at in range(n)], [str(at) for at in range(n)])
    assert interval is not None  # n is not 0
    return f"{score:g} ± {50 * (interval.high - interval.low):.1f}"
