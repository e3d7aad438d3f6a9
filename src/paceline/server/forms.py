"""The form of an answer that a request asks for: JSON, a schema, a regular expression, a choice."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from paceline.errors import InvalidInput
from paceline.server.fields import Fields


class JsonSchema(Fields):
    """A schema by its name, as OpenAI's clients send it."""

    name: str = Field(max_length=64)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextFormat(Fields):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Fields):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Fields):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StructuredOutputs(Fields):
    """One form, in vLLM's words."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: Literal[True] | None = None
    regex: str | None = Field(None, max_length=10_000)
    choice: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, min_length=1, max_length=1000
    )
    grammar: str | None = Field(None, max_length=100_000)

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        if len(self.form) != 1:
            raise ValueError(
                "structured_outputs name one of json, json_object, regex, choice, grammar"
            )
        return self

    @property
    def form(self) -> dict[str, Any]:
        """As `generate` takes it."""
        return self.model_dump(by_alias=True, exclude_none=True)


def form_of(
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None,
    structured: StructuredOutputs | None,
) -> dict[str, Any] | None:
    """The option `structured_outputs`; None for any text.

    Raises:
        InvalidInput: both name a form.
    """
    if isinstance(response_format, JsonObjectFormat):
        found: dict[str, Any] | None = {"json_object": True}
    elif isinstance(response_format, JsonSchemaFormat):
        found = {"json": response_format.json_schema.schema_}
    else:
        found = None
    if found is not None and structured is not None:
        raise InvalidInput(
            "response_format and structured_outputs both name a form; leave one of them out"
        )
    return found if structured is None else structured.form
