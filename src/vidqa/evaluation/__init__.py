"""Scores: parse an answer, judge it, aggregate with intervals, compare, list what went wrong."""

from vidqa.evaluation.answers import RULES, Parsed, final_answer, parse_answer, parse_expected
from vidqa.evaluation.metrics import metric_problems, score
from vidqa.evaluation.results import check_results, compare_recipes, make_item, read_results

__all__ = [
    "RULES",
    "Parsed",
    "check_results",
    "compare_recipes",
    "final_answer",
    "make_item",
    "metric_problems",
    "parse_answer",
    "parse_expected",
    "read_results",
    "score",
]
