"""Problems of the benchmark."""

from vidqa.core.problem import Code

BENCHMARK_DATA = Code(
    "BENCHMARK_DATA",
    "A subset of the benchmark, or clips of it, are not in the data folder, or its questions cannot be read. A "
    "question whose clip is missing counts as wrong.",
    "Fetch it: python scripts/fetch_data.py cosmos-reason1-benchmark SUBSET --out DATA. Cut the clips of holoassist, "
    "agibot and bridgev2 out of their source data sets: scripts/cut_clips.py.",
)
BENCHMARK_CUT = Code(
    "BENCHMARK_CUT",
    "A clip of the benchmark could not be cut, while the others were; or the source data set is not in --raw or cannot "
    "be read.",
    "Complete the source data set in the folder that references/benchmarks.md describes (fetch a truncated file again) "
    "and run the same command again: existing clips are kept.",
)
