"""Problem codes of the benchmark."""

from vidqa.contract.problem import Code

BENCHMARK_DATA = Code(
    "BENCHMARK_DATA",
    "A subset of the benchmark is not in the data folder, or its questions cannot be read.",
    "Fetch it: python scripts/fetch_data.py cosmos-reason1-benchmark SUBSET --out DATA.",
)
BENCHMARK_CLIPS = Code(
    "BENCHMARK_CLIPS",
    "Clips of the benchmark are missing. A question whose clip is missing counts as wrong.",
    "Those of av, robofail and robovqa come with the benchmark (scripts/fetch_data.py). Those of holoassist, agibot "
    "and bridgev2 are cut out of the sets that they come from, and lie in the subset's folder clips.",
)
BENCHMARK_CONFIG = Code(
    "BENCHMARK_CONFIG",
    "A configuration of the benchmark holds something that cannot be taken as it is.",
    "Name datasets, model.model_name, evaluation.answer_type (letter or reasoning) and generation.* in it.",
)
