"""Problem codes of scoring: results files, metrics and poster frames."""

from vidqa.contract.problem import Code, Exit

RESULTS_MISSING = Code(
    "RESULTS_MISSING",
    "A results file is not there or cannot be opened.",
    "Give the folder that an evaluation wrote, or its results.json.",
)
RESULTS_SYNTAX = Code(
    "RESULTS_SYNTAX",
    "A results file is not readable JSON or JSON lines in UTF-8.",
    "Write it again from the evaluation; a file that was being written when the job died may be cut short.",
)
RESULTS_SHAPE = Code(
    "RESULTS_SHAPE",
    "A results file holds JSON, but not a list of results.",
    'Write a list of objects, {"results": [...]}, or one object per line.',
)
RESULTS_ITEM_TYPE = Code(
    "RESULTS_ITEM_TYPE",
    "One result is not an object.",
    'Every result is an object such as {"video_id": "a.mp4", "question": "...", "response": "Yes", "gt": "yes"}.',
)
RESULTS_FIELD_MISSING = Code(
    "RESULTS_FIELD_MISSING",
    "One result lacks a field.",
    "Every result needs video_id or sample_id, question, response and gt.",
)
RESULTS_FIELD_TYPE = Code(
    "RESULTS_FIELD_TYPE",
    "One result has a field of a wrong type.",
    "video_id, sample_id, question, response and gt are strings; response may be null.",
)
RESULTS_TAIL_CUT = Code(
    "RESULTS_TAIL_CUT",
    "The last line of a JSON lines file is incomplete, as after a kill; it was left out.",
    "Nothing needs doing when the evaluation is resumed; otherwise evaluate that sample again.",
)
RESULTS_MORE = Code(
    "RESULTS_MORE",
    "More places have the same problem than are listed.",
    "Correct the listed ones first; they usually share one cause.",
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
    "Two evaluations were made in different ways, so that their scores do not compare.",
    "Evaluate again with what the message names made equal: build the second spec with the first one's settings.",
)
COMPARISON_NO_RECIPE = Code(
    "COMPARISON_NO_RECIPE",
    "Nothing says how two scores were made; they are compared all the same.",
    "Make sure that frames, prompts and generation settings were equal, or evaluate both with scripts/launch.py.",
)
COMPARISON_OTHER_QUESTIONS = Code(
    "COMPARISON_OTHER_QUESTIONS",
    "Two evaluations did not ask the same questions with the same expected answers, each once.",
    "Compare evaluations of one annotation file; score what another program wrote with its own ids and questions.",
)
COMPARISON_WORSE = Code(
    "COMPARISON_WORSE",
    "The second evaluation is worse than the first, and --fail-if-worse was given.",
    "Keep the first model; --html shows what the second one broke.",
)
COMPARISON_DROP = Code(
    "COMPARISON_DROP",
    "The second evaluation lost more accuracy than --max-drop allows, overall or in a slice of at least 50 questions.",
    "Keep the first model, or make the second with less loss; where the interval is wide, evaluate as many questions "
    "as the message names.",
)
