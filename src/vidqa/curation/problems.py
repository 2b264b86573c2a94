"""Problems of choosing, making and assembling training data."""

from vidqa.contract.problem import Code

NO_EMBEDDINGS = Code(
    "CURATION_EMBEDDINGS",
    "A table of embeddings is missing, or is none.",
    "Name the run folder of a finished embed job, or its embeddings.parquet.",
)
UNLIKE = Code(
    "CURATION_UNLIKE",
    "Two tables of embeddings were made by other models, of other frames or with other dimensions.",
    "Embed both with one spec, changing the dataset alone.",
)
