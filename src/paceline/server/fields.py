"""Fields that several requests share. A field that no class names is refused, never dropped.

A field that can only mean what the server does anyway is declared with the values that mean that,
such as `store: Literal[False]`: any other value is refused too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from paceline.errors import InvalidInput
from paceline.generate.choice import needs_draft_head, needs_draft_model

INT64 = 2**63
_AS_IN_PYTHON = {"top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"}
_AS_IN_PYTHON |= {"allowed_token_ids", "stop", "stop_token_ids", "min_tokens", "ignore_eos"}
_FORM = ("draft_storage", "draft_head_tokens")
TOKEN_LOGPROBS = 20
"""The most alternatives to a token that may be asked for, as in OpenAI's interface."""


class Fields(BaseModel):
    """Fields of the right type, and no others."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class StreamOptions(Fields):
    """How a stream reports usage."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Speculative(Fields):
    """How the drafts of one request are made."""

    drafter: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    num_draft_tokens: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] | None = None


_AS_THE_SERVER = Speculative()

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Stops = Annotated[
    Annotated[list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(max_length=16)]
    | None,
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
]


class Sampled(Fields):
    """Which model, how a token is drawn, when an answer ends, how many, how they are sent."""

    model: str | None = None
    n: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=1024
    )
    allowed_token_ids: list[TokenId] | None = None
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: Stops = None
    stop_token_ids: list[TokenId] | None = None
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    ignore_eos: bool | None = None
    include_stop_str_in_output: Literal[False] | None = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    speculative: bool | Speculative | None = None
    # Labels for whoever runs a server; nothing is kept of them here.
    user: str | None = None

    @model_validator(mode="after")
    def _usage_is_of_streams(self) -> Sampled:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for streams; add stream, or leave them out")
        return self

    @property
    def num_answers(self) -> int:
        """How many answers to a prompt."""
        return 1 if self.n is None else self.n

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def usage_always(self) -> bool:
        """Whether every event of a stream tells the usage so far."""
        return self.with_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )

    def sampling(self) -> dict[str, Any]:
        """Its part of the options of `generate`; the temperature is 1 unless it is given."""
        found: dict[str, Any] = self.model_dump(include=_AS_IN_PYTHON, exclude_none=True)
        found["temperature"] = 1.0 if self.temperature is None else self.temperature
        if self.top_k is not None:
            found["top_k"] = max(self.top_k, 0)  # -1 is vLLM's word for all
        if self.seed is not None:
            found["seed"] = self.seed % 2**64
        if self.logit_bias:
            found["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        return found

    def drafting(self, base: Mapping[str, Any], prediction: str | None = None) -> dict[str, Any]:
        """How it is drafted: the server's options, changed as the request says.

        Args:
            base: the server's options.
            prediction: the text that the client expects; None for none.

        Raises:
            InvalidInput: it names a drafter that this server cannot offer, or two at once.
        """
        asked = self.speculative if isinstance(self.speculative, Speculative) else _AS_THE_SERVER
        found: dict[str, Any]
        if prediction is not None:
            if self.speculative is False or asked.drafter not in (None, "predicted-output"):
                raise InvalidInput(
                    "prediction drafts from its text, and speculative says otherwise; leave one "
                    "of them out"
                )
            found = {"drafter": "predicted-output", "drafter_options": {"prediction": prediction}}
        elif self.speculative is False:
            return {"drafter": "none"}
        elif asked.drafter is not None:
            found = _named(asked.drafter, base)
        else:
            found = dict(base)
        if asked.num_draft_tokens is not None:
            found = {
                **found,
                "num_draft_tokens": asked.num_draft_tokens,
                "controller": None,
                "controller_options": None,
            }
        return found


def _named(drafter: str, base: Mapping[str, Any]) -> dict[str, Any]:
    """The options for a drafter that a request names, with what the server has for it."""
    if drafter == base.get("drafter"):
        return dict(base)
    names = [name.strip() for name in drafter.split(",")]
    found: dict[str, Any] = {"drafter": drafter}
    for option, words, needs in (
        ("draft_model", "draft model", needs_draft_model),
        ("draft_head", "draft head", needs_draft_head),
    ):
        if not any(needs(name, {}) for name in names):
            continue
        if base.get(option) is None:
            raise InvalidInput(
                f"drafter {drafter!r} needs a {words}, and this server has none; choose another"
            )
        found |= {name: base.get(name) for name in (option, *_FORM)}
    return found


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 11):
        raise InvalidInput(f"the keys of logit_bias are token ids, such as '50256'; one is {key!r}")
    return int(key)
