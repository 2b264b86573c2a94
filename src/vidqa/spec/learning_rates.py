"""Learning rates by part of a model: train.optm_lr as a number, a table or a list of cosmos-rl's.

A table names `vision` (the tower; cosmos-rl calls it visual), `merger`, `decoder` (with embeddings and head), and
`global` for parts that it does not name; the merger goes with the tower. A list is [decoder, vision], as cosmos-rl
separates a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vidqa.core.problem import Problem
from vidqa.spec.problems import CONFLICT, VALUE

KEY = "train.optm_lr"
PARTS = ("decoder", "vision", "merger")
NAMES = {*PARTS, "visual", "global"}
Rates = float | list[float] | dict[str, float]


def part_of(name: str) -> str:
    """The part that a parameter belongs to."""
    if ".visual." not in f".{name}":
        return "decoder"
    return "merger" if ".merger." in name or ".deepstack_merger_list." in name else "vision"


def named_rates(rates: Rates) -> dict[str, float]:
    """The rates that a spec gives to parts by name; a number gives none."""
    if isinstance(rates, list):
        return dict(zip(PARTS, rates, strict=False))
    named = dict(rates) if isinstance(rates, dict) else {}
    if "visual" in named:
        named.setdefault("vision", named.pop("visual"))
    return named


def rate_of(rates: Rates, part: str) -> float | None:
    """The peak rate of a part; None where the spec gives it none."""
    if isinstance(rates, int | float):
        return float(rates)
    named = named_rates(rates)
    names = (part, "vision", "global") if part == "merger" else (part, "global")
    return next((named[name] for name in names if name in named), None)


def shape_problems(rates: Rates) -> Iterator[Problem]:
    """SPEC_VALUE for names that are no parts, and for a list that is not of two."""
    if isinstance(rates, list) and len(rates) != 2:
        remedy = "write [decoder, vision], or a table { vision = 1e-6, merger = 1e-5, decoder = 1e-5 }"
        yield VALUE.at(KEY, f"the list has {len(rates)} rates", remedy)
    for name in sorted(set(rates) - NAMES) if isinstance(rates, dict) else ():
        yield VALUE.at(f"{KEY}.{name}", f"{name} is no part of a model", "use vision, merger, decoder or global")


def part_problems(rates: Rates, trained: Iterable[str]) -> list[Problem]:
    """SPEC_CONFLICT for a rate of a part of which nothing trains, SPEC_VALUE for a part that trains and has none, by
    the names of the parameters that train."""
    parts = {part_of(name) for name in trained}
    problems = []
    for part in named_rates(rates):
        if part in PARTS and part not in parts:
            remedy = "leave its rate out, or let it train (policy.freeze_pattern, policy.lora.target_modules)"
            problems.append(CONFLICT.at(f"{KEY}.{part}", f"nothing of the part {part} trains", remedy))
    without = [part for part in PARTS if part in parts and not rate_of(rates, part)]
    return problems + [VALUE.at(KEY, f"the part {part} trains and has no rate", "give it one") for part in without]
