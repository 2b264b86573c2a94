"""Generators answer prompts; each gives the tokens that transformers, the reference, gives."""

from vidqa.engine.generators.native import NATIVE
from vidqa.engine.generators.reference import TRANSFORMERS

GENERATORS = {generator.name: generator for generator in (TRANSFORMERS, NATIVE)}
