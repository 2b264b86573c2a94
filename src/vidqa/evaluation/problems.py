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

# Of gap analysis.
GAPS_ANNOTATIONS = Code(
    "GAPS_ANNOTATIONS",
    "The annotations that were evaluated are missing or cannot be read, or one of them is not an object.",
    "Give the annotations that were evaluated: a JSON list, JSON lines, or a folder with annotations.json.",
)
GAPS_ANNOTATION_ID_TWICE = Code(
    "GAPS_ANNOTATION_ID_TWICE",
    "Several annotations have one id; their results are told apart by video and question.",
    "Give every annotation an id of its own.",
)
GAPS_RESULT_UNKNOWN = Code(
    "GAPS_RESULT_UNKNOWN",
    "Some results belong to no annotation, by id or by video and question; they are compared with their own gt.",
    "Check that the annotations are those that were evaluated.",
)
GAPS_RESULT_AMBIGUOUS = Code(
    "GAPS_RESULT_AMBIGUOUS",
    "Some results fit several annotations, by id or by video and question; they are joined with none of them.",
    "Write each result's sample_id, or its video as it is annotated, with the folders in which it lies.",
)
GAPS_JOINED_BY_NAME = Code(
    "GAPS_JOINED_BY_NAME",
    "The videos of some results lie in another folder than annotated; they are joined by file name and question.",
    "Check that these are the annotated videos; a sample_id in each result joins for certain.",
)
GAPS_OTHER_QUESTION = Code(
    "GAPS_OTHER_QUESTION",
    "Some results have the id of an annotation and another question; they are joined by id.",
    "Check that the annotations are those that were evaluated, and that both number their samples alike.",
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
GAPS_GROUND_TRUTH_DIFFERS = Code(
    "GAPS_GROUND_TRUTH_DIFFERS",
    "Some results were evaluated against another ground truth than the annotations now hold; the results' is used.",
    "Evaluate again if the annotations were corrected since.",
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
GAPS_SAME_FILE = Code(
    "GAPS_SAME_FILE",
    "Two of the files that are named are one, so that writing it would destroy what was read or written before.",
    "Give --gaps-parquet and --jsonl names of their own.",
    Exit.USAGE,
)
GAPS_FOUND = Code(
    "GAPS_FOUND",
    "There are gaps, and --fail-on-gaps asks that this counts as a failure.",
    "Look at the gap table; leave --fail-on-gaps out where gaps are expected.",
)
GAPS_EMBEDDINGS = Code(
    "GAPS_EMBEDDINGS",
    "The embeddings cannot be read.",
    "Give the table of the set that was evaluated: embeddings.parquet of its run of the action embed, or "
    "query_embeddings.parquet where that run embedded a pool, too.",
)
GAPS_AUDIT_ANSWERS = Code(
    "GAPS_AUDIT_ANSWERS",
    "The answers to an audit cannot be read, or one of them is no answer.",
    "Give the file that the button at the end of audit.html saves.",
)
