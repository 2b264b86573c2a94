"""A multiple-choice set for RL: python workflow/demo/rl_set.py --out demo/rl/data --clips 800 --seed 0"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

WORKFLOW = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(WORKFLOW.parent / "src"), str(WORKFLOW)]

from demo.scenes import COLORS, SIDE, draw_scene
from vidqa.core.cli import Parser, Result, number, run

LETTERS = "ABCD"
SFT_CLIPS, EVAL_CLIPS = 1200, 192
RADIUS, PLACE = 36, (SIDE // 2, SIDE // 2)  # large, and in the middle: what is learned here is to answer


def write_rl_set(folder: Path, train_count: int, seed: int = 0) -> dict[str, int]:
    """Write `folder`/sft, train and eval anew, each an annotations.json and videos/ with clips of its own, and
    corpus.txt for the tokenizer. Every letter is right equally often. The answers of sft have the form that is
    rewarded, reasoning that names the color, and a letter that is drawn at random: a model trained on them sees colors
    and answers at chance. Returns counts of questions."""
    import numpy as np

    from demo.clips import Clip, write_split
    from demo.questions import Question
    from vidqa.core.files import remove, write_text

    options = "\n".join(f"({letter}) {color}" for letter, color in zip(LETTERS, COLORS, strict=True))
    text = f"What color is it?\n{options}"
    counts = {"sft": SFT_CLIPS, "train": train_count, "eval": EVAL_CLIPS}
    for stream, (split, count) in enumerate(counts.items()):
        rng = np.random.default_rng([seed, 10 + stream])
        drawn = [draw_scene("resize", i, rng) for i in range(count)]
        scenes = [replace(scene, look=replace(scene.look, radius=RADIUS, place=PLACE)) for scene in drawn]
        letters = [LETTERS[list(COLORS).index(scene.colors[0])] for scene in scenes]
        if split == "sft":
            letters = [str(letter) for letter in rng.choice(list(LETTERS), size=count)]
        clips = [
            Clip(f"{split}_{place:05d}", scenes[i], (Question("color", text, answer(scenes[i].colors[0], letters[i])),))
            for place, i in enumerate(rng.permutation(count))
        ]
        remove(folder / split, owner=folder)
        write_split(folder / split, clips)
    write_text(folder / "corpus.txt", "\n".join([text, *map(answer, COLORS, LETTERS)]) + "\n")
    return counts


def answer(color: str, letter: str) -> str:
    """A reference in the form that the reward `format` wants."""
    return f"<think>{color}</think>\n<answer>{letter}</answer>"


def main(options: argparse.Namespace) -> Result:
    counts = write_rl_set(options.out, options.clips, options.seed)
    text = "\n".join(f"{options.out / split}: {count} questions" for split, count in counts.items())
    return Result(data={"folder": str(options.out), "questions": counts}, text=text)


parser = Parser(
    "Write a synthetic set for reinforcement learning.",
    ["python workflow/demo/rl_set.py --out demo/rl/data --clips 800 --seed 0"],
)
parser.add_argument("--out", type=Path, required=True, help="folder; the sets in it are replaced")
parser.add_argument("--clips", type=number(int, 1), default=800, help="number of training clips (default 800)")
parser.add_argument("--seed", type=number(int, 0), default=0, help="another seed gives other clips (default 0)")

if __name__ == "__main__":
    sys.exit(run(parser, main))
