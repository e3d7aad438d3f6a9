"""From a prompt, a text or chat messages, to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidInput, MissingExtra


def encode_prompt(
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
) -> list[int]:
    """The token ids of a prompt.

    Args:
        tokenizer: of transformers.
        prompt: a text, encoded as the tokenizer does by default, with its start token if it has
            one (not twice where the text already begins with it); or chat messages, mappings with
            `role` and `content`, which go through the chat template. The template alone says what
            special tokens a chat has.
        add_generation_prompt: end a chat where the model's answer begins.

    Raises:
        InvalidInput: an empty prompt, malformed messages, no chat template, or messages that the
            template refuses.
    """
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidInput("the prompt is empty; give some text")
        _check_unicode("the prompt", prompt)
        return _encoded(tokenizer, prompt)
    _check_messages(prompt)
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidInput(
            "this tokenizer has no chat template; give the prompt as text, in the form that the "
            "model was trained on"
        )
    try:
        from jinja2 import TemplateError
    except ImportError as error:
        raise MissingExtra("chat messages need jinja2: pip install jinja2") from error
    try:
        ids = tokenizer.apply_chat_template(
            [dict(message) for message in prompt],
            add_generation_prompt=add_generation_prompt,
            return_dict=False,
        )
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f"the chat template refuses these messages: {error}") from error
    return list(ids)


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text amid others: no start token, no chat template.

    Raises:
        InvalidInput: the text is not valid Unicode.
    """
    _check_unicode("the text", text)
    return list(tokenizer.encode(text, add_special_tokens=False))


def _encoded(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text, with one start token where both the text and the tokenizer bring one."""
    ids = list(tokenizer.encode(text))
    start = tokenizer.bos_token_id
    if start is None or ids[:2] != [start, start]:
        return ids
    added = len(ids) > len(tokenizer.encode(text, add_special_tokens=False))
    return ids[1:] if added else ids


def _check_messages(messages: Any) -> None:
    if isinstance(messages, (bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidInput(
            "a prompt is a text or a list of messages with role and content; it is of type "
            f"{type(messages).__name__}"
        )
    if not messages:
        raise InvalidInput("the prompt is empty; give at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidInput(
                f"message {number} must be a mapping with role and content; it is {message!r:.80}"
            )
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise InvalidInput(
                    f"message {number} needs a {key} that is a text; "
                    + (f"it is {message[key]!r:.80}" if key in message else "there is none")
                )
            _check_unicode(f"message {number}", message[key])


def _check_unicode(what: str, text: str) -> None:
    """Half a surrogate pair, which a command line makes of a stray byte, is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} is not valid Unicode: {error.reason} ({error.start})"
        ) from error
