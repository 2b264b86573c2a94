"""Problems of gap analysis, of selecting, making and assembling training data, and of the DEFT loop."""

from vidqa.core.problem import Code, Exit

GAPS_ANNOTATIONS = Code(
    "GAPS_ANNOTATIONS",
    "The evaluated annotations are missing or cannot be read, or results cannot be matched to them unambiguously.",
    "Give the annotation path that was evaluated. A sample_id in each result and a unique id in each annotation make "
    "the match unambiguous; evaluate again if the annotations were corrected since.",
)
GAPS_NO_RESULT = Code(
    "GAPS_NO_RESULT",
    "Some annotated samples have no result; they are gaps with the error type `missing`.",
    "Resume the evaluation (evaluation.skip_saved = true, evaluation.limit = -1), then analyze again.",
)
GAPS_NO_GROUND_TRUTH = Code(
    "GAPS_NO_GROUND_TRUTH",
    "Some results cannot be judged: neither the result nor its annotation has a ground truth.",
    "Add the answer as the last assistant turn of the annotation.",
)
GAPS_FOUND = Code(
    "GAPS_FOUND",
    "Gaps exist, and --fail-on-gaps makes that a failure.",
    "Read the gap table; omit --fail-on-gaps if gaps are expected.",
)
INPUT = Code(
    "CURATION_INPUT",
    "Embeddings, a table of gaps or mined rows, tasks, or human answers cannot be read, or do not belong together.",
    "Give the run folder of a finished embed job (two sets: one spec, other data; --pool-annotations is the file that "
    "the pool was embedded from), the table of scripts/analyze_gaps.py, the tasks.json of the same mining, and JSON "
    "saved by audit.html, annotate.html, Label Studio or FiftyOne (samples.json).",
)
NOTHING_NEW = Code(
    "CURATION_NOTHING_NEW",
    "No gap has a vector in the KPI embeddings, no row of the pool is eligible for one, or no row is new to the base "
    "set.",
    "The message counts the reasons. Embed exactly the annotations that were evaluated, lower --threshold, or use a "
    "pool that covers the gaps; if the model makes no mistakes, stop here.",
)
LEAK = Code(
    "CURATION_LEAK",
    "New rows overlap with a protected set (KPI, validation, test), two sets are the same, or no protected set was "
    "given.",
    "Look at the pairs in leaks.json; such rows are left out of the new set. Give each set of a loop its own folder.",
)
GENERATOR = Code(
    "CURATION_GENERATOR",
    "A user's generator cannot be run, or did not write annotations.",
    "Let it read one JSON object from stdin and write LLaVA annotations to its `write_annotations`; give its --licence "
    "and --source.",
)
DEFT_FOLDER = Code(
    "DEFT_FOLDER",
    "The folder contains no loop, a loop with other options, or other files where a new loop would start.",
    "Start a loop in its own folder: python scripts/run_deft.py init LOOP --train-spec FILE --evaluate-spec FILE "
    "--selection DIR --pool DIR.",
    Exit.USAGE,
)
DEFT_GATE = Code(
    "DEFT_GATE",
    "A stage cannot continue with the input or the result that it has.",
    "Correct what the problems name, or delete a damaged file of the loop: the stage that writes it runs again. Then "
    "run the loop again: it continues with this stage.",
)
