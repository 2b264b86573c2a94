"""Problem codes of scoring: results files, metrics, poster frames, comparisons and rewards."""

from vidqa.core.problem import Code, Exit

RESULTS_FOLDER = Code(
    "RESULTS_FOLDER",
    "A folder contains no readable results, or results of several evaluations, with different models or settings.",
    "Give the folder that one evaluation wrote, or its results.json; only shards of one evaluation (shard_0, shard_1, "
    "...) are read together.",
)
RESULTS_FORMAT = Code(
    "RESULTS_FORMAT",
    "A results file is not a list of objects in JSON or JSON lines, or a field of a result is missing or has the wrong "
    "type.",
    'Write a list of objects, {"results": [...]}, or one object per line, in UTF-8, each with video_id or sample_id, '
    "question, response and gt, all strings (response may be null); evaluate again if the file is truncated.",
)
RESULTS_TWICE = Code(
    "RESULTS_TWICE",
    "A results folder has several answers to the same question about a video.",
    "No action needed if the evaluation was repeated on purpose; otherwise remove the older answers, or evaluate into "
    "an empty folder.",
)
METRIC_UNAVAILABLE = Code(
    "METRIC_UNAVAILABLE",
    "A metric cannot be computed: its package is missing, or its model folder contains no suitable model. Or "
    "embed.text_model is not a usable text encoder.",
    "bleu needs pip install -e '.[metrics]' in the repository; bertscore, similarity and embed.text_model need the "
    "folder of a text encoder with weights and tokenizer (the last two: a sentence-transformers model with mean or "
    "first-token pooling). Or remove the metric from metrics.names, and leave embed.text_model empty.",
)
METRIC_OTHER_KIND = Code(
    "METRIC_OTHER_KIND",
    "The chosen task or mode is for one kind of answer, and expected answers are of another kind.",
    "Leave task.type (--task) empty, or --mode at normalized: the kind is then inferred from each expected answer.",
)
METRIC_ONE_ANSWER = Code(
    "METRIC_ONE_ANSWER",
    "The model gives the same answer to all questions of a kind, although the right answers differ.",
    "Compare the accuracy with majority_accuracy; balance the answers of the training set (scripts/inspect_dataset.py "
    "counts them) before training again.",
)

COMPARISON_UNEQUAL = Code(
    "COMPARISON_UNEQUAL",
    "The two evaluations, or training and evaluation, differ in questions, model size, frames, system prompt or other "
    "settings, so their scores are not comparable; or the settings are not recorded.",
    "Evaluate one annotation file twice, and make what the message names equal: build the second spec with the "
    "settings of the first; score the results of another program with their own ids and questions.",
)
COMPARISON_WORSE = Code(
    "COMPARISON_WORSE",
    "The second evaluation is worse and --fail-if-worse was given, or its accuracy fell by more than --max-drop.",
    "Keep the first model; --html shows what the second one broke. If the interval of a loss is wide, evaluate as many "
    "questions as the message names.",
)

# Problems of rewards and of the questions for them.
REWARD_REFERENCE = Code(
    "REWARD_REFERENCE",
    "No completion can get a reward with the reference answer of a question.",
    "Correct the record's last assistant turn, or use a reward that does not need this kind of reference.",
)
REWARD_CONSTANT = Code(
    "REWARD_CONSTANT",
    "All completions of the first step have the same reward, so there is nothing to learn from.",
    "Read the samples in the message; choose another reward or a higher temperature, or train the format first (SFT).",
    Exit.JOB_FAILED,
)
REWARD_LABELS = Code(
    "REWARD_LABELS",
    "Questions cannot be balanced: all have the same label.",
    'Set engine.balance = "none", or add questions with other answers.',
)
REWARD_FORMAT = Code(
    "REWARD_FORMAT",
    "The reward scores the format of completions, but nothing in the prompt asks for that format.",
    'Set custom.system_prompt to "Answer in this format: <think>your reasoning</think> <answer>your answer</answer>.", '
    "or ignore this if the model was fine-tuned to answer so.",
)
