"""The benchmark of Cosmos-Reason1: its questions, its protocol on top of evaluation jobs, its result files."""
