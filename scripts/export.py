"""Prepare an export of a run for others, LoRA merged into its base: python scripts/export.py RUN --merge --out M"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.cli import Parser, Result, command, run
from vidqa.core.run_folder import run_named

parser = Parser(
    "Write an export of a run to a separate folder, verified, with a model card; safe to repeat.",
    examples=[
        "python scripts/export.py outputs/train/20260101T120000Z-1a2b3c --merge --out models/doors",
        "python scripts/export.py outputs/train/RUN/safetensors/step_40 --out models/doors-adapter",
    ],
)
parser.add_argument(
    "run", type=run_named, metavar="RUN", help="run folder, job id, export, or latest: the newest run in this folder"
)
parser.add_argument("--which", help="export of a run: best (default), latest, step_N or epoch_N")
parser.add_argument("--merge", action="store_true", help="merge LoRA adapters into the base model")
parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="new folder, or one with this export")


def main(options: Namespace) -> Result:
    from vidqa.core.files import absolute
    from vidqa.jobs.exports import find
    from vidqa.jobs.release import write_release

    source = find(options.run, options.which)
    release = write_release(source, absolute(options.out), merge=options.merge)
    proof = release.proof
    lines = [
        f"{release.how:<9} {release.folder} ({release.format}) of {source.export.name} of {source.run.path.name}",
        f"{'proved':<9} sample {proof['sample_id']}: trainer's loss {proof['trainer_loss']:.6f}, "
        f"after loading {proof['reloaded_loss']:.6f}",
    ]
    lines += [f"{'score':<9} {score.export.name}: {score.export.metrics.get('headline')}" for score in release.scores]
    lines += [] if release.scores else [f"{'score':<9} none: no evaluation of these weights is beside the run"]
    following = [command("upload", release.folder, "--hub", "ORGANISATION/NAME")]
    if not release.scores:
        words = ("--parent-run", source.run.path, "--which", source.export.name, "--eval-root", "EVAL_ROOT")
        following.insert(0, command("build_spec", "evaluate", *words, "--out", f"{source.run.path}/evaluate.toml"))
    data = {
        "folder": str(release.folder),
        "how": release.how,
        "format": release.format,
        "run": str(source.run.path),
        "export": source.export.name,
        "proof": proof,
        "scores": [score.as_dict() for score in release.scores],
    }
    return Result(data, "\n".join(lines), next=following)


if __name__ == "__main__":
    sys.exit(run(parser, main))
