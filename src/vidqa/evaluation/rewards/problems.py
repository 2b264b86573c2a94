"""Problems of rewards and of the questions that they are for."""

from __future__ import annotations

from vidqa.core.problem import Code, Exit

REWARD_FUNCTION = Code(
    "REWARD_FUNCTION",
    "A reward function of your own cannot be loaded, failed, took too long, or gave no number.",
    "Correct the function: FILE.py:FUNCTION(text, record, token_ids, finish_reason) -> number or (number, table); "
    "make it faster or raise engine.reward_timeout_s where the time was not enough.",
)
REWARD_REFERENCE = Code(
    "REWARD_REFERENCE",
    "The reference answer of a question gives no reward to any completion.",
    "Correct the record's last assistant turn, or use a reward that needs no such reference.",
)
REWARD_CONSTANT = Code(
    "REWARD_CONSTANT",
    "Every completion of the first step has the same reward: there is nothing to learn from.",
    "Read the samples that it shows; choose another reward, a higher temperature, or train the format first (SFT).",
    Exit.JOB_FAILED,
)
REWARD_LABELS = Code(
    "REWARD_LABELS",
    "Questions cannot be balanced: all have the same label.",
    'Set engine.balance = "none", or add questions with other answers.',
)
REWARD_FORMAT = Code(
    "REWARD_FORMAT",
    "The format of completions is rewarded, and nothing that the model is shown asks for it.",
    'Set custom.system_prompt to "Answer in this format: <think>your reasoning</think> <answer>your answer</answer>.", '
    "or ignore this if the model was fine-tuned to answer so.",
)
