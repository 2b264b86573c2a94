"""Tools for annotations before a training: convert, split, merge, inspect, preview."""
