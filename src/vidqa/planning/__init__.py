"""The plan of a run: samples, packs, steps, memory, time, and what resuming may change."""
