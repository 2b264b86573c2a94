"""Objectives: what a training minimises. Each takes a model and a batch and gives sums that ranks and steps add up."""

from vidqa.engine.objectives._base import Objective, Sums
from vidqa.engine.objectives.supervised import SUPERVISED

__all__ = ["SUPERVISED", "Objective", "Sums"]
