"""Build the spec of a run from a template, a profile, a parent run, data folders and your own values."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from vidqa.core.actions import names, profiles, roots
from vidqa.core.cli import Parser, Result, command, note, run
from vidqa.core.run_folder import run_named, run_path

parser = Parser(
    "Build the spec of a run. Later sources override: template, profile, parent run, data, --override, --set.",
    examples=[
        "python scripts/build_spec.py train --train-root data/train --set num_epochs=2 --out spec.toml",
        "python scripts/build_spec.py evaluate --parent-run output/my-run --eval-root data/kpi --out eval.toml",
    ],
)
parser.usage = f"build_spec.py {{{','.join(names())}}} [options]"
parser.add_argument("action", choices=names())
parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a.b.c=value, or a short name")
parser.add_argument("--override", action="append", default=[], type=Path, metavar="FILE", help=".toml, .yaml or .json")
parser.add_argument("--profile", help=profiles())
for part in roots():
    parser.add_argument(f"--{part}-root", metavar="DIR", help="annotations.json and media")
parser.add_argument(
    "--parent-run",
    "--parent-job-id",
    type=run_path,
    metavar="RUN",
    help="run folder or job id: the run to evaluate (best export) or to continue",
)
parser.add_argument("--which", help="export of the run: best, latest, step_N or epoch_N")
parser.add_argument("--model", type=run_named, help="hf_model://org/name, a folder, or RUN/best")
parser.add_argument("--results-dir", metavar="DIR", help="parent folder of the run folder")
parser.add_argument(
    "--target", choices=["native", "cosmos-rl"], default="native", metavar="T", help="native, cosmos-rl"
)
parser.add_argument(
    "--platform",
    choices=["local", "docker", "slurm", "kubernetes"],
    default="local",
    metavar="P",
    help="platform in the suggested next command: local, docker, slurm, kubernetes",
)
parser.add_argument("--explain", action="store_true", help="show every key with its value and source")
parser.add_argument(
    "--out", type=Path, metavar="FILE", help="file for the spec: .toml, .yaml or .json (default: print it)"
)


def main(args: argparse.Namespace) -> Result:
    from vidqa.spec import dump, explain, fingerprint
    from vidqa.spec.build import PARENT_LAYER, Request, build
    from vidqa.spec.layers import format_of
    from vidqa.spec.schedule import train_samples
    from vidqa.spec.serialization import write_spec

    form = "toml" if args.out is None else format_of(args.out)
    named = {name: getattr(args, name) for name in ("profile", "parent_run", "which", "model", "results_dir", "target")}
    folders = tuple((part, root) for part in roots() if (root := getattr(args, f"{part}_root")) is not None)
    resolved = build(Request(args.action, roots=folders, overrides=tuple(args.override), sets=tuple(args.set), **named))
    samples = train_samples(resolved.spec) if args.target == "cosmos-rl" else None
    text = dump(resolved.spec, form, args.target, samples)
    data = {"action": args.action, "fingerprint": fingerprint(resolved.spec), "target": args.target, "spec": text}
    data["layers"] = resolved.layers
    for layer in resolved.layers:
        if layer.startswith(PARENT_LAYER):
            note(f"from {layer}")  # --parent-run may name a folder of runs
    shown = explain(resolved) if args.explain else text
    if args.explain:
        data["origins"] = resolved.origins
    if args.out is None:
        return Result(data, shown, resolved.warnings)
    write_spec(args.out, text, args.action if args.target == "native" else "")
    shown = f"{shown}\nwrote {args.out}" if args.explain else f"wrote {args.out}"
    onward = [command("preflight", "--spec", args.out, "--platform", args.platform)]
    return Result({**data, "out": str(args.out)}, shown, resolved.warnings, onward if args.target == "native" else [])


if __name__ == "__main__":
    sys.exit(run(parser, main))
