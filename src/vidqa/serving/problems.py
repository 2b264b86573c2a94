"""Problems of a server, and of what clients send it."""

from vidqa.contract.problem import Code, Exit

EXPOSED = Code(
    "SERVE_EXPOSED",
    "Other machines could reach the server, and it would ask nobody for a key.",
    "Set VIDQA_API_KEY in the environment, or leave --host out: then only this machine reaches the server.",
    Exit.USAGE,
)
KEY_SHORT = Code(
    "SERVE_KEY_SHORT",
    "The key in VIDQA_API_KEY could be guessed, and is too short to be kept out of logs.",
    "Set a longer one, for example that of `openssl rand -hex 24`.",
    Exit.USAGE,
)
ADDRESS = Code(
    "SERVE_ADDRESS",
    "The address or port is taken, or is none of this machine's.",
    "Give another --port, or end what listens there.",
    Exit.ENVIRONMENT,
)
FAILED = Code(
    "SERVE_FAILED",
    "What generates answers has stopped; the server ends.",
    "Read the log of the server, and start it again.",
    Exit.JOB_FAILED,
)
OPTION = Code(
    "SERVE_OPTION",
    "An option of the server has a value that it cannot have.",
    "Correct it; references/serving.md says what they mean.",
    Exit.USAGE,
)
REQUEST = Code(
    "SERVE_REQUEST",
    "A request is not one of those that the server answers.",
    "Correct the field that the problem names; references/serving.md lists them all.",
)
BODY = Code(
    "SERVE_BODY",
    "The body of a request is not JSON, or does not come.",
    "Send one JSON object with Content-Type application/json.",
)
BODY_TOO_LARGE = Code(
    "SERVE_BODY_TOO_LARGE",
    "The body of a request is larger than the server takes.",
    "Name large videos by file:// or https:// instead of sending them, or start the server with a larger "
    "--max-body-mb.",
)
UNAUTHORIZED = Code(
    "SERVE_UNAUTHORIZED",
    "The request has not the key that the server asks for, or names it by a host that is not its own.",
    "Send `Authorization: Bearer KEY` with the key that the server was started with.",
)
NOT_FOUND = Code(
    "SERVE_NOT_FOUND",
    "The server has no such address, or no such model.",
    "GET /v1/models lists the one model that it has.",
)
BUSY = Code(
    "SERVE_BUSY",
    "As many requests as the server takes are waiting for their turn.",
    "Try again in a moment, as OpenAI's client does by itself; or start the server with a larger --queue.",
    Exit.NOT_DONE,
)
STOPPING = Code(
    "SERVE_STOPPING",
    "The server is ending and answers nothing more.",
    "Send the request again when it has been started.",
    Exit.NOT_DONE,
)
MEDIA_REFUSED = Code(
    "SERVE_MEDIA_REFUSED",
    "The server was not started to read from there: files and hosts are allowed one by one, and private addresses only "
    "as such.",
    "Send the medium as a data URL, or start the server with --allow-path FOLDER or --allow-host HOST.",
)
MEDIA_UNAVAILABLE = Code(
    "SERVE_MEDIA_UNAVAILABLE",
    "A medium could not be had from where the request says that it is.",
    "Check that the address gives the file itself, at once and without another address behind it.",
)
MEDIA_UNWRITABLE = Code(
    "SERVE_MEDIA_UNWRITABLE",
    "The server cannot keep a medium while it answers: its disk is full, or its folder is not writable.",
    "Make room where the server's temporary files are, or start it with TMPDIR on another disk; then send the request "
    "again.",
    Exit.NOT_DONE,
)
MEDIA_TOO_LARGE = Code(
    "SERVE_MEDIA_TOO_LARGE",
    "A medium has more bytes, pixels or frames than the server takes.",
    "Cut or scale it down, or start the server with a larger --max-media-mb.",
)
CONSTRAINT = Code(
    "SERVE_CONSTRAINT",
    "The form that the answer shall have is not one that can be kept to.",
    "Use a JSON schema without references to other files, or choices that are not empty.",
)
