"""A program that submits a training and waits for it, for tests that kill it: python controller.py SPEC

It prints the job's id.
"""

import sys
from pathlib import Path

from vidqa.jobs.api import submit

job = submit("train", Path(sys.argv[1]), "local")
print(job.job_id, flush=True)
job.wait()
