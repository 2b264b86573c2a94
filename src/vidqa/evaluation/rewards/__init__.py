"""Rewards of completions: the evaluation's verdict, formats, distances, and functions of the user's own."""

from vidqa.evaluation.rewards.builtin import Completion
from vidqa.evaluation.rewards.scoring import Reward, Rewards, label_of, question_problems, shuffled_options

__all__ = ["Completion", "Reward", "Rewards", "label_of", "question_problems", "shuffled_options"]
