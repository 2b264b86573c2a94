"""Problem codes of scoring: results files, metrics, poster frames, comparisons and rewards."""

from vidqa.core.problem import Code, Exit

RESULTS_FOLDER = Code(
    "RESULTS_FOLDER",
    "A place holds no results that can be read, or those of several evaluations: several models or ways to answer.",
    "Give the folder that one evaluation wrote, or its results.json; only shards of one evaluation (shard_0, shard_1, "
    "...) are read together.",
)
RESULTS_FORMAT = Code(
    "RESULTS_FORMAT",
    "A results file is no list of objects in JSON or JSON lines, or a field of a result is missing or of a wrong type.",
    'Write a list of objects, {"results": [...]}, or one object per line, in UTF-8, each with video_id or sample_id, '
    "question, response and gt, all strings (response may be null); evaluate again where the file was cut short.",
)
RESULTS_TWICE = Code(
    "RESULTS_TWICE",
    "A question about a video has several answers in one results folder.",
    "Nothing, if the evaluation was run again on purpose; otherwise remove the older answers, or evaluate into an "
    "empty folder.",
)
METRIC_UNAVAILABLE = Code(
    "METRIC_UNAVAILABLE",
    "A metric cannot be computed here: its package is missing, or the folder of its model holds none for it. Or the "
    "model that embeds questions is none.",
    "bleu needs pip install -e '.[metrics]' in the repository; bertscore, similarity and embed.text_model need the "
    "folder of a text encoder with weights and tokenizer (for the last two one of sentence-transformers that pools by "
    "mean or by its first token). Or leave the metric out of metrics.names, and embed.text_model empty.",
)
METRIC_OTHER_KIND = Code(
    "METRIC_OTHER_KIND",
    "A task or mode for one kind of answer is chosen, and expected answers are of another kind.",
    "Leave task.type (--task) empty, or --mode at normalized: the kind is then found from each expected answer.",
)
METRIC_ONE_ANSWER = Code(
    "METRIC_ONE_ANSWER",
    "The model gives one and the same answer to all questions of a kind, though the right answers differ.",
    "Compare the accuracy with majority_accuracy; balance the answers of the training set (scripts/inspect_dataset.py "
    "counts them) before training again.",
)

COMPARISON_UNEQUAL = Code(
    "COMPARISON_UNEQUAL",
    "Two evaluations were made in different ways or of different questions, or training and evaluation have models of "
    "other sizes, other frames or another system prompt, so that scores do not compare; or nothing says how they were "
    "made.",
    "Evaluate one annotation file twice, with what the message names made equal: build the second spec with the first "
    "one's settings; score what another program wrote with its own ids and questions.",
)
COMPARISON_WORSE = Code(
    "COMPARISON_WORSE",
    "The second evaluation is worse, and --fail-if-worse was given; or it lost more accuracy than --max-drop allows.",
    "Keep the first model; --html shows what the second one broke. Where the interval of a loss is wide, evaluate as "
    "many questions as the message names.",
)

# Problems of rewards and of the questions for them.
REWARD_REFERENCE = Code(
    "REWARD_REFERENCE",
    "The reference answer of a question gives no reward to any completion.",
    "Correct the record's last assistant turn, or use a reward that needs no such reference.",
)
REWARD_CONSTANT = Code(
    "REWARD_CONSTANT",
    "Every completion of the first step has the same reward: there is nothing to learn from.",
    "Read the samples that it shows; choose another reward, a higher temperature, or train the format first (SFT).",
    Exit.JOB_FAILED,
)
REWARD_LABELS = Code(
    "REWARD_LABELS",
    "Questions cannot be balanced: all have the same label.",
    'Set engine.balance = "none", or add questions with other answers.',
)
REWARD_FORMAT = Code(
    "REWARD_FORMAT",
    "The format of completions is rewarded, and nothing that the model is shown asks for it.",
    'Set custom.system_prompt to "Answer in this format: <think>your reasoning</think> <answer>your answer</answer>.", '
    "or ignore this if the model was fine-tuned to answer so.",
)
