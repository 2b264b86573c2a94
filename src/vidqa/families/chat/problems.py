"""Problems of a model's chat template, and of records that it cannot render."""

from vidqa.core.problem import Code

TEMPLATE_BROKEN = Code(
    "CHAT_TEMPLATE_BROKEN",
    "The model's chat template cannot be read, or fails on a conversation.",
    "Use the chat template that belongs to the model: copy chat_template.jinja or .json from the model's repository.",
)
TEMPLATE_UNSTABLE = Code(
    "CHAT_TEMPLATE_UNSTABLE",
    "The chat template writes the start of a conversation differently once more turns follow, or marks no end of a "
    "turn, so what is learned cannot be told from what is given.",
    "Use response_mode `answer`, records of one question each, or a chat template that only appends turns.",
)
TEMPLATE_MEDIA = Code(
    "CHAT_TEMPLATE_MEDIA",
    "The chat template does not write one placeholder token, between special tokens, for each video and image.",
    "Use the chat template that belongs to the model, and media only in user turns.",
)
SPECIAL_TOKEN_IN_TEXT = Code(
    "CHAT_SPECIAL_TOKEN_IN_TEXT",
    "A text of a record holds one of the model's control tokens; the model would take it for the end of a turn or for "
    "a video.",
    "Remove the token from the text, or write it with a space, for example <| im_end |>.",
)
THINK_MISSING = Code(
    "CHAT_THINK_MISSING",
    "With response_mode `think` every learned answer must begin with its reasoning, and one does not.",
    "Begin the answer with <think>...</think>, or set response_mode to `answer` or `hybrid`.",
)
ANSWER_EMPTY = Code(
    "CHAT_ANSWER_EMPTY",
    "Nothing is left of an answer once its reasoning is removed.",
    "Write the answer after </think>, or set response_mode to `think` or `hybrid`.",
)
