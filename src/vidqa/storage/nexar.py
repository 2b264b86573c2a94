"""Questions about the dash-cam videos of nexar_collision_prediction: what the weather is in each."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from vidqa.contract.files import write_json

METADATA = "metadata.csv"
QUESTION = "What is the weather in this video? Choose from ['Rain', 'Cloudy', 'Snow', 'Clear']."


def write_annotations(folder: Path, split: str = "train") -> Path:
    """Write annotations.json of a split's videos whose weather is known; every folder with a metadata.csv is read."""
    rows: list[dict[str, Any]] = []
    for table in sorted((folder / split).rglob(METADATA)):
        with table.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file):
                name, weather = row.get("file_name"), row.get("weather")
                if name and weather and (table.parent / name).is_file():
                    video = str((table.parent / name).relative_to(folder))
                    turns = [{"from": "human", "value": f"<video>\n{QUESTION}"}, {"from": "gpt", "value": weather}]
                    rows.append({"id": video, "video": video, "kind": "weather", "conversations": turns})
    write_json(folder / "annotations.json", rows)
    return folder / "annotations.json"
