"""Problems of a model folder, of its chat template, and of records that the template cannot render."""

from vidqa.core.problem import Code

MODEL_BROKEN = Code(
    "MODEL_BROKEN",
    "A required file of a model folder is missing or broken, or contradicts another file, for example weights that do "
    "not match the config.",
    "Download or export the complete model again: config.json, tokenizer, chat template, processor files, safetensors; "
    "for an adapter set model.base_model_path and model.enable_lora.",
)
MODEL_UNSUPPORTED = Code(
    "MODEL_UNSUPPORTED",
    "The model's architecture is not supported.",
    "Use a Qwen3-VL architecture (nvidia/Cosmos-Reason2-8B or -2B, Qwen3-VL, a converted Cosmos3-Nano) or a Qwen2.5-VL "
    "one (nvidia/Cosmos-Reason1-7B, Qwen2.5-VL). references/families.md has the conversion of Cosmos3-Nano.",
)
MODEL_QUANTIZED = Code(
    "MODEL_QUANTIZED",
    "The model's weights are quantized. Such a model cannot be trained, merged, adapted or quantized again; in the "
    "format of compressed-tensors it can answer questions.",
    "Train, merge, adapt or quantize the original model in bfloat16, float16 or float32. A folder in the format of "
    "compressed-tensors can be evaluated, compared, served and uploaded: scripts/launch.py with an evaluate spec, "
    "scripts/infer.py, scripts/serve.py, scripts/upload.py.",
)
ADAPTER_MISMATCH = Code(
    "MODEL_ADAPTER_MISMATCH",
    "The adapter to continue from was trained with another base model or other target modules.",
    "Set policy.model_name_or_path to the adapter's base model, and remove rank and targets: they are read from the "
    "adapter. For another base model, remove policy.lora.lora_path.",
)
TEMPLATE_BROKEN = Code(
    "CHAT_TEMPLATE_BROKEN",
    "The model's chat template cannot be read, fails on a conversation, does not write one placeholder token, between "
    "special tokens, for each video and image, or marks no end of a turn, so that the trained tokens cannot be "
    "located.",
    "Use the chat template that belongs to the model: copy chat_template.jinja or .json from the model's repository. "
    "Put media in user turns only.",
)
SPECIAL_TOKEN_IN_TEXT = Code(
    "CHAT_SPECIAL_TOKEN_IN_TEXT",
    "A text of a record contains a control token of the model, which would be read as the end of a turn or as a video.",
    "Remove the token from the text, or write it with spaces, for example <| im_end |>.",
)
SAMPLE_ANSWERS = Code(
    "SAMPLE_ANSWERS",
    "The answers do not fit the objective or response_mode: a training sample has no trained token, no reasoning for "
    "`think`, nothing but reasoning for `answer`, or no pair of answers, or a pair that is not used.",
    "Give the record an answer that response_mode keeps, <think>...</think> followed by the answer, or set "
    'response_mode to `hybrid`. With engine.objective = "dpo" every record also needs a different rejected answer '
    '(python scripts/assemble_dataset.py --pairs writes them); train other records with engine.objective = "sft".',
)
