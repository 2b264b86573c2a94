"""Jobs: launch, watch, cancel and retry a run on a platform."""
