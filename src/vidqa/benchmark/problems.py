"""Problem codes of the benchmark."""

from vidqa.core.problem import Code

BENCHMARK_DATA = Code(
    "BENCHMARK_DATA",
    "A subset of the benchmark is not in the data folder, or its questions cannot be read.",
    "Fetch it: python scripts/fetch_data.py cosmos-reason1-benchmark SUBSET --out DATA.",
)
BENCHMARK_CLIPS = Code(
    "BENCHMARK_CLIPS",
    "Clips of the benchmark are missing. A question whose clip is missing counts as wrong.",
    "Those of av, robofail and robovqa come with the benchmark (scripts/fetch_data.py). Those of holoassist, agibot "
    "and bridgev2 are cut out of the sets that they come from: scripts/cut_clips.py.",
)
BENCHMARK_CONFIG = Code(
    "BENCHMARK_CONFIG",
    "A configuration of the benchmark holds something that cannot be taken as it is.",
    "Name datasets, model.model_name, evaluation.answer_type (letter or reasoning) and generation.* in it.",
)
BENCHMARK_RAW = Code(
    "BENCHMARK_RAW",
    "The set that clips are cut out of is not where --raw says, or cannot be read.",
    "Give the folder that references/benchmarks.md describes; a file that was cut off has to be fetched again.",
)
BENCHMARK_CUT = Code(
    "BENCHMARK_CUT",
    "A clip of the benchmark could not be cut; the others were.",
    "Complete the set that it comes from and run the same command again: clips that are there are left as they are.",
)
