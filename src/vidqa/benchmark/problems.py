"""Problems of the benchmark."""

from vidqa.core.problem import Code

BENCHMARK_DATA = Code(
    "BENCHMARK_DATA",
    "A subset of the benchmark, or clips of it, are not in the data folder, or its questions cannot be read. A "
    "question whose clip is missing counts as wrong.",
    "Fetch it: python scripts/fetch_data.py cosmos-reason1-benchmark SUBSET --out DATA. The clips of holoassist, "
    "agibot and bridgev2 are cut out of the sets that they come from: scripts/cut_clips.py.",
)
BENCHMARK_CUT = Code(
    "BENCHMARK_CUT",
    "A clip of the benchmark could not be cut, while the others were; or the set that clips are cut out of is not "
    "where --raw says, or cannot be read.",
    "Complete the set in the folder that references/benchmarks.md describes (a file that was cut off has to be "
    "fetched again) and run the same command again: clips that are there are left as they are.",
)
