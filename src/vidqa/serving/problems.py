"""Problems of a server, and of what clients send it."""

from vidqa.core.problem import Code, Exit

EXPOSED = Code(
    "SERVE_EXPOSED",
    "Other machines could reach the server without a key.",
    "Set VIDQA_API_KEY in the environment, or leave --host out: then only this machine reaches the server.",
    Exit.USAGE,
)
KEY_SHORT = Code(
    "SERVE_KEY_SHORT",
    "The key in VIDQA_API_KEY is too short: it could be guessed, and could not be kept out of logs.",
    "Set a longer one, for example that of `openssl rand -hex 24`.",
    Exit.USAGE,
)
ADDRESS = Code(
    "SERVE_ADDRESS",
    "The address or port is in use, or is not an address of this machine.",
    "Give another --port, or end what listens there.",
    Exit.ENVIRONMENT,
)
FAILED = Code(
    "SERVE_FAILED",
    "The generator has failed; the server ends.",
    "Read the log of the server, and start it again.",
    Exit.JOB_FAILED,
)
OPTION = Code(
    "SERVE_OPTION",
    "An option of the server has an invalid value.",
    "Correct it; references/serving.md says what they mean.",
    Exit.USAGE,
)
REQUEST = Code(
    "SERVE_REQUEST",
    "A request is invalid, or asks for what the server does not support.",
    "Correct the field that the problem names; references/serving.md lists them all.",
)
BODY = Code(
    "SERVE_BODY",
    "The body of a request is not JSON, or does not arrive in time.",
    "Send one JSON object with Content-Type application/json.",
)
BODY_TOO_LARGE = Code(
    "SERVE_BODY_TOO_LARGE",
    "The body of a request is larger than the server accepts.",
    "Name large videos by file:// or https:// instead of sending them, or start the server with a larger "
    "--max-body-mb.",
)
UNAUTHORIZED = Code(
    "SERVE_UNAUTHORIZED",
    "The request lacks the server's key, or its Host header names another machine.",
    "Send `Authorization: Bearer KEY` with the key that the server was started with.",
)
NOT_FOUND = Code(
    "SERVE_NOT_FOUND",
    "The server has no such address, or no such model.",
    "GET /v1/models lists the one model that it has.",
)
BUSY = Code(
    "SERVE_BUSY",
    "The server's queue is full.",
    "Try again in a moment, as OpenAI's client does by itself; or start the server with a larger --queue.",
    Exit.NOT_DONE,
)
STOPPING = Code(
    "SERVE_STOPPING",
    "The server is ending and accepts no requests.",
    "Send the request again when it has been started.",
    Exit.NOT_DONE,
)
MEDIA_REFUSED = Code(
    "SERVE_MEDIA_REFUSED",
    "The folder or host of a medium is not allowed; a private address must be allowed as an address.",
    "Send the medium as a data URL, or start the server with --allow-path FOLDER or --allow-host HOST.",
)
MEDIA_UNAVAILABLE = Code(
    "SERVE_MEDIA_UNAVAILABLE",
    "A medium is unavailable at the address in the request.",
    "Check that the address gives the file itself, at once and without another address behind it.",
)
MEDIA_UNWRITABLE = Code(
    "SERVE_MEDIA_UNWRITABLE",
    "The server cannot store a medium: its disk is full, or its folder is not writable.",
    "Make room where the server's temporary files are, or start it with TMPDIR on another disk; then send the request "
    "again.",
    Exit.NOT_DONE,
)
MEDIA_TOO_LARGE = Code(
    "SERVE_MEDIA_TOO_LARGE",
    "A medium has more bytes, pixels or frames than the server accepts.",
    "Cut or scale it down, or start the server with a larger --max-media-mb.",
)
CONSTRAINT = Code(
    "SERVE_CONSTRAINT",
    "The requested form of the answer cannot be enforced.",
    "Use a JSON schema without references to other files, or choices that are not empty.",
)
