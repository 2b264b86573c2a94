"""Problem codes of scoring: results files, metrics and poster frames."""

from vidqa.contract.problem import Code, Exit

RESULTS_MISSING = Code(
    "RESULTS_MISSING",
    "A results file is not there or cannot be opened.",
    "Give the folder that an evaluation wrote, or its results.json.",
)
RESULTS_SYNTAX = Code(
    "RESULTS_SYNTAX",
    "A results file is no list of objects in JSON or JSON lines, in UTF-8.",
    'Write a list of objects, {"results": [...]}, or one object per line; evaluate again where the file was cut short.',
)
RESULTS_FIELD = Code(
    "RESULTS_FIELD",
    "A field of a result is missing, or has a wrong type.",
    "Every result needs video_id or sample_id, question, response and gt, all strings; response may be null.",
)
RESULTS_TWICE = Code(
    "RESULTS_TWICE",
    "A question about a video has two answers in one results folder.",
    "Nothing, if the evaluation was run again on purpose; otherwise remove the older answers.",
)
RESULTS_SEVERAL = Code(
    "RESULTS_SEVERAL",
    "A folder holds the results of several evaluations: several models, or several ways to answer.",
    "Name the folder of one evaluation, or of one model and one answer type; only shards of one evaluation (shard_0, "
    "shard_1, ...) are read together.",
)
RESULTS_OUT = Code(
    "RESULTS_OUT",
    "The folder for scored results holds something else, or cannot be made.",
    "Let --out name a new folder.",
)
METRIC_UNAVAILABLE = Code(
    "METRIC_UNAVAILABLE",
    "A metric was asked for that cannot be computed here; the others were.",
    "bleu needs pip install -e '.[metrics]' in the repository; bertscore and similarity need the folder of a model.",
)
METRIC_NO_DIRECTION = Code(
    "METRIC_NO_DIRECTION",
    "The task its_directionality is chosen, and expected answers are not left, right or straight.",
    "Leave task.type (--task) empty, for collisions and whatever else is answered by yes or no: that is found from the "
    "expected answers.",
)
METRIC_MODEL = Code(
    "METRIC_MODEL",
    "The folder that a metric's key names holds no model that the metric can be computed with.",
    "Name the folder of a text encoder with its weights and tokenizer (for similarity one of sentence-transformers "
    "that pools by mean or by its first token), or leave the metric out of metrics.names.",
)
METRIC_FUNCTION = Code(
    "METRIC_FUNCTION",
    "The user's function that scores answers cannot be found, has failed, took too long, or gave no numbers.",
    "Correct the function at the place that is named: it gets one item of results.json and returns a number, a "
    "dictionary of numbers, or None; metrics.functions_timeout_s is the time for all answers.",
)
METRIC_ONE_ANSWER = Code(
    "METRIC_ONE_ANSWER",
    "The model gives one and the same answer to all questions of a kind, though the right answers differ.",
    "Compare the accuracy with majority_accuracy; balance the answers of the training set (scripts/inspect_dataset.py "
    "counts them) before training again.",
)
POSTER_UNREADABLE = Code(
    "POSTER_UNREADABLE",
    "Poster frames could not be read from a video or image.",
    "Check that the file still is where it was during the evaluation and plays.",
    Exit.INPUT,
)

COMPARISON_RECIPES = Code(
    "COMPARISON_RECIPES",
    "Two evaluations were made in different ways, so that their scores do not compare; or nothing says how.",
    "Evaluate again with what the message names made equal: build the second spec with the first one's settings.",
)
COMPARISON_OTHER_QUESTIONS = Code(
    "COMPARISON_OTHER_QUESTIONS",
    "Two evaluations did not ask the same questions with the same expected answers, each once.",
    "Compare evaluations of one annotation file; score what another program wrote with its own ids and questions.",
)
COMPARISON_WORSE = Code(
    "COMPARISON_WORSE",
    "The second evaluation is worse, and --fail-if-worse was given; or it lost more accuracy than --max-drop allows.",
    "Keep the first model; --html shows what the second one broke. Where the interval of a loss is wide, evaluate as "
    "many questions as the message names.",
)
