"""Decodes real clips and trains a tiny model on them for two steps, on the CPU: python docker/smoke_test.py

The last step of the image's build: what cannot do this is no engine.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

VIDEO_SET = "/opt/vidqa/project/workflow/demo/video_set.py"
SPEC = """
[policy]
model_name_or_path = "{0}/model"
[custom.train_dataset]
annotation_path = "{0}/data/train/annotations.json"
media_path = "{0}/data/train"
[custom.vision]
nframes = 8
total_pixels = 4096
[train]
output_dir = "{0}/runs"
max_num_steps = 2
train_batch_per_replica = 2
param_dtype = "float32"
[train.train_policy]
type = "sft"
mini_batch = 2
[engine]
frame_cache_dir = "{0}/cache"
"""


def run(*words: object) -> None:
    subprocess.run([sys.executable, *map(str, words)], check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(VIDEO_SET, "--out", folder / "data", "--clips", 8)
        run(
            "-m",
            "vidqa.engine.families.tiny_qwen3_vl",
            "--out",
            folder / "model",
            "--corpus",
            folder / "data/corpus.txt",
        )
        (folder / "spec.toml").write_text(SPEC.format(folder))
        engine = ("vidqa.engine", "train", "--spec", folder / "spec.toml", "--run-dir", folder / "run")
        run("-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node=1", "-m", *engine)
        events = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        losses = [event["train/loss"] for event in events if "train/loss" in event]
        exported = list((folder / "run/safetensors").glob("*/model.safetensors"))
        if len(losses) != 2 or not exported:
            sys.exit(f"the smoke test trained {len(losses)} of 2 steps and exported {len(exported)} models")
        print(f"trained: losses {losses}")


if __name__ == "__main__":
    main()
