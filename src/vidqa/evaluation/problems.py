"""Problem codes of scoring: results files, metrics and poster frames."""

from vidqa.core.problem import Code, Exit

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
    "A metric cannot be computed here: its package is missing, or the folder of its model holds none for it.",
    "bleu needs pip install -e '.[metrics]' in the repository; bertscore and similarity need the folder of a text "
    "encoder with weights and tokenizer (for similarity one of sentence-transformers that pools by mean or by its "
    "first token). Or leave the metric out of metrics.names.",
)
METRIC_NO_DIRECTION = Code(
    "METRIC_NO_DIRECTION",
    "The task its_directionality is chosen, and expected answers are not left, right or straight.",
    "Leave task.type (--task) empty, for collisions and whatever else is answered by yes or no: that is found from the "
    "expected answers.",
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

# Of gap analysis.
GAPS_ANNOTATIONS = Code(
    "GAPS_ANNOTATIONS",
    "The annotations that were evaluated are missing or cannot be read, or one of them is not an object.",
    "Give the annotations that were evaluated: a JSON list, JSON lines, or a folder with annotations.json.",
)
GAPS_JOIN = Code(
    "GAPS_JOIN",
    "Results and annotations do not join for certain, or differ in their ground truth; the message says what was done.",
    "Check that the annotations are those that were evaluated. A sample_id in each result, and an id of its own in "
    "each annotation, join for certain; evaluate again if the annotations were corrected since.",
)
GAPS_RESULT_REPEATED = Code(
    "GAPS_RESULT_REPEATED",
    "Some samples have more than one result; equal ones are counted once, different ones are all kept.",
    "Evaluate into an empty folder if only one answer per sample is wanted.",
)
GAPS_NO_RESULT = Code(
    "GAPS_NO_RESULT",
    "Some annotated samples have no result; they are gaps of error type missing.",
    "Resume the evaluation (evaluation.skip_saved = true, evaluation.limit = -1), then analyze again.",
)
GAPS_NO_GROUND_TRUTH = Code(
    "GAPS_NO_GROUND_TRUTH",
    "Some results have no ground truth, neither their own nor an annotation's; they cannot be judged.",
    "Add the answer as the last assistant turn of the annotation.",
)
GAPS_MODE = Code(
    "GAPS_MODE",
    "Some ground truths are not of the kind that the mode asks for; they are compared as in mode normalized.",
    "Use --mode normalized, which takes the kind from each ground truth.",
)
GAPS_STORAGE = Code(
    "GAPS_STORAGE",
    "A file or bucket cannot be read or written.",
    "Check the path, the permissions and, for s3://, the credentials and AWS_ENDPOINT_URL.",
    Exit.ENVIRONMENT,
)
GAPS_FOUND = Code(
    "GAPS_FOUND",
    "There are gaps, and --fail-on-gaps asks that this counts as a failure.",
    "Look at the gap table; leave --fail-on-gaps out where gaps are expected.",
)

# Of rewards and the questions that they are for.
REWARD_FUNCTION = Code(
    "REWARD_FUNCTION",
    "A reward function of your own cannot be loaded, failed, took too long, or gave no number.",
    "Correct the function: FILE.py:FUNCTION(text, record, token_ids, finish_reason) -> number or (number, table); "
    "make it faster or raise engine.reward_timeout_s where the time was not enough.",
)
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
