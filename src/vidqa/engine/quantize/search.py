"""The search for layers that have to stay: where the gate fails, the fused groups with the largest output errors do.

An output error is |y' - y| / |y| over the outputs of a group's layers, y before and y' after quantizing, both for the
inputs that the model before gives them: errors of other layers are no part of it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from vidqa.planning.quantization import QuantizationPlan, fused_group

SHARES = (0.025, 0.05, 0.1)  # of the model's parameters that stay at most, try after try
ROWS = 64  # tokens of a sample whose outputs are compared
Products = dict[str, list[tuple[torch.Tensor, torch.Tensor]]]


@contextmanager
def recorded_products(model: Any, modules: Iterable[str]) -> Iterator[Products]:
    """Inputs [N, D] and outputs [N, O] of linear layers, on the host, for each sample that the model computes: those of
    ROWS tokens that are spread over it."""
    products: Products = defaultdict(list)

    def record(name: str, module: Any, args: Any, output_1SO: torch.Tensor) -> None:
        length = output_1SO.shape[1]
        at = torch.linspace(0, length - 1, min(length, ROWS)).long()
        products[name].append((args[0][0].cpu()[at], output_1SO[0].cpu()[at]))

    with ExitStack() as hooks:
        for name in modules:
            hooks.callback(model.get_submodule(name).register_forward_hook(partial(record, name)).remove)
        yield products


@torch.no_grad()
def output_errors(model: Any, products: Products) -> dict[str, float]:
    """The output error of each fused group of a quantized model; `products` are of the model before."""
    device, totals = next(model.parameters()).device, defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for name, samples in products.items():
        layer, total = model.get_submodule(name), totals[fused_group(name)]
        for inputs_ND, outputs_NO in samples:
            change = layer(inputs_ND[None].to(device))[0].cpu().float() - outputs_NO.float()
            total[0] += change.square().sum().item()
            total[1] += outputs_NO.float().square().sum().item()
    return {group: math.sqrt(change / max(size, 1e-12)) for group, (change, size) in totals.items()}


def larger_keeps(plan: QuantizationPlan, errors: dict[str, float]) -> list[tuple[str, ...]]:
    """The fused groups that stay in each further try, largest error first; at least the worst that the last of SHARES
    has room for."""
    sizes = Counter[str]()
    for name, (out, width) in plan.modules.items():
        sizes[fused_group(name)] += out * width
    keeps: list[tuple[str, ...]] = []
    for share in SHARES:
        groups, total = list[str](), 0
        for group in sorted(errors, key=lambda name: -errors[name]):
            if total + sizes[group] <= plan.parameters * (share if groups else SHARES[-1]):
                groups.append(group)
                total += sizes[group]
        if groups and tuple(groups) not in keeps:
            keeps.append(tuple(groups))
    return keeps
