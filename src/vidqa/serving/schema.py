"""The schema of a request for a chat completion: OpenAI's fields, and those of vLLM's clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from vidqa.core.problem import Problem, ProblemError
from vidqa.data.record import MediumKeys, Turn
from vidqa.serving.problems import REQUEST
from vidqa.video.types import VISION_KEYS, contradictions, without_effect

MOST_MEDIA = 64  # of one request
ROLES = {"developer": "system"}
MOST_CHOICES = 16  # answers per request
MOST_MESSAGES = 4096
MOST_PARTS = 1024  # of one message
MOST_TOP = 20  # as in OpenAI's API
MOST_STOPS = 16
LONGEST_STOP = 1000  # characters
LARGEST_LEAST = 1 << 24  # pixels to which every frame may be enlarged: 16,384 tokens
LONGEST_FORM = 65_536  # characters of a schema
MOST_VALUES = 65_536  # objects, lists, texts and numbers of a body
MOST_MARKS = 1 << 20  # commas and brackets of a body, including those inside texts: each value in memory follows one
SHOWN_PROBLEMS = 5
COMPARED_PROBLEMS = 100
LONGEST_PLACE = 200  # characters of a field's name in a problem
# Fields that identify the user and do not affect answers.
IGNORED = ("user", "metadata", "safety_identifier", "prompt_cache_key")
# Unsupported fields are accepted only with values that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "echo": (False,),
}


class Strict(BaseModel):
    """A table in which unknown fields are errors, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Address(Strict):
    url: str
    detail: Literal["auto"] | None = None


class TextPart(Strict):
    type: Literal["text"]
    text: str


Side = Annotated[int, Field(ge=1, lt=2**31)]
Second = Annotated[float, Field(ge=0, lt=2**31)]


class ImageKeys(Strict):
    """Resizing options of an image, under the names of qwen-vl-utils."""

    max_pixels: Side | None = None
    min_pixels: Annotated[int, Field(ge=1, le=LARGEST_LEAST)] | None = None
    resized_height: Side | None = None
    resized_width: Side | None = None


class VideoKeys(ImageKeys):
    """Frame sampling options of a video."""

    fps: Annotated[float, Field(gt=0, le=1000)] | None = None
    nframes: Annotated[int, Field(ge=1, le=768)] | None = None
    min_frames: Annotated[int, Field(ge=1, le=768)] | None = None
    max_frames: Annotated[int, Field(ge=1, le=768)] | None = None
    total_pixels: Side | None = None
    video_start: Second | None = None
    video_end: Annotated[float, Field(gt=0, lt=2**31)] | None = None


class ImagePart(ImageKeys):
    type: Literal["image_url"]
    image_url: Address


class VideoPart(VideoKeys):
    type: Literal["video_url"]
    video_url: Address


Part = Annotated[TextPart | ImagePart | VideoPart, Field(discriminator="type")]


class Message(Strict):
    """One message. Earlier answers may have all fields of the response; the model gets only their content."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(max_length=MOST_PARTS)] | None = None
    reasoning_content: str | None = None
    name: None = None
    refusal: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)
    audio: None = None
    function_call: None = None
    tool_calls: list[Any] | None = Field(default=None, max_length=0)


class JsonSchema(Strict):
    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


Choices = Annotated[list[str], Field(min_length=1, max_length=1000)]


class StructuredOutputs(Strict):
    choice: Choices | None = None
    json_: dict[str, Any] | None = Field(default=None, alias="json")


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class FrameOptions(VideoKeys):
    """Options for all media of the request, in place of the server's [vision]."""

    cap_pixels_per_frame: bool | None = None


Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Tokens = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class ChatRequest(Strict):
    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=2)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_choice: Choices | None = None
    mm_processor_kwargs: FrameOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> list[str] | None:
        """The allowed answers, if the request lists them."""
        return self.guided_choice or (self.structured_outputs.choice if self.structured_outputs else None)

    @property
    def names_form(self) -> bool:
        """Whether the request sets the form of its answer, including free text."""
        return self.guided_choice is not None or (self.response_format or self.structured_outputs) is not None

    @property
    def form_place(self) -> str:
        """The field that sets the form of the answer."""
        return next(
            (name for name in ("guided_choice", "structured_outputs") if getattr(self, name)), "response_format"
        )

    @property
    def json_form(self) -> dict[str, Any] | None:
        """The JSON schema of the answer; for plain JSON mode, that of any object."""
        if self.structured_outputs and self.structured_outputs.json_ is not None:
            return self.structured_outputs.json_
        if self.response_format is None or self.response_format.type == "text":
            return None
        form = self.response_format.json_schema
        return form.schema_ if form else {"type": "object"}


def parse_request(body: bytes) -> ChatRequest:
    """Parse a request body. Raises SERVE_REQUEST."""
    marks = sum(body.count(mark) for mark in (b",", b"[", b"{"))
    if marks > MOST_MARKS:
        raise REQUEST.error("body", f"{marks} commas and brackets; at most {MOST_MARKS} allowed")
    try:
        table = from_json(body, allow_inf_nan=False)
    except ValueError as broken:
        raise REQUEST.error("body", f"it is not JSON: {broken}") from broken
    if not isinstance(table, dict):
        raise REQUEST.error("body", f"it is {type(table).__name__}, not an object")
    _require_few_values(table)
    for name in IGNORED:
        table.pop(name, None)
    for name, values in NEUTRAL.items():
        if name in table and (value := table.pop(name)) is not None and value not in values:
            raise REQUEST.error(name, f"{_short_text(value)} is not supported", f"Leave {name} out.")
    try:
        request = ChatRequest.model_validate(table)
    except ValidationError as wrong:
        raise ProblemError(_validation_problems(wrong, table)) from wrong
    _check(request)
    return request


def _require_few_values(body: dict[str, Any]) -> None:
    """Bound the work of validation, which has a problem for each value. Raises SERVE_REQUEST."""
    count = 0
    containers: list[Any] = [body]
    while containers:
        container = containers.pop()
        count += len(container)
        if count > MOST_VALUES:
            raise REQUEST.error("body", f"it has more than {MOST_VALUES} values")
        values = container.values() if isinstance(container, dict) else container
        containers += [value for value in values if isinstance(value, (dict, list))]


def _check(request: ChatRequest) -> None:
    """Check rules over several fields."""
    if request.max_tokens and request.max_completion_tokens:
        raise REQUEST.error("max_completion_tokens", "max_tokens is its older name; both are set")
    if request.top_logprobs and not request.logprobs:
        raise REQUEST.error("top_logprobs", "it needs logprobs: true")
    if request.top_logprobs and request.stream:
        raise REQUEST.error("top_logprobs", "a stream has only the log-probability of each chosen token")
    if request.stream_options and not request.stream:
        raise REQUEST.error("stream_options", "it needs stream: true")
    form = request.response_format
    if form and (form.type == "json_schema") != (form.json_schema is not None):
        raise REQUEST.error("response_format", "json_schema belongs to the type json_schema")
    named = (request.guided_choice, request.structured_outputs, form if form and form.type != "text" else None)
    if sum(choice is not None for choice in named) > 1:
        raise REQUEST.error("response_format", "the answer can have only one form; several are requested")
    structured = request.structured_outputs
    if structured and (structured.choice is None) == (structured.json_ is None):
        raise REQUEST.error("structured_outputs", "exactly one of choice and json is needed")
    if request.mm_processor_kwargs:
        _check_keys(_keys_in(request.mm_processor_kwargs), "mm_processor_kwargs")
    if request.messages[-1].role != "user":
        raise REQUEST.error(f"messages[{len(request.messages) - 1}]", "the last message must be the user's")


@dataclass(frozen=True, slots=True)
class NamedMedium:
    """A medium in a request; `where` is its place in the request, for problems."""

    kind: str  # "video" | "image"
    url: str
    where: str
    keys: MediumKeys = ()


def conversation(messages: Sequence[Message]) -> tuple[tuple[Turn, ...], list[NamedMedium]]:
    """Turns whose media are indices into the list of media. Raises SERVE_REQUEST."""
    turns: list[Turn] = []
    media: list[NamedMedium] = []
    for at, message in enumerate(messages):
        where = f"messages[{at}].content"
        role = ROLES.get(message.role, message.role)
        if message.content is None:
            raise REQUEST.error(where, "it is missing")
        parts: list[str | int] = []
        for number, part in enumerate([] if isinstance(message.content, str) else message.content):
            if isinstance(part, TextPart):
                parts.append(part.text)
                continue
            if role != "user":
                raise REQUEST.error(f"{where}[{number}]", "media belong into the user's messages")
            kind, address = ("video", part.video_url) if isinstance(part, VideoPart) else ("image", part.image_url)
            keys = _keys_in(part)
            _check_keys(keys, f"{where}[{number}]")
            parts.append(len(media))
            media.append(NamedMedium(kind, address.url, f"{where}[{number}].{kind}_url", tuple(sorted(keys.items()))))
        turns.append(Turn(role, (message.content,) if isinstance(message.content, str) else tuple(parts)))
    if len(media) > MOST_MEDIA:
        raise REQUEST.error("messages", f"{len(media)} videos and images; at most {MOST_MEDIA} allowed")
    return tuple(turns), media


def _keys_in(values: ImageKeys) -> dict[str, float]:
    """The frame options of a part, or of all media."""
    return values.model_dump(include=set(VISION_KEYS), exclude_none=True)


def _check_keys(keys: dict[str, float], where: str) -> None:
    """Raise SERVE_REQUEST if keys contradict each other, or leave others without effect."""
    for message in (*contradictions(keys), *without_effect(keys)):
        raise REQUEST.error(where, message)


def _validation_problems(failure: ValidationError, body: dict[str, Any]) -> list[Problem]:
    """The problems, each at its place, without those of the other members of a union: among the members at one place,
    only the problem of the one with the value's own JSON type is reported."""
    messages: dict[str, str] = {}
    errors = failure.errors(include_url=False, include_context=False, include_input=False)
    for error in sorted(errors, key=lambda error: error["type"].endswith("_type")):
        messages.setdefault(_place(error["loc"], body)[:LONGEST_PLACE], error["msg"])
        if len(messages) == COMPARED_PROBLEMS:
            break
    deepest = [place for place in messages if not any(other != place and other.startswith(place) for other in messages)]
    return [REQUEST.at(place, messages[place][:300]) for place in deepest[:SHOWN_PROBLEMS]]


def _place(path: Sequence[int | str], value: Any) -> str:
    """Format ("messages", 0, "content") as messages[0].content, without the union tags of pydantic."""
    text = ""
    for at, name in enumerate(path):
        if isinstance(value, list) and isinstance(name, int) and name < len(value):
            text, value = f"{text}[{name}]", value[name]
        elif isinstance(value, dict) and isinstance(name, str) and (name in value or at == len(path) - 1):
            text, value = f"{text}.{name}" if text else name, value.get(name)
    return text or "body"


def _short_text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
