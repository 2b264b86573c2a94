"""Reinforcement learning on a small synthetic set: python workflow/rl/run.py   (what `make demo-rl` runs)

SFT, GRPO, an evaluation of both models, and their comparison. Every command is printed as you would type it from the
repository's folder; on your own data, leave out the first two.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

SKILL_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SKILL_ROOT / "src"), str(SKILL_ROOT / "workflow")]

from demo.commands import build, launch, python, script
from demo.recipe import GAIN, RL, RL_CLIPS, RL_EVALUATE, RL_SFT
from demo.summary import rl_summary

DEMO = Path("demo") / "rl"
DATA, MODEL, PAGE = DEMO / "data", DEMO / "model", DEMO / "comparison.html"


def main() -> None:
    started = time.monotonic()

    # A synthetic set and a tiny model with random weights.
    python("workflow/demo/rl_set.py", "--out", DATA, "--clips", RL_CLIPS, "--seed", 0)
    drawn = ("--corpus", DATA / "corpus.txt", "--seed", 0, "--gain", GAIN)
    python("-m", "vidqa.engine.families.tiny_qwen3_vl", "--out", MODEL, *drawn)

    # SFT teaches the form of an answer, and to see. Its letters are drawn at random: it answers at chance.
    sft = DEMO / "sft.toml"
    build("train", sft, "--train-root", DATA / "sft", "--model", MODEL, overrides=RL_SFT)
    script("preflight", "--spec", sft, "--platform", "local")
    tuned = launch("train", sft)
    before = evaluate("sft", tuned)

    # GRPO goes on from there, with completions of its own and what they are rewarded with.
    rl = DEMO / "rl.toml"
    build("grpo", rl, "--parent-run", tuned, "--train-root", DATA / "train", overrides=RL)
    script("preflight", "--spec", rl, "--platform", "local")
    refined = launch("grpo", rl)
    after = evaluate("rl", refined)

    # The same questions, answered by both.
    comparison = json.loads(script("compare", before, after, "--html", PAGE, "--json", read=True))["data"]
    print(f"\n{rl_summary(comparison, refined, PAGE)}\n\n{time.monotonic() - started:.0f} s in all")


def evaluate(name: str, run: Path) -> Path:
    """Score a run's best export; returns the evaluation's run folder."""
    spec = DEMO / f"evaluate_{name}.toml"
    build("evaluate", spec, "--parent-run", run, "--eval-root", DATA / "eval", overrides=RL_EVALUATE)
    return launch("evaluate", spec)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description="SFT, GRPO and a comparison on a small synthetic set, in ./demo/rl."
    ).parse_args()
    main()
