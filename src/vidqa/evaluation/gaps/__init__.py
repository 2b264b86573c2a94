"""The table of what a model got wrong, made from the results of an evaluation."""

from vidqa.evaluation.gaps.analyze import ERROR_TYPES, Gaps, analyze
from vidqa.evaluation.gaps.scored_answers import MODES
from vidqa.evaluation.gaps.storage import GAP_COLUMNS

__all__ = ["ERROR_TYPES", "GAP_COLUMNS", "MODES", "Gaps", "analyze"]
