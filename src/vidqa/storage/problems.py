"""Problems of fetching from S3 and the hub, and of uploading to them."""

from vidqa.contract.problem import Code, Exit

ADDRESS = Code(
    "STORAGE_ADDRESS",
    "An address is not of the form s3://bucket/path, or a name leads out of the folder it is in.",
    "Write s3://bucket/path; name media relative to the media path, without `..` and without an address.",
)
TO_STAGE = Code(
    "STORAGE_TO_STAGE",
    "The data lie in a bucket and are not on this machine yet.",
    "Nothing: a launch stages them by itself. To submit what a dry run wrote, stage them before, as `next` says.",
)
NOT_FOUND = Code(
    "STORAGE_NOT_FOUND",
    "The bucket has no object that the spec or the annotations name.",
    "Correct the address, or put the object there: aws s3 ls ADDRESS",
)
DENIED = Code(
    "STORAGE_DENIED",
    "The storage does not let these credentials read or write there, or there are none.",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to ones that may.",
    Exit.ENVIRONMENT,
)
UNREACHABLE = Code(
    "STORAGE_UNREACHABLE",
    "The storage does not answer, or failed in the middle of a transfer.",
    "Check the network and AWS_ENDPOINT_URL and run this again: what has arrived is not transferred twice.",
    Exit.ENVIRONMENT,
)
DAMAGED = Code(
    "STORAGE_DAMAGED",
    "What arrived is not what was sent: its size or hash differs.",
    "Run this again; if it stays so, store the object anew.",
    Exit.ENVIRONMENT,
)
NO_SPACE = Code(
    "STORAGE_NO_SPACE",
    "The disk has no room for the data that is to be staged.",
    "Free disk space, or let VIDQA_CACHE_DIR name a folder with enough of it.",
    Exit.ENVIRONMENT,
)
NOTHING_TO_UPLOAD = Code(
    "STORAGE_NOTHING_TO_UPLOAD",
    "There is no run folder, no destination, or nothing in it that could be uploaded.",
    "Name a run folder with results, and a destination: --s3 s3://bucket/prefix or --hub organisation/name.",
    Exit.USAGE,
)
HUB_REFUSED = Code(
    "STORAGE_HUB_REFUSED",
    "The hub did not take the upload.",
    "Set HF_TOKEN to a token that may write to that repository, and run: python scripts/upload.py RUN",
    Exit.ENVIRONMENT,
)
HUB_PUBLIC = Code(
    "STORAGE_HUB_PUBLIC",
    "The repository on the hub is public, and nobody has said that the weights may be.",
    "Make it private on its page, name another one, or add --public.",
    Exit.REFUSED,
)
SUBSET = Code(
    "STORAGE_SUBSET",
    "A subset of a published data set is not there, or none is named where there are several.",
    "Name one or more of those that the message lists, behind the data set's name.",
    Exit.USAGE,
)
OCCUPIED = Code(
    "STORAGE_OCCUPIED",
    "A file of another content than the published one has its place in the folder, and this script has not written it.",
    "Nothing was changed. Name another folder, or move the file away.",
)
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
