"""What can be wrong with a search space, with values that are proposed for it, and with the choice of an algorithm."""

from __future__ import annotations

from vidqa.contract.problem import Code

UNKNOWN_KEY = Code(
    "AUTOML_UNKNOWN_KEY",
    "A search is asked for over a key that a train spec, or this search, does not have.",
    "Use one of the names that it lists; references/parameters_train.md has every key.",
)
NO_BOUNDS = Code(
    "AUTOML_NO_BOUNDS",
    "A key is to be searched whose values have no bounds.",
    "Give its range: --range KEY=LOW..HIGH, LOW..HIGH:log, or the values, A,B,C.",
)
RANGE = Code(
    "AUTOML_RANGE",
    "A range of the search cannot be read, is empty, or holds values that the spec does not take.",
    "Write LOW..HIGH, LOW..HIGH:log, LOW..HIGH:STEP, or A,B,C; A:3,B:1 weighs them.",
)
EXCLUSIVE = Code(
    "AUTOML_EXCLUSIVE",
    "Two keys are to be searched of which a spec may hold one.",
    "Leave one of the two ranges out.",
)
EMPTY = Code("AUTOML_EMPTY", "Nothing is left to search.", "Fix fewer keys, or add a key with --range.")
VALUE = Code(
    "AUTOML_VALUE",
    "A value that was proposed for a trial, or fixed, is one that the search or the spec does not take.",
    "Write a value inside the range that it names.",
)
UNREPAIRED = Code(
    "AUTOML_UNREPAIRED",
    "Proposed values break a rule of the spec, and no change of these values alone mends it.",
    "Correct the template of the search with the remedy that the rule names.",
)
ALGORITHM = Code(
    "AUTOML_ALGORITHM", "There is no search algorithm of this name.", "Use one of the names that it lists."
)
GOALS = Code(
    "AUTOML_GOALS",
    "The algorithm cannot search for this number of metrics.",
    "Name one metric, or two or more for nsga2, bayesian, random, grid, qmc and agent.",
)
FIDELITY = Code(
    "AUTOML_FIDELITY",
    "The shortest and the longest training of the search make no rungs.",
    "Let the shortest be at least 1 step and at most the longest, and the reduction at least 2.",
)
