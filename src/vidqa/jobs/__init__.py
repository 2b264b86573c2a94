"""Jobs: launch, record, watch, cancel and retry runs on a platform."""
