"""Jobs: launch, record, watch, cancel and retry a run on a platform."""
