"""The table of what a model got wrong, made from the results of an evaluation."""

from vidqa.gaps.analysis.analyze import ERROR_TYPES, Gaps, analyze
from vidqa.gaps.analysis.scored_answers import MODES
from vidqa.gaps.analysis.storage import GAP_COLUMNS

__all__ = ["ERROR_TYPES", "GAP_COLUMNS", "MODES", "Gaps", "analyze"]
