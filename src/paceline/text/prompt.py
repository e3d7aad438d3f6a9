"""From a prompt (text or chat messages) to token ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import InvalidInput, MissingExtra

_OWN = frozenset({"conversation", "tools", "add_generation_prompt", "continue_final_message"})
_OUTPUT = frozenset(
    {"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"}
    | {"return_assistant_tokens_mask", "tokenizer_kwargs"}
)
"""Arguments of `apply_chat_template` that are not values for the template."""


@dataclass(frozen=True, slots=True, eq=False)
class ChatOptions:
    """What a chat template receives in addition to the messages.

    Args:
        tools: the tools that the model may call: JSON schemas, or Python functions with docstrings.
        template_kwargs: values that the model's template uses, such as `enable_thinking`.
        continue_final_message: the last message is the beginning of the model's answer, which
            continues from there.

    Raises:
        InvalidInput: a value is of the wrong kind.
    """

    tools: Any = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False

    def __post_init__(self) -> None:
        tools = self.tools
        if tools is not None and (
            isinstance(tools, (str, bytes, Mapping))
            or not isinstance(tools, Sequence)
            or not all(isinstance(tool, Mapping) or callable(tool) for tool in tools)
        ):
            raise InvalidInput(
                f"tools must be a list of JSON schemas or of functions; it is {tools!r:.80}"
            )
        if wrong := sorted(self.template_kwargs.keys() & (_OWN | _OUTPUT)):
            raise InvalidInput(
                f"{wrong[0]!r} is not a value for a chat template"
                + ("; it is an option of its own" if wrong[0] in _OWN else "; leave it out")
            )

    def refuse(self, prompt: str) -> None:
        """Raise if anything was given, for a prompt that uses no template."""
        if self.tools is not None or self.template_kwargs or self.continue_final_message:
            raise InvalidInput(
                "tools, chat_template_kwargs and continue_final_message require chat messages; the "
                f"prompt is {prompt}: leave them out, or give messages"
            )


def encode_prompt(
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    chat: ChatOptions | None = None,
) -> list[int]:
    """The token ids of a prompt.

    Args:
        tokenizer: of transformers.
        prompt: a text, encoded as the tokenizer does by default, with its start token if it has
            one (not twice where the text already begins with it); or chat messages, mappings with
            `role` and `content`, which go through the chat template. Only the template determines
            the special tokens of a chat. Content may be a list of parts of type "text", which are
            joined by newlines. The assistant's content may be None, for example with tool calls.
        add_generation_prompt: end a chat where the model's answer begins.
        chat: what the template receives in addition to the messages; None for nothing.

    Raises:
        InvalidInput: the prompt is empty, messages are malformed, there is no chat template, or the
            template refuses the messages or does not use an option.
    """
    chat = ChatOptions() if chat is None else chat
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidInput("the prompt is empty; give some text")
        chat.refuse("a text")
        _check_unicode("the prompt", prompt)
        return _encoded(tokenizer, prompt)
    messages = _messages(prompt)
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidInput(
            "this tokenizer has no chat template; give the prompt as text, in the form that the "
            "model was trained on"
        )
    if chat.continue_final_message and messages[-1]["role"] != "assistant":
        raise InvalidInput(
            "continue_final_message continues a message of the assistant; the last one is of "
            f"{messages[-1]['role']!r}"
        )
    try:
        from jinja2 import TemplateError
    except ImportError as error:
        raise MissingExtra("chat messages need jinja2: pip install jinja2") from error
    try:
        _check_known(tokenizer, chat)
        ids = tokenizer.apply_chat_template(
            messages,
            tools=None if chat.tools is None else list(chat.tools),
            add_generation_prompt=add_generation_prompt and not chat.continue_final_message,
            continue_final_message=chat.continue_final_message,
            return_dict=False,
            **chat.template_kwargs,
        )
    except InvalidInput:
        raise
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f"the chat template refuses these messages: {error}") from error
    return list(ids)


def _check_known(tokenizer: Any, chat: ChatOptions) -> None:
    """Refuse values that the template never reads: it would silently ignore them."""
    own = chat.template_kwargs.get("chat_template")
    template = tokenizer.get_chat_template(own, chat.tools)
    given = [*chat.template_kwargs, *(["tools"] if chat.tools else [])]
    for name in given:
        if name != "chat_template" and not re.search(rf"\b{re.escape(name)}\b", template):
            raise InvalidInput(
                f"the chat template of this model never reads {name!r}, so it would change "
                "nothing; leave it out"
            )


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text among others: no start token, no chat template.

    Raises:
        InvalidInput: the text is not valid Unicode.
    """
    _check_unicode("the text", text)
    return list(tokenizer.encode(text, add_special_tokens=False))


def _encoded(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text, with one start token if both the text and the tokenizer bring one."""
    ids = list(tokenizer.encode(text))
    start = tokenizer.bos_token_id
    if start is None or ids[:2] != [start, start]:
        return ids
    added = len(ids) > len(tokenizer.encode(text, add_special_tokens=False))
    return ids[1:] if added else ids


def _messages(messages: Any) -> list[dict[str, Any]]:
    """The messages with their content as text."""
    if isinstance(messages, (bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidInput(
            "a prompt is a text or a list of messages with role and content; it is of type "
            f"{type(messages).__name__}"
        )
    if not messages:
        raise InvalidInput("the prompt is empty; give at least one message")
    return [_message(number, message) for number, message in enumerate(messages)]


def _message(number: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidInput(
            f"message {number} must be a mapping with role and content; it is {message!r:.80}"
        )
    found = dict(message)
    content = found.get("content")
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        if not content:
            raise InvalidInput(f"message {number} has no parts in its content; give some text")
        found["content"] = "\n".join(_text_of_part(number, part) for part in content)
    elif content is None and found.get("role") == "assistant" and _may_be_silent(found):
        found["content"] = ""  # templates would write "None", or fail
    for key in ("role", "content"):
        if not isinstance(found.get(key), str):
            raise InvalidInput(
                f"message {number} needs a {key} that is a text; "
                + (f"it is {found[key]!r:.80}" if key in found else "there is none")
            )
        _check_unicode(f"message {number}", found[key])
    return found


def _may_be_silent(message: Mapping[str, Any]) -> bool:
    """Whether an assistant message may lack content: it says None, or calls tools."""
    return "content" in message or bool(message.get("tool_calls"))


def _text_of_part(number: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(text, str):
        raise InvalidInput(
            f"message {number} has a part of its content that is not text: {part!r:.80}; Paceline "
            'takes only parts of the form {"type": "text", "text": "..."}'
        )
    return text


def _check_unicode(what: str, text: str) -> None:
    """Refuse half of a surrogate pair, which a command line makes from a stray byte."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} is not valid Unicode: {error.reason} ({error.start})"
        ) from error
