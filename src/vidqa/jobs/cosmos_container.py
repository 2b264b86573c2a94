"""Files for a training in NVIDIA's cosmos-rl container: its TOML, and the script or manifest that starts it.

cosmos-rl writes no status.json, stops without saving and cannot be observed like our jobs. So the files are rendered
but never submitted from here; a spec that the container cannot run is refused.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml

from vidqa import spec
from vidqa.core import actions, files
from vidqa.core.cli import refused_writes
from vidqa.core.problem import Problem, raise_errors
from vidqa.jobs.job_spec import JobSpec, fetch_weights, load_job_spec, process_count
from vidqa.jobs.launch import Ready, as_offline_warnings, job_of, unchecked
from vidqa.jobs.platforms import platform, site, slurm_script
from vidqa.jobs.platforms._base import RUN_SCRIPT, SUBMIT_SCRIPT, Job, Rendered
from vidqa.jobs.platforms.kubernetes.manifest import SPEC_MOUNT, escaped_words, literal_variables, object_name, objects
from vidqa.jobs.platforms.kubernetes.site import in_pod, path_problems
from vidqa.jobs.platforms.mounts import mounts
from vidqa.jobs.platforms.slurm import unseen
from vidqa.jobs.platforms.slurm_script import image_problems
from vidqa.jobs.problems import PLATFORM_IMAGE_UNUSED
from vidqa.jobs.resources import Resources
from vidqa.jobs.runs import new_name
from vidqa.spec.cosmos import cosmos_table, video_fps_problems
from vidqa.spec.models import TrainSpec
from vidqa.spec.problems import NOT_SUPPORTED
from vidqa.spec.schedule import train_samples

TARGET = "cosmos-rl"
TOML = "cosmos.toml"
PROGRAM = "/opt/cosmos_rl/tao_sft_example.py"  # the training program of NVIDIA's image; custom_script replaces it
# No token is passed, and no module is imported from the working folder.
SETTINGS = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
# Modules beside the training program can still be imported, before those on the image's path.
BESIDE = ("sh", "-c", 'PYTHONPATH=$0${PYTHONPATH:+:$PYTHONPATH} exec "$@"')


@dataclass(frozen=True)
class ContainerFiles:
    """The files by name, to be written to `folder`. `submit` is the shell command that starts the training, once the
    files are `written` and the commands of `fetch` have run. `preflight` is as in launch.Readiness."""

    folder: Path
    files: dict[str, str]
    submit: str
    problems: list[Problem]
    written: bool
    preflight: str
    fetch: tuple[str, ...] = ()


def prepare(
    action: str, spec_path: Path, platform_name: str, resources: Resources, *, write: bool, ready: Ready = unchecked
) -> ContainerFiles:
    """Render a training for a platform, and with `write` write its files into a folder below the output folder.

    Raises ProblemError with every feature that cosmos-rl lacks.
    """
    if not actions.action(action).cosmos:
        raise NOT_SUPPORTED.error(action, "only training is rendered for the container", "use the native engine")
    settings = site.read(platform_name, resources.site)
    job_spec = load_job_spec(action, spec_path, fetch=write, target=TARGET, settings=settings)
    trained = cast(TrainSpec, job_spec.resolved)
    samples = train_samples(trained)
    table_problems = cosmos_table(trained, samples)[1]
    image = resources.image or getattr(settings, "image", "")  # local and docker have no such setting
    problems = [
        *job_spec.warnings,
        *table_problems,
        *video_fps_problems(trained),
        *_refused(platform_name, settings, resources, image),
    ]
    raise_errors(problems)
    readiness = ready(job_spec, spec_path, platform_name, resources, fetch=write)
    if write:
        raise_errors(readiness.problems)
        fetch_weights(job_spec)
    job = _job(job_spec, platform_name, settings, image)
    unmountable = _unmountable(platform_name, job)
    problems += unmountable if write else as_offline_warnings(platform(platform_name), unmountable)
    raise_errors(problems)
    problems = [*dict.fromkeys([*problems, *readiness.problems])]  # without `write` only shown
    words = _command(job, trained.custom_script or PROGRAM)
    texts = {TOML: spec.dump(trained, "toml", TARGET, samples)}
    script, text, starter = _FORMS[platform_name](job, words, texts[TOML])
    texts[script] = text
    submit = f"{starter} {shlex.quote(str(job.run_dir / script))}"
    if platform_name == "slurm" and site.is_unseen(settings, job.run_dir):
        texts[SUBMIT_SCRIPT] = slurm_script.submit_script(job, tuple(texts), script)
        submit = f"bash {SUBMIT_SCRIPT}"
    if write:
        with refused_writes(job.run_dir):
            for name, content in texts.items():
                files.write_text(job.run_dir / name, content)
    return ContainerFiles(job.run_dir, texts, submit, problems, write, readiness.preflight, job_spec.fetch)


def _command(job: Job, program: str) -> tuple[str, ...]:
    """The command of cosmos-rl with its training program: a file, whose path is made absolute, or a module's name."""
    start = ("cosmos-rl", "--config", str(job.run_dir / TOML))
    if not program.endswith(".py"):
        return (*start, program)
    program = os.path.abspath(program)
    return (*BESIDE, os.path.dirname(program), *start, program)


def _refused(platform_name: str, settings: Any, resources: Resources, image: str | None) -> list[Problem]:
    problems = []
    if resources.nodes > 1:
        message = f"{resources.nodes} nodes need a controller that starts replicas on the others"
        problems.append(NOT_SUPPORTED.at("--nodes", message, "use one node, or the native engine"))
    if platform_name not in ("local", "slurm") and not image:
        remedy = "give NVIDIA's image with --image"
        problems.append(NOT_SUPPORTED.at("--image", "the native engine's image does not contain cosmos-rl", remedy))
    if platform_name == "slurm" and resources.image and settings.backend == "venv":
        message = "the backend is venv: the nodes' own cosmos-rl would run, not the image's"
        problems.append(PLATFORM_IMAGE_UNUSED.at("--image", message))
    return problems


def _unmountable(platform_name: str, job: Job) -> list[Problem]:
    if platform_name == "slurm":
        return [*image_problems(job.settings, job.image or ""), *unseen(job), *slurm_script.unmountable(job)]
    if platform_name == "kubernetes":
        return path_problems(job)
    mounted = [mount.path for mount in mounts(job)] if platform_name == "docker" else []
    remedy = "rename the folder, or use the native engine"
    return [
        NOT_SUPPORTED.at(path, "docker run separates paths by colons", remedy) for path in mounted if ":" in str(path)
    ]


def _job(job_spec: JobSpec, platform_name: str, settings: Any, image: str | None) -> Job:
    name = new_name(job_spec.spec_fingerprint, {path.name for path in job_spec.output_dir.glob("*")})
    resources = Resources(gpus=process_count(job_spec.spec), image=image)
    return job_of(job_spec, platform(platform_name), settings, resources, job_spec.output_dir / name, name)


def _local(job: Job, words: tuple[str, ...], _: str) -> tuple[str, str, str]:
    return RUN_SCRIPT, f"#!/bin/bash\nexec {Rendered(words, SETTINGS).shown}\n", "bash"


def _docker(job: Job, words: tuple[str, ...], _: str) -> tuple[str, str, str]:
    """One `docker run` in the foreground, with every path of the spec mounted at the same path."""
    options = [f"--name={object_name(job.job_id)}", "--rm", f"--gpus={job.gpus}", "--ipc=host", "--ulimit=memlock=-1"]
    options += [f"--env={name}={value}" for name, value in SETTINGS.items()]
    options += [f"--volume={mount.path}:{mount.path}" + ":ro" * mount.read_only for mount in mounts(job)]
    return RUN_SCRIPT, f"#!/bin/bash\nexec {shlex.join(['docker', 'run', *options, job.image or '', *words])}\n", "bash"


def _slurm(job: Job, words: tuple[str, ...], _: str) -> tuple[str, str, str]:
    """One task on one node, in the container of the site's settings if any."""
    task = slurm_script.in_container(job, shlex.join(words))
    exports = [f"export {name}={shlex.quote(value)}" for name, value in SETTINGS.items()]
    body = ["set -e", f"run={shlex.quote(str(job.run_dir))}", *job.settings.setup, *exports, f"exec srun {task}"]
    lines = ["#!/bin/bash", *slurm_script.directives(job, restarts=False), *body]
    return "job.sbatch", "\n".join(lines) + "\n", "sbatch"


def _kubernetes(job: Job, words: tuple[str, ...], toml: str) -> tuple[str, str, str]:
    """The manifest of an ordinary job with another program, which is never restarted."""
    config, main = objects(job)
    if main["kind"] != "Job":
        raise NOT_SUPPORTED.error("form", "a TrainJob starts torchrun, the container does not", 'set form = "job"')
    config["data"] = {TOML: in_pod(replace(job, spec_toml=toml)).spec_toml}
    words = tuple(f"{SPEC_MOUNT}/{TOML}" if word == str(job.run_dir / TOML) else word for word in words)
    main["spec"] = {name: value for name, value in main["spec"].items() if name in ("template", "suspend")}
    main["spec"]["backoffLimit"] = 0
    container = main["spec"]["template"]["spec"]["containers"][0]
    container["command"] = escaped_words(words)
    container["env"] = literal_variables({**SETTINGS, **job.settings.environment})
    return "manifest.yaml", yaml.safe_dump_all([config, main], sort_keys=False, width=120), "kubectl apply -f"


_FORMS = {"local": _local, "docker": _docker, "slurm": _slurm, "kubernetes": _kubernetes}
