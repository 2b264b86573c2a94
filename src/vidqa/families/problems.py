"""Problems of a model folder, of its chat template, and of records that the template cannot render."""

from vidqa.core.problem import Code

MODEL_BROKEN = Code(
    "MODEL_BROKEN",
    "A file that a model folder must have is missing, broken, or does not hold what the others say, such as the "
    "weights of the model that its config describes.",
    "Download or export the model again, whole: config.json, tokenizer, chat template, processor files, safetensors; "
    "for an adapter give model.base_model_path and model.enable_lora.",
)
MODEL_UNSUPPORTED = Code(
    "MODEL_UNSUPPORTED",
    "The model's architecture is not one this program trains.",
    "Use a Qwen3-VL architecture (nvidia/Cosmos-Reason2-8B or -2B, Qwen3-VL, a converted Cosmos3-Nano) or a Qwen2.5-VL "
    "one (nvidia/Cosmos-Reason1-7B, Qwen2.5-VL). references/families.md says how Cosmos3-Nano is converted.",
)
MODEL_QUANTIZED = Code(
    "MODEL_QUANTIZED",
    "The model's weights are quantized. Such a model is not trained, merged, adapted or quantized again; models that "
    "compressed-tensors reads answer questions.",
    "Train, merge, adapt or quantize the model as it was before, in bfloat16, float16 or float32. A folder in the "
    "format of compressed-tensors can be evaluated, compared, served and uploaded: scripts/launch.py with an evaluate "
    "spec, infer.py, serve.py, upload.py.",
)
ADAPTER_MISMATCH = Code(
    "MODEL_ADAPTER_MISMATCH",
    "The adapter that training would continue was not made for this base model and these targets.",
    "Name the base model that the adapter was trained on in policy.model_name_or_path, and leave rank and targets out: "
    "they are taken from the adapter. For another base model, leave policy.lora.lora_path out.",
)
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
SAMPLE_ANSWERS = Code(
    "SAMPLE_ANSWERS",
    "The answers of the data do not fit the objective or response_mode: a training sample has no token to learn from, "
    "no reasoning with `think`, nothing else with `answer`, or no pair of answers, or one that is not used.",
    "Give the record an answer that response_mode keeps, <think>...</think> and what follows, or set response_mode to "
    '`hybrid`. With engine.objective = "dpo" every record also has a rejected answer that differs from it '
    '(assemble_dataset.py --pairs writes them); train other records with engine.objective = "sft".',
)
