"""A rank that joins the others as the engine does, says so, and stays for a while: python meets.py FOLDER"""

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group(backend="gloo")
values = [None] * dist.get_world_size()
dist.all_gather_object(values, os.environ["RANK"], group=group)
(Path(sys.argv[1]) / f"met-{dist.get_rank()}").write_text(" ".join(map(str, values)))
while not (Path(sys.argv[1]) / "seen").exists():
    time.sleep(0.05)
dist.barrier(group=group)
dist.destroy_process_group()
