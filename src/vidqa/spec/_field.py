"""Declaration of spec keys: value types, and one function that states everything known about a key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Gpus = Annotated[int, Field(ge=1, le=1024)]  # an upper bound, because memory is planned for each GPU
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


def null_is(value: Any) -> BeforeValidator:
    """Read null of YAML and JSON as `value`: TOML has no null, and each state should have one spelling."""
    return BeforeValidator(lambda written: value if written is None else written)


# Types of keys in several tables.
CountOrNull = Annotated[int, Field(ge=0), null_is(0)]
TextOrNull = Annotated[str, null_is("")]
Dtype = Literal["bfloat16", "float16", "float32"]
HeldOut = Positive | Annotated[float, Field(gt=0, lt=1)] | None  # a number of samples, or a share of them
ResponseMode = Literal["think", "answer", "hybrid"]


class Table(BaseModel):
    """A table of the spec: unknown keys are errors, values are not converted, nothing changes after validation."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=(), validate_default=True
    )


def key(
    default: Any,
    title: str,
    description: str,
    *,
    native: str = "used",
    only: list[Any] | None = None,
    instead: str | None = None,
    automl: dict[str, Any] | None = None,
    **bounds: Any,
) -> Any:
    """Declare a key of the spec.

    native   "used", or "no effect": accepted for compatibility, with a warning if it is not the default
    only     the values that our own engine supports; another value is an error
    instead  the key to use in place of this one
    automl   settings for a search: min and max with a scale (log; log2 for powers of two), or choices, and their
             weights; with_lora (overrides if LoRA trains); default (searched unless the user says otherwise);
             depends_on (chosen after that key); only_where (values of another key without which it has no effect);
             shapes_weights (a trial that resumes from another's weights keeps its value)
    """
    extra: dict[str, Any] = {"x-native": native if only is None else {"only": only}}
    if instead:
        extra["x-instead"] = instead
    if automl:
        extra["x-automl"] = automl
    return Field(default, title=title, description=description, json_schema_extra=extra, **bounds)


def table(cls: type[Table], title: str, description: str) -> Any:
    """Declare a nested table that always exists, with the defaults of its keys."""
    return Field(default_factory=cls, title=title, description=description)
