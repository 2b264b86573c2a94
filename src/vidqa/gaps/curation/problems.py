"""Problems of choosing, making and assembling training data."""

from vidqa.core.problem import Code

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
