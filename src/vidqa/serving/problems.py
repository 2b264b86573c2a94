"""Problems of a server, and of its requests."""

from vidqa.core.problem import Code, Exit

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
REQUEST = Code(
    "SERVE_REQUEST",
    "A request is no JSON object, does not arrive in time, is invalid, or asks for what the server does not support.",
    "Send one JSON object with Content-Type application/json, and correct the field that the problem names; "
    "references/serving.md lists them all.",
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
TOO_LARGE = Code(
    "SERVE_TOO_LARGE",
    "The body of a request, or a medium, has more bytes, pixels or frames than the server accepts.",
    "Cut or scale the medium down, name a large one by file:// or https:// instead of sending it, or start the server "
    "with a larger --max-body-mb or --max-media-mb.",
)
