"""Problem codes of the DEFT loop."""

from vidqa.core.problem import Code, Exit

DEFT_FOLDER = Code(
    "DEFT_FOLDER",
    "The folder holds no loop, another loop than the options say, or something else where one is to begin.",
    "Begin one in a folder of its own: run_deft.py init LOOP --train-spec FILE --evaluate-spec FILE --selection DIR "
    "--pool DIR.",
    Exit.USAGE,
)
DEFT_SETTING = Code(
    "DEFT_SETTING",
    "A setting or option of the loop is unknown, or has a value that it cannot have.",
    "workflow/deft/deft.md lists the settings.",
    Exit.USAGE,
)
DEFT_LOG_BROKEN = Code(
    "DEFT_LOG_BROKEN",
    "A line of the loop's log is not one that the loop has written, or the last one was cut off (a warning).",
    "Restore deft_log.jsonl from a copy, or cut it off before that line; what later lines say is then done again.",
)
DEFT_BUSY = Code(
    "DEFT_BUSY",
    "Another program runs this loop.",
    "Wait until it is over, or stop it first; run_deft.py status works at any time.",
    Exit.NOT_DONE,
)
DEFT_GATE = Code(
    "DEFT_GATE",
    "A stage cannot go on with what it has found.",
    "Correct what the problems name, or delete a file of the loop that is damaged: the stage that writes it runs "
    "again. Then run the loop again: it goes on with this stage.",
)
