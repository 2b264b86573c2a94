"""Check a spec before any GPU starts: python scripts/preflight.py --spec spec.toml --platform local"""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vidqa.core.actions import names
from vidqa.core.cli import Parser, Result, command, number, run


def sample(text: str) -> int | None:
    if text != "all" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor all")
    return None if text == "all" else int(text)


def architecture(text: str) -> str:
    if not re.fullmatch(r"sm_\d{2,3}[af]?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an architecture like sm_90 (H100) or sm_89 (L40S, RTX 4090)")
    return text


parser = Parser(
    "Check a spec, its model, data, videos and this machine before any GPU starts. Every problem in one report.",
    examples=[
        "python scripts/preflight.py --spec train.toml --evaluate-spec before.toml",
        "python scripts/preflight.py --spec train.toml --only leaks --kpi-root DATA/kpi",
    ],
)
SETS, GPUS = ("evaluate_spec", "kpi_root"), ("gpu_count", "gpu_memory_gb", "gpu_arch")
USED = {  # options of each group besides those of all groups
    "environment": GPUS,
    "model": (),
    "spec": ("evaluate_spec",),
    "data": SETS,
    "media": (*SETS, "probe_sample"),
    "budget": (*SETS, *GPUS, "nodes"),
    "platform": (*GPUS, "nodes", "image"),
    "leaks": (*SETS, "probe_sample"),
}
parser.add_argument("--spec", type=Path, required=True, help="TOML, YAML or JSON file (scripts/build_spec.py)")
parser.add_argument("--action", choices=names(), help="default: derived from the spec's keys")
parser.add_argument("--platform", default="local", help="platform of the job: local, docker, slurm, kubernetes")
parser.add_argument("--site", type=Path, metavar="FILE", help="site settings, as for launch.py")
parser.add_argument("--image", metavar="NAME", help="engine image, as for launch.py")
parser.add_argument("--nodes", type=number(int, 1), default=1, metavar="N", help="number of nodes")
parser.add_argument("--only", choices=USED, metavar="GROUP", help=f"one of {', '.join(USED)}")
parser.add_argument("--probe-sample", type=sample, metavar="N", help="decode N files only; default: all")
measured = parser.add_mutually_exclusive_group()
measured.add_argument("--evaluate-spec", type=Path, metavar="FILE", help="evaluation spec of a training spec")
measured.add_argument("--kpi-root", type=Path, metavar="DIR", help="or only its data: annotations.json and media")
parser.add_argument("--fix", type=Path, metavar="FILE", help="write corrected annotations to this new file")
parser.add_argument("--engine", choices=["vidqa", "cosmos-rl"], default="vidqa", help="engine to check the GPUs for")
parser.add_argument("--gpu-count", type=number(int, 1), metavar="N", help="GPUs per node, if not visible here")
parser.add_argument("--gpu-memory-gb", type=number(float, above=0), metavar="G", help="memory per GPU")
parser.add_argument("--gpu-arch", type=architecture, metavar="ARCH", help="GPU architecture, such as sm_90")


def main(options: argparse.Namespace) -> Result:
    from vidqa.jobs.platforms import platform
    from vidqa.jobs.resources import Resources
    from vidqa.preflight.fix import fix_annotations
    from vidqa.preflight.gpus import Declared
    from vidqa.preflight.report import preflight

    o = options
    if o.only:
        of_all = {"spec", "action", "platform", "site", "engine", "only", "fix"}
        parser.refuse_unused(o, {*of_all, *USED[o.only]}, f"--only {o.only}")
    platform(o.platform)  # reports a mistyped name before videos are decoded
    more = {"evaluate_spec": o.evaluate_spec, "kpi_root": o.kpi_root, "engine": o.engine}
    more["declared"] = Declared(o.gpu_count, o.gpu_memory_gb, o.gpu_arch)
    more["resources"] = Resources(nodes=o.nodes, image=o.image, site=o.site)
    report = preflight(o.spec, o.platform, o.action, o.only, o.probe_sample, **more)
    result = Result(report.as_dict(), report.text, report.problems)
    if o.fix:
        fixed = fix_annotations(o.spec, report.action, o.fix)
        result.data["fix"] = fixed.as_dict()
        result.text += f"\n\n{fixed.text}"
        use = [word for key, value in fixed.settings.items() for word in ("--set", f"{key}={value}")]
        result.next = [command("build_spec", report.action, "--override", o.spec, *use, "--out", o.spec)]
    elif result.code == 0:
        onward = ["--spec", o.spec, "--platform", o.platform, *repeated(o, "site", "image", "nodes", "engine")]
        measured_on = repeated(o, *SETS, *GPUS)
        by_hand = ["--dry-run", "--out", "look"] if report.facts.get("by_hand") else []
        launched = command("launch", report.action, *onward, *by_hand)
        result.next = [command("preflight", *onward, *measured_on) if o.only else launched]
    return result


def repeated(options: argparse.Namespace, *names: str) -> list[object]:
    """These options as arguments of the next command, unless they have their defaults."""
    values = {name: getattr(options, name) for name in names}
    changed = {name: value for name, value in values.items() if value != parser.get_default(name)}
    return [word for name, value in changed.items() for word in (f"--{name.replace('_', '-')}", value)]


if __name__ == "__main__":
    sys.exit(run(parser, main))
