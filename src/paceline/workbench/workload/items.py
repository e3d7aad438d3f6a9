"""One prompt of a workload, with its recorded answer if there is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import InvalidInput

UNCATEGORIZED = "all"
"""The category of prompts that name none."""

DRAFTING = ("prediction", "references")
"""Settings of drafters that may come with a prompt."""


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt, and where it comes from.

    Args:
        id: unique in its file: the item's own `question_id` or `id`, else its line number.
        prompt: a text, or chat messages.
        category: groups items in reports; "all" if the file names none.
        answer: the recorded answer; None if there is none.
        later_turns: what the user said after the first answer, in Spec-Bench's format. It replies
            to an answer that is unknown, so it is not part of the prompt.
        answer_tokens: the token ids of the answer, if they were recorded: encoding the text may
            give other tokens than the model generated.
        max_tokens: the token limit of the answer, if it was recorded.
        drafting: settings for drafters that come with this prompt, see `DRAFTING`.
        source: file and line, for messages.
    """

    id: str
    prompt: str | tuple[Mapping[str, str], ...]
    category: str = UNCATEGORIZED
    answer: str | None = None
    later_turns: tuple[str, ...] = ()
    answer_tokens: tuple[int, ...] | None = None
    max_tokens: int | None = None
    drafting: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def as_prompt(self, *, chat: bool) -> str | list[dict[str, str]]:
        """The prompt as `LanguageModel.generate` takes it.

        Args:
            chat: turn a text into a user message, for models with a chat template.

        Example:
            >>> Item("1", "Hello").as_prompt(chat=True)
            [{'role': 'user', 'content': 'Hello'}]
        """
        if not isinstance(self.prompt, str):
            return [dict(message) for message in self.prompt]
        return [{"role": "user", "content": self.prompt}] if chat else self.prompt


def parse(value: Mapping[str, Any], source: str, number: int) -> Item:
    """An item from the object of one line; see `files.read_items` for the formats.

    Raises:
        InvalidInput: no prompt, several, or one of the wrong type; the message names `source`.
    """
    forms = [name for name in ("turns", "prompt", "messages") if name in value]
    if len(forms) != 1:
        found = " and ".join(forms) if forms else f"only {', '.join(map(str, value)) or 'nothing'}"
        raise InvalidInput(
            f"{source}: expected exactly one of turns, prompt or messages in the object; it has "
            f"{found}"
        )
    category = _text(value, "category", source)
    answer = _text(value, "answer", source)
    own = next((value[key] for key in ("question_id", "id") if value.get(key) is not None), number)
    prompt: Any
    later: tuple[str, ...] = ()
    if forms == ["messages"]:
        messages = tuple(_message(item, source) for item in _list(value, "messages", source))
        if messages[-1]["role"] == "assistant":
            if answer is not None:
                raise InvalidInput(
                    f"{source}: the answer is given twice, as answer and as the last message; "
                    "leave one out"
                )
            answer, messages = messages[-1]["content"], messages[:-1]
        if not messages:
            raise InvalidInput(f"{source}: messages need a prompt before the assistant's answer")
        prompt = messages
    elif forms == ["turns"]:
        turns = _list(value, "turns", source)
        if not all(isinstance(turn, str) for turn in turns):
            raise InvalidInput(f"{source}: turns must be a list of texts; it is {turns!r:.80}")
        prompt, *rest = turns
        later = tuple(rest)
    else:
        prompt = value["prompt"]
        if not isinstance(prompt, str):
            raise InvalidInput(f"{source}: prompt must be a text; it is {prompt!r:.80}")
    if not prompt:
        raise InvalidInput(f"{source}: the prompt is empty; give some text, or leave the line out")
    return Item(
        id=str(own),
        prompt=prompt,
        category=category or UNCATEGORIZED,
        answer=answer,
        later_turns=later,
        answer_tokens=_answer_tokens(value, source),
        max_tokens=_max_tokens(value, source),
        drafting=_drafting(value, source),
        source=source,
    )


def to_json(item: Item) -> dict[str, Any]:
    """An object from which `parse` would read this item.

    >>> to_json(Item("1", "a", answer="b"))
    {'id': '1', 'category': 'all', 'prompt': 'a', 'answer': 'b'}
    """
    chat = not isinstance(item.prompt, str)
    found: dict[str, Any] = {
        "id": item.id,
        "category": item.category,
        "messages" if chat else "prompt": list(item.prompt) if chat else item.prompt,
        "answer": item.answer,
        "answer_token_ids": None if item.answer_tokens is None else list(item.answer_tokens),
        "max_tokens": item.max_tokens,
        **item.drafting,
    }
    return {name: value for name, value in found.items() if value is not None}


def records(items: Iterable[Item]) -> Iterator[Item]:
    """The recorded answers: one item for each, and for chats one per assistant's message.

    Items without any are left out.

    Example:
        >>> chat = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        ...         {"role": "user", "content": "c"})
        >>> [(item.id, item.answer) for item in records([Item("1", chat, answer="d")])]
        [('1.1', 'b'), ('1.2', 'd')]
    """
    for item in items:
        if isinstance(item.prompt, str):
            if item.answer:
                yield item
            continue
        answers = [
            (item.prompt[:place], message["content"])
            for place, message in enumerate(item.prompt)
            if place and message["role"] == "assistant" and message["content"]
        ]
        if item.answer:
            answers.append((item.prompt, item.answer))
        for number, (prompt, answer) in enumerate(answers, start=1):
            own = item.id if len(answers) == 1 else f"{item.id}.{number}"
            last = number == len(answers) and answer == item.answer
            yield replace(
                item,
                id=own,
                prompt=prompt,
                answer=answer,
                answer_tokens=item.answer_tokens if last else None,
            )


def select(
    items: Sequence[Item],
    *,
    categories: Sequence[str] | None = None,
    per_category: int | None = None,
    limit: int | None = None,
) -> list[Item]:
    """A selection of the items: the first ones of each category, round-robin over categories.

    Args:
        items: all of them.
        categories: only these; None means all.
        per_category: at most this many of each.
        limit: at most this many in total.

    Raises:
        InvalidInput: no item has one of the categories.

    Example:
        >>> items = [Item("1", "a", "x"), Item("2", "b", "x"), Item("3", "c", "y")]
        >>> [item.id for item in select(items, limit=2)]
        ['1', '3']
    """
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.category, []).append(item)
    for name in categories or ():
        if name not in groups:
            raise InvalidInput(
                f"no prompt has the category {name!r}; there are {', '.join(sorted(groups))}"
            )
    chosen = [
        group[:per_category] for name, group in groups.items() if name in (categories or groups)
    ]
    longest = max(map(len, chosen), default=0)
    found = [group[place] for place in range(longest) for group in chosen if place < len(group)]
    return found[:limit]


def _text(value: Mapping[str, Any], key: str, source: str) -> str | None:
    found = value.get(key)
    if found is not None and not isinstance(found, str):
        raise InvalidInput(f"{source}: {key} must be a text; it is {found!r:.80}")
    return found


def _drafting(value: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The prediction, a text or in OpenAI's format, and the list of references."""
    found: dict[str, Any] = {}
    prediction = value.get("prediction")
    if isinstance(prediction, Mapping):
        prediction = _message({"role": "assistant", **prediction}, source)["content"]
    if prediction is not None:
        found["prediction"] = _text({"prediction": prediction}, "prediction", source)
    if value.get("references") is not None:
        texts = _list(value, "references", source)
        if not all(isinstance(text, str) for text in texts):
            raise InvalidInput(f"{source}: references must be a list of texts; it is {texts!r:.80}")
        found["references"] = texts
    return found


def _answer_tokens(value: Mapping[str, Any], source: str) -> tuple[int, ...] | None:
    found = value.get("answer_token_ids")
    if found is None:
        return None
    if not isinstance(found, list) or not all(type(token) is int and token >= 0 for token in found):
        raise InvalidInput(
            f"{source}: answer_token_ids must be a list of token ids; it is {found!r:.80}"
        )
    return tuple(found)


def _max_tokens(value: Mapping[str, Any], source: str) -> int | None:
    found = value.get("max_tokens")
    if found is not None and (type(found) is not int or found < 1):
        raise InvalidInput(
            f"{source}: max_tokens must be a whole number above 0; it is {found!r:.80}"
        )
    return found


def _list(value: Mapping[str, Any], key: str, source: str) -> list[Any]:
    found = value[key]
    if not isinstance(found, list) or not found:
        raise InvalidInput(
            f"{source}: {key} must be a list with at least one entry; it is {found!r:.80}"
        )
    return found


def _message(value: Any, source: str) -> dict[str, str]:
    """A message with a plain text; OpenAI's list of parts is joined."""
    role = value.get("role") if isinstance(value, Mapping) else None
    content = value.get("content") if isinstance(value, Mapping) else None
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        raise InvalidInput(
            f"{source}: every message needs a role and a content, both texts; one is {value!r:.80}"
        )
    return {"role": role, "content": content}
