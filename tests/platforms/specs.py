"""Train specs for the stand-in engine, with a model folder and annotations that are just there; and Docker's site."""

from __future__ import annotations

from pathlib import Path

from tests.platforms import stand_in


def write_docker_site(folder: Path, more: str = "") -> Path:
    """Settings with which a daemon of the tests runs the stand-in engine; `more` are other keys of [docker]."""
    path = folder / "site.toml"
    path.write_text(f'[docker]\nnetwork = "host"\nulimits = {{}}\nread_only = ["{stand_in.ENGINE.parent}"]\n{more}\n')
    return path


def write_spec_in(folder: Path, manner: str, processes: int = 1, more: str = "", name: str = "") -> Path:
    """A spec whose stand-in engine has the given manner; `more` are keys of [train]."""
    (folder / "model").mkdir(exist_ok=True)
    if not (folder / "model/config.json").exists():
        (folder / "model/config.json").write_text("{}")
        (folder / "annotations.json").write_text("[]")
    path = folder / f"{name or manner}.toml"
    path.write_text(
        f"""
        [policy]
        model_name_or_path = "{folder / "model"}"
        [policy.parallelism]
        dp_shard_size = {processes}
        [custom.train_dataset]
        annotation_path = "{folder / "annotations.json"}"
        media_path = "{folder}"
        [logging]
        experiment_name = "{manner}"
        [train]
        output_dir = "{folder / "runs"}"
        {more}
        """
    )
    return path
