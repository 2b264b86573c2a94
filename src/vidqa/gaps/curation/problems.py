"""Problems of choosing, making and assembling training data."""

from vidqa.core.problem import Code

NO_EMBEDDINGS = Code(
    "CURATION_EMBEDDINGS",
    "A table of embeddings is missing, is none, or was made with another model, other frames or other annotations "
    "than what it is used with.",
    "Name the run folder of a finished embed job, or its embeddings.parquet; embed two sets with one spec, changing "
    "the dataset alone; name with --pool-annotations the annotations that the pool was embedded from.",
)
NO_GAPS = Code(
    "CURATION_NO_GAPS",
    "No sample of the gap table has a vector in the KPI embeddings.",
    "Where the model makes no mistakes, stop here; else embed the very annotations that were evaluated.",
)
NOTHING_FOUND = Code(
    "CURATION_NOTHING_FOUND",
    "No row of the pool has a vector, or none may be taken for any gap.",
    "Lower --threshold, or bring a pool that has what the gaps show; the counts say why rows were left out.",
)
LABELS = Code(
    "CURATION_LABELS",
    "A file of a person's answers, or the tasks that they answer, cannot be used.",
    "Give the JSON that audit.html or annotate.html saved, an export of Label Studio (JSON), or samples.json of "
    "FiftyOne, and the tasks.json of the same mining.",
)
LEAK = Code(
    "CURATION_LEAK",
    "New rows overlap with a protected set (KPI, validation, test), or no such set was named.",
    "Look at the pairs that leaks.json names; such rows are left out of the new set.",
)
NOTHING_NEW = Code(
    "CURATION_NOTHING_NEW",
    "No row that was given is new to the base set.",
    "Mine or make others; stop the loop where there are none.",
)
VARIANT = Code(
    "CURATION_VARIANT",
    "A clip cannot be read, so that no variant of it was made; the others were.",
    "Check the file, or leave it out of what is augmented.",
)
GENERATOR = Code(
    "CURATION_GENERATOR",
    "A generator of the user's cannot be used, or did not write annotations.",
    "It reads one JSON object on stdin and writes LLaVA annotations to its `write_annotations`; name its --licence and "
    "--source.",
)
