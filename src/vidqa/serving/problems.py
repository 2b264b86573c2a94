"""Problems of a server, and of its requests."""

from vidqa.core.problem import Code, Exit

ADDRESS = Code(
    "SERVE_ADDRESS",
    "The address or port is in use, or the address does not belong to this machine.",
    "Give another --port, or stop the process that listens there.",
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
    "A request is not a JSON object, does not arrive in time, is invalid, or asks for an unsupported feature.",
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
    "The server has no such endpoint or no such model.",
    "Use an endpoint of references/serving.md, and the model that GET /v1/models lists.",
)
BUSY = Code(
    "SERVE_BUSY",
    "The server's queue is full.",
    "Try again shortly, as OpenAI's client does by itself; or start the server with a larger --queue.",
    Exit.NOT_DONE,
)
STOPPING = Code(
    "SERVE_STOPPING",
    "The server is shutting down and accepts no requests.",
    "Send the request again after the server has been restarted.",
    Exit.NOT_DONE,
)
MEDIA_REFUSED = Code(
    "SERVE_MEDIA_REFUSED",
    "The folder or host of a medium is not allowed; a private host must be allowed by its IP address.",
    "Send the medium as a data URL, or start the server with --allow-path FOLDER or --allow-host HOST.",
)
MEDIA_UNAVAILABLE = Code(
    "SERVE_MEDIA_UNAVAILABLE",
    "A medium cannot be downloaded from the URL in the request.",
    "Check that the URL returns the file itself, promptly and without a redirect.",
)
TOO_LARGE = Code(
    "SERVE_TOO_LARGE",
    "The body of a request, or a medium, has more bytes, pixels or frames than the server accepts.",
    "Cut or scale the medium down, give a large one as a file:// or https:// URL instead of sending it, or start the "
    "server with a larger --max-body-mb or --max-media-mb.",
)
