"""Scoring: parse answers, judge them, aggregate with intervals, compare evaluations, list failures."""
