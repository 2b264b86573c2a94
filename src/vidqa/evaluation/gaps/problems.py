"""Problem codes of gap analysis."""

from vidqa.contract.problem import Code, Exit

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
