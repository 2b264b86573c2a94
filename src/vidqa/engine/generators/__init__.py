"""Generators answer prompts; each gives the tokens that transformers, the reference, gives."""

from vidqa.engine.generators.hf import TRANSFORMERS
from vidqa.engine.generators.native import NATIVE

GENERATORS = {generator.name: generator for generator in (TRANSFORMERS, NATIVE)}
