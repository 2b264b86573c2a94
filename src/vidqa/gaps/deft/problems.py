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
DEFT_SAME_SET = Code(
    "DEFT_SAME_SET",
    "Two of the loop's sets are one.",
    "Give selection, KPI set, test set, training set and pool folders of their own.",
)
DEFT_LOG_BROKEN = Code(
    "DEFT_LOG_BROKEN",
    "A line of the loop's log is not one that the loop has written.",
    "Restore deft_log.jsonl from a copy, or cut it off before that line; what later lines say is then done again.",
)
DEFT_LOG_TORN = Code(
    "DEFT_LOG_TORN",
    "The last line of the loop's log was cut off while it was written.",
    "Nothing needs to be done: the line is dropped, and its stage runs again.",
)
DEFT_TABLE = Code(
    "DEFT_TABLE",
    "A file that a stage of the loop has written is damaged.",
    "Delete the file, then run the loop again: the stage that writes it runs again.",
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
    "Correct what the problems name, then run the loop again: it goes on with this stage.",
)
