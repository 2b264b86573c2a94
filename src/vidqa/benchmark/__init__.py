"""The benchmark of Cosmos-Reason1: its questions, its protocol as an evaluation job, its result files."""
