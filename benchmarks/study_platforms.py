"""One study with the real engine on every platform: the same trials, the same table?

    python benchmarks/study_platforms.py --out DIR

Three trials of a tiny model, two at a time, by nsga2 with two goals: `val/avg_loss`, which the training measures, and
`accuracy` of an evaluation, which is a job of its own. Run by scripts/run_automl.py as processes of this machine, in
containers of a Docker daemon (the image of docker/build.sh), on a SLURM with two nodes, and in pods of the tests'
stand-in for a Kubernetes cluster; daemons are those of the tests, started where there are none. Ends with exit code 1
where a table differs from that of the first platform: accuracies at all, losses by more than 1e-5 of their size.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(ROOT / "tests")]

import tomli_w
from commands import build, script
from ledger import Ledger, arguments, table
from tiny_world import tiny_data, tiny_model, tiny_spec

from tests.platforms.daemons import docker_address, engine_image
from tests.platforms.kubernetes_api import cluster
from tests.platforms.slurm_cluster import started
from vidqa.contract.environment import adopt
from vidqa.automl.study import history_of

TRIALS, STEPS = 3, 20
RATE = "train.optm_lr"
CLOSE = 1e-5  # of a loss: threads of other numbers sum in another order


@contextmanager
def local(folder: Path) -> Iterator[list[str]]:
    yield ["platform=local"]


@contextmanager
def docker(folder: Path) -> Iterator[list[str]]:
    with docker_address() as address:
        adopt({"DOCKER_HOST": address})
        site = written(folder, {"docker": {"network": "host", "ulimits": {}}})
        yield ["platform=docker", f"resources.image={engine_image(address)}", f"resources.site={site}"]


@contextmanager
def slurm(folder: Path) -> Iterator[list[str]]:
    with started() as nodes:
        adopt({"SLURM_CONF": str(nodes.conf)})
        yield ["platform=slurm"]


@contextmanager
def kubernetes(folder: Path) -> Iterator[list[str]]:
    site = {"python": sys.executable, "volumes": [{"mount_path": "/", "host_path": "/"}]}
    with cluster(folder / "cluster") as api:
        adopt({"KUBECONFIG": str(api.kubeconfig)})
        sets = ["platform=kubernetes", "resources.image=engine:1"]
        yield [*sets, f"resources.site={written(folder, {'kubernetes': site})}"]


PLACES: dict[str, Callable[[Path], AbstractContextManager[list[str]]]] = {
    "local": local,
    "docker": docker,
    "slurm": slurm,
    "kubernetes": kubernetes,
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--platforms", nargs="+", choices=PLACES, default=list(PLACES))
    options = parser.parse_args()
    out = options.out.absolute()
    adopt({"VIDQA_STATE_DIR": str(out / "state"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    ledger = Ledger("study_platforms", options)
    train, evaluate = specs(out, 2 if options.tiny else STEPS)
    first: list[dict[str, Any]] = []
    for name in options.platforms:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        with PLACES[name](folder) as sets:
            row = carried_out(folder / "study", train, evaluate, sets)
        first = first or row["trials"]
        ledger.add({"platform": name, "same": same(row["trials"], first), **row})
        print(table([ledger.rows[-1]], without=("trials",)), table(row["trials"]), "", sep="\n", flush=True)
    if not all(row["same"] for row in ledger.rows):
        sys.exit("a table differs from that of the first platform")


def specs(out: Path, steps: int) -> tuple[Path, Path]:
    """Specs of training and evaluation on clips of a few frames."""
    (out / "inputs").mkdir(parents=True, exist_ok=True)
    model, data = tiny_model(out / "inputs"), tiny_data(out / "inputs", clips=6, images=0, texts=0)
    values = {"train.epoch": 1000, "train.max_num_steps": steps, "validation.enable": True, "validation.freq": steps}
    values |= {"train.ckpt.save_freq": steps, "train.train_policy.dataset.test_size": 0.25}
    train = tiny_spec(out / "inputs", model, data, values)
    asked = {"model.dtype": "float32", "generation.max_tokens": 8, "vision.nframes": 4, "num_gpus": 1}
    where = ("--eval-root", data, "--model", model, "--results-dir", out / "runs")
    build("evaluate", out / "inputs/evaluate.toml", asked, *where)
    return train, out / "inputs/evaluate.toml"


def carried_out(study: Path, train: Path, evaluate: Path, sets: list[str]) -> dict[str, Any]:
    """What came of a study, gone on with where an earlier call began it."""
    if not (study / "study.toml").exists():
        goals = ("--metric", "val/avg_loss:minimize", "--metric", "accuracy:maximize", "--algorithm", "nsga2")
        kept = ("--fix", "train.train_batch_per_replica=4", "--fix", "train.optm_weight_decay=0.0")
        kept = (*kept, "--fix", "train.epoch=1000", "--range", f"{RATE}=3e-4..1e-2:log")
        words = [word for each in ("finals.seeds=[]", "resources.gpus=0", *sets) for word in ("--set", each)]
        inputs = ("--spec", train, "--evaluate", evaluate, "--trials", TRIALS, "--concurrent", 2)
        # Platforms are compared, not models: what trains is measured as well, which plan calls an error.
        script("run_automl", "plan", "--study", study, *inputs, *goals, *kept, *words, codes=(0, 2))
    found = script("run_automl", "start", "--study", study, "--wait")
    script("run_automl", "report", "--study", study)
    history = history_of(study)[0]
    trials = [
        {"trial": each.number, "state": each.state, **each.values, "goals": list(each.measured[-1].objectives)}
        for each in history.trials
        if each.measured
    ]
    best = json.loads((study / "best.json").read_text())
    written = sorted(name for name in ("best_spec.toml", "report.html") if (study / name).stat().st_size)
    row = {"state": found["state"], "jobs": len(history.work), "winner": history.winner, "written": written}
    return {**row, "train_run": Path(best["train_run"]).exists(), "s": history.elapsed_s, "trials": trials}


def same(trials: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    """Whether two tables are equal: values, states and accuracies exactly, losses nearly."""

    def apart(row: dict[str, Any]) -> tuple[dict[str, Any], float]:
        loss, accuracy = row["goals"]
        return {**row, "goals": accuracy}, loss

    pairs = zip(map(apart, trials), map(apart, others), strict=False)
    equal = all(one == two and math.isclose(a, b, rel_tol=CLOSE) for (one, a), (two, b) in pairs)
    return equal and len(trials) == len(others) == TRIALS


def written(folder: Path, site: dict[str, Any]) -> Path:
    path = folder / "site.toml"
    path.write_text(tomli_w.dumps(site))
    return path


if __name__ == "__main__":
    main()
