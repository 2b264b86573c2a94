"""Problems of a sample: a record that is well written and still cannot be used."""

from vidqa.contract.problem import Code

SAMPLE_TOO_LONG = Code(
    "SAMPLE_TOO_LONG",
    "A sample has more tokens than the spec allows. It is never cut.",
    "Take fewer frames, lower the pixel budget, or raise the limit; preflight names the smallest change that fits.",
)
SAMPLE_NOTHING_LEARNED = Code(
    "SAMPLE_NOTHING_LEARNED",
    "A training sample has no token to learn from.",
    "Give the record an answer, or choose a response_mode that keeps it.",
)
SAMPLE_TWO_KINDS = Code(
    "SAMPLE_TWO_KINDS",
    "One file is named as a video by one record and as an image by another.",
    "Name the file as what it is in every record.",
)
