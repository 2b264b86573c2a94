"""Problems of finding and fetching a model."""

from vidqa.contract.problem import Code, Exit

MODEL_NOT_FOUND = Code(
    "MODEL_NOT_FOUND",
    "The model that the spec names is neither a folder on this machine nor a name on the hub.",
    "Write the path of a local model folder, or hf_model://organisation/name to fetch it.",
)
MODEL_TO_FETCH = Code(
    "MODEL_TO_FETCH",
    "The model is on the hub, and its weights are not on this machine yet.",
    "Nothing: a launch fetches it by itself. To submit what a dry run wrote, fetch it before, as `next` says.",
)
HUB_GATED = Code(
    "HUB_GATED",
    "The hub does not give this model to the token in HF_TOKEN (or to nobody's token, where it is not set).",
    "Accept the model's agreement on its page, set HF_TOKEN to a token that may read it, and run this again.",
    Exit.ENVIRONMENT,
)
HUB_NOT_FOUND = Code(
    "HUB_NOT_FOUND",
    "The hub has no model, or no revision of it, by this name.",
    "Check the spelling: hf_model://organisation/name or hf_model://organisation/name@revision.",
)
HUB_UNREACHABLE = Code(
    "HUB_UNREACHABLE",
    "The hub did not answer, or answered that it cannot now, and was asked a few times only.",
    "Check the network and HF_ENDPOINT and run this again, or name a local folder of the model in the spec.",
    Exit.ENVIRONMENT,
)
HUB_CACHE_UNWRITABLE = Code(
    "HUB_CACHE_UNWRITABLE",
    "The model could not be stored in the hub's cache folder on this machine.",
    "Free disk space, or let HF_HOME name a folder with enough of it.",
    Exit.ENVIRONMENT,
)
HUB_ANSWER = Code(
    "HUB_ANSWER",
    "The hub's answer is not of the form that a hub gives, or it lists a file whose name is not safe to write.",
    "Nothing was written or removed. Check HF_ENDPOINT; tell the owner of the repository, and use another one.",
)
