"""Generators answer prompts; each gives the tokens that transformers, the reference, gives."""

from vidqa.engine.generators.native import NATIVE
from vidqa.engine.generators.reference import TRANSFORMERS
from vidqa.engine.generators.vllm import VLLM

GENERATORS = {generator.name: generator for generator in (TRANSFORMERS, NATIVE, VLLM)}
