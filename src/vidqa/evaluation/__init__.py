"""Scores: parse an answer, judge it, aggregate with intervals, compare, list what went wrong."""
