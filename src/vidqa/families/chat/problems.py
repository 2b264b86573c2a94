"""Problems of a model's chat template, and of records that it cannot render."""

from vidqa.core.problem import Code

TEMPLATE_BROKEN = Code(
    "CHAT_TEMPLATE_BROKEN",
    "The model's chat template cannot be read, fails on a conversation, does not write one placeholder token, between "
    "special tokens, for each video and image, or marks no end of a turn, so that what is learned cannot be found.",
    "Use the chat template that belongs to the model: copy chat_template.jinja or .json from the model's repository. "
    "Media stand in user turns only.",
)
SPECIAL_TOKEN_IN_TEXT = Code(
    "CHAT_SPECIAL_TOKEN_IN_TEXT",
    "A text of a record holds one of the model's control tokens; the model would take it for the end of a turn or for "
    "a video.",
    "Remove the token from the text, or write it with a space, for example <| im_end |>.",
)
RESPONSE_MODE = Code(
    "CHAT_RESPONSE_MODE",
    "A learned answer lacks what response_mode asks: it has no reasoning with `think`, or nothing else with `answer`.",
    "Write the answer as <think>...</think> and what follows, or set response_mode to `hybrid`, or to what is there.",
)
