"""From an evaluation's results to the table of what the model got wrong (torch-free)."""

from vidqa.evaluation.gaps.analyze import ERROR_TYPES, Gaps, analyze
from vidqa.evaluation.gaps.compare import MODES
from vidqa.evaluation.gaps.table import GAP_COLUMNS

__all__ = ["ERROR_TYPES", "GAP_COLUMNS", "MODES", "Gaps", "analyze"]
