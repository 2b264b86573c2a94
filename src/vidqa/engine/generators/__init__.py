"""Generators answer prompts; every generator returns the tokens of the reference, transformers."""

from vidqa.engine.generators._base import Generator
from vidqa.engine.generators.hf import open_transformers
from vidqa.engine.generators.native import open_native

GENERATORS: dict[str, Generator] = {"transformers": open_transformers, "native": open_native}  # by name in the spec
