"""Problems of naming an action."""

from vidqa.core.problem import Code

ACTION = Code(
    "SPEC_ACTION",
    "There is no spec for this action, or the spec is for another.",
    "Name the action that the spec was written for, such as train, grpo or evaluate.",
)
