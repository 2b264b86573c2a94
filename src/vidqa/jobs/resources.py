"""Platform resources of a job, beyond its spec: the options of launch.py, and a table of a study and of a DEFT loop.

[resources]  # of study.toml; a loop has the same keys in the table `where` of its settings
nodes = 2
site = "site.toml"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Resources(BaseModel):
    """The options of scripts/launch.py for resources."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    nodes: int = Field(default=1, ge=1, description="Number of nodes of a job.")
    gpus: int | None = Field(default=None, ge=0, description="GPUs per node, if not visible from this machine; 0: CPU.")
    image: str | None = Field(default=None, description="Engine image.")
    site: Annotated[Path | None, Field(strict=False), BeforeValidator(lambda path: path or None)] = Field(
        default=None, description="File of site settings."
    )
    agreed: bool = Field(default=False, description="Agree to the image that config.json records: --yes.")
