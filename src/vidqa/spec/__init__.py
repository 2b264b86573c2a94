"""Specs of runs: tables of keys, layers over a template, rules, TOML input and output."""

from vidqa.spec.layers import Layer, parse_set, read_layer
from vidqa.spec.models import EvaluateSpec, Spec, TrainSpec
from vidqa.spec.resolve import Resolved, load, load_training, resolve, resolve_file
from vidqa.spec.rules import DataFacts, check, check_with_data, check_with_gpus, check_with_heads, check_with_nodes
from vidqa.spec.schedule import data_ranks, effective_batch, steps_per_epoch, total_steps, warmup_steps
from vidqa.spec.serialization import dump, explain, fingerprint

__all__ = [
    "DataFacts",
    "EvaluateSpec",
    "Layer",
    "Resolved",
    "Spec",
    "TrainSpec",
    "check",
    "check_with_data",
    "check_with_gpus",
    "check_with_heads",
    "check_with_nodes",
    "data_ranks",
    "dump",
    "effective_batch",
    "explain",
    "fingerprint",
    "load",
    "load_training",
    "parse_set",
    "read_layer",
    "resolve",
    "resolve_file",
    "steps_per_epoch",
    "total_steps",
    "warmup_steps",
]
