"""A program that submits a training and follows its metrics, for tests that kill it: python controller.py SPEC

It prints the job's id, and after it a line of JSON for each row: the position behind the row.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from vidqa.jobs.api import submit

job = submit("train", Path(sys.argv[1]), "local")
print(job.job_id, flush=True)
for row in job.metrics():
    print(json.dumps(asdict(row.position)), flush=True)
