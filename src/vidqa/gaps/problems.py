"""Problems of gap analysis, of selecting, making and assembling training data, and of the DEFT loop."""

from vidqa.core.problem import Code, Exit

GAPS_ANNOTATIONS = Code(
    "GAPS_ANNOTATIONS",
    "The annotations that were evaluated are missing or cannot be read, or results do not join with them for certain.",
    "Give the annotation path that was evaluated. A sample_id in each result, and an id of its own in each annotation, "
    "join for certain; evaluate again if the annotations were corrected since.",
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
GAPS_FOUND = Code(
    "GAPS_FOUND",
    "There are gaps, and --fail-on-gaps asks that this counts as a failure.",
    "Look at the gap table; leave --fail-on-gaps out where gaps are expected.",
)
INPUT = Code(
    "CURATION_INPUT",
    "Embeddings, a table of gaps or of mined rows, tasks, or a person's answers cannot be read, or do not belong "
    "together.",
    "Give the run folder of a finished embed job (of two sets: one spec, other data; --pool-annotations is what the "
    "pool was embedded from), the table that analyze_gaps.py wrote, the tasks.json of the same mining, and JSON that "
    "audit.html, annotate.html, Label Studio or FiftyOne (samples.json) has saved.",
)
NOTHING_NEW = Code(
    "CURATION_NOTHING_NEW",
    "No gap has a vector in the KPI embeddings, no row of the pool may be taken for one, or no row is new to the base "
    "set.",
    "The message counts why. Embed the very annotations that were evaluated, lower --threshold, or bring a pool that "
    "has what the gaps show; where the model makes no mistakes, stop here.",
)
LEAK = Code(
    "CURATION_LEAK",
    "New rows overlap with a protected set (KPI, validation, test), two sets are one, or no such set was named.",
    "Look at the pairs that leaks.json names; such rows are left out of the new set. Give each set of a loop a folder "
    "of its own.",
)
GENERATOR = Code(
    "CURATION_GENERATOR",
    "A generator of the user's cannot be used, or did not write annotations.",
    "It reads one JSON object on stdin and writes LLaVA annotations to its `write_annotations`; name its --licence and "
    "--source.",
)
DEFT_FOLDER = Code(
    "DEFT_FOLDER",
    "The folder holds no loop, another loop than the options say, or something else where one is to begin.",
    "Begin one in a folder of its own: run_deft.py init LOOP --train-spec FILE --evaluate-spec FILE --selection DIR "
    "--pool DIR.",
    Exit.USAGE,
)
DEFT_GATE = Code(
    "DEFT_GATE",
    "A stage cannot go on with what it has found.",
    "Correct what the problems name, or delete a file of the loop that is damaged: the stage that writes it runs "
    "again. Then run the loop again: it goes on with this stage.",
)
