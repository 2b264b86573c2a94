"""Problems of preparing batches."""

from vidqa.contract.problem import Code, Exit

CACHE_DISK_FULL = Code(
    "CACHE_DISK_FULL",
    "The disk of the frame cache is full, or its quota is used up; the run goes on and decodes every time.",
    "Free space, point the cache at another disk (VIDQA_CACHE_DIR), or lower its limit.",
    Exit.ENVIRONMENT,
)
CACHE_UNUSABLE = Code(
    "CACHE_UNUSABLE",
    "The folder of the frame cache cannot be created or written.",
    "Point the cache at a folder that you may write (VIDQA_CACHE_DIR).",
    Exit.ENVIRONMENT,
)
