"""The whole path on a small synthetic set: python workflow/quickstart/run.py   (what `make demo` runs)

Every command is printed as you would type it from the repository's folder; on your own data, leave out the first two.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

SKILL_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SKILL_ROOT / "src"), str(SKILL_ROOT / "workflow")]

from demo.commands import build, launch, python, script, words_of
from demo.recipe import EVALUATE, GAIN, LOOP, POOL_CLIPS, TRAIN, TRAIN_CLIPS
from demo.summary import summary
from vidqa.core.files import remove

DEMO = Path("demo")
DATA, MODEL, GAPS, DEFT = DEMO / "data", DEMO / "model", DEMO / "gaps.parquet", DEMO / "loop"


def main() -> None:
    started = time.monotonic()

    # A synthetic set and a tiny model with random weights: the two things you bring yourself.
    python("workflow/demo/video_set.py", "--out", DATA, "--clips", TRAIN_CLIPS, "--pool", POOL_CLIPS, "--seed", 0)
    drawn = ("--corpus", DATA / "corpus.txt", "--seed", 0, "--gain", GAIN)
    python("-m", "vidqa.engine.families.tiny_qwen3_vl", "--out", MODEL, *drawn)

    # Gate: nothing starts before the spec, the data and every video have been checked.
    train = DEMO / "train.toml"
    build("train", train, "--train-root", DATA / "train", "--model", MODEL, overrides=TRAIN)
    script("preflight", "--spec", train, "--platform", "local")

    # What the model answers before training. A launch checks what no preflight has, all but the frames.
    zero_shot = DEMO / "zero_shot.toml"
    build("evaluate", zero_shot, "--eval-root", DATA / "eval", "--model", MODEL, overrides=EVALUATE)
    before = launch("evaluate", zero_shot)

    # Fine-tune. Then ask again.
    trained = launch("train", train)
    tuned = DEMO / "evaluate.toml"
    build("evaluate", tuned, "--parent-run", trained, "--eval-root", DATA / "eval", overrides=EVALUATE)
    after = launch("evaluate", tuned)

    # What it still gets wrong, and so what the next training set needs.
    kpi = ("--kpi-ann-path", DATA / "eval" / "annotations.json", "--kpi-media-path", DATA / "eval")
    script("analyze_gaps", "--results-dir", after, "--gaps-parquet", GAPS, *kpi)

    # Make it better there: mine clips like the gaps from a pool, train on, and keep the new model if it is better.
    remove(DEFT, owner=DEMO)  # an earlier demo's, which began with another model
    sets = ("--selection", DATA / "selection", "--pool", DATA / "pool", "--kpi", DATA / "eval")
    recipes = ("--train-spec", train, "--evaluate-spec", tuned, "--model", trained)
    script("run_deft", "init", DEFT, *recipes, *sets, *words_of(LOOP))
    script("run_deft", "run", DEFT)

    print(f"\n{summary(before, trained, after, GAPS, DEFT)}\n\n{time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    argparse.ArgumentParser(description="Run the whole path on a small synthetic set, in ./demo.").parse_args()
    main()
