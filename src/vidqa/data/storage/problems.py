"""Problems of fetching from S3 and the hub, and of uploading to them."""

from vidqa.core.problem import Code, Exit

ADDRESS = Code(
    "STORAGE_ADDRESS",
    "An address is not of the form s3://bucket/path, or a name leads out of the folder it is in.",
    "Write s3://bucket/path; name media relative to the media path, without `..` and without an address.",
)
NOT_FOUND = Code(
    "STORAGE_NOT_FOUND",
    "The bucket has no object that the spec or the annotations name.",
    "Correct the address, or put the object there: aws s3 ls ADDRESS",
)
DENIED = Code(
    "STORAGE_DENIED",
    "A bucket or the hub does not let these credentials read or write there, or there are none.",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), or HF_TOKEN, to ones that may; accept the "
    "agreement of "
    "a gated model on its page.",
    Exit.ENVIRONMENT,
)
UNREACHABLE = Code(
    "STORAGE_UNREACHABLE",
    "A storage or the hub does not answer, or failed in the middle of a transfer.",
    "Check the network, AWS_ENDPOINT_URL and HF_ENDPOINT and run this again: what has arrived is not transferred "
    "twice. A "
    "spec may name a local folder of the model instead.",
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
    "The disk has no room for what is to be fetched, or refuses it.",
    "Free disk space, or let VIDQA_CACHE_DIR (HF_HOME for what the hub keeps) name a folder with enough of it.",
    Exit.ENVIRONMENT,
)
NOTHING_TO_UPLOAD = Code(
    "STORAGE_NOTHING_TO_UPLOAD",
    "There is no run folder, no destination, or nothing in it that could be uploaded.",
    "Name a run folder with results, and a destination: --s3 s3://bucket/prefix or --hub organisation/name.",
    Exit.USAGE,
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
HUB_NOT_FOUND = Code(
    "HUB_NOT_FOUND",
    "The hub has no model, or no revision of it, by this name.",
    "Check the spelling: hf_model://organisation/name or hf_model://organisation/name@revision.",
)
HUB_ANSWER = Code(
    "HUB_ANSWER",
    "The hub's answer is not of the form that a hub gives, or it lists a file whose name is not safe to write.",
    "Nothing was written or removed. Check HF_ENDPOINT; tell the owner of the repository, and use another one.",
)
TO_FETCH = Code(
    "STORAGE_TO_FETCH",
    "Data in a bucket, or a model of the hub, are not on this machine yet.",
    "Nothing: a launch fetches them by itself. To submit what a dry run wrote, fetch them before, as `next` says.",
)
