"""Answers of a given form: a JSON schema, a regular expression, a choice of texts, a grammar.

The tokens that are allowed after a text are computed by llguidance. Each token of an answer is
drawn from the target's distribution restricted to them. Where the form leaves only one text, they
are the tokens into which the tokenizer splits it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import InvalidInput, MissingExtra

FORMS = ("json", "json_object", "regex", "choice", "grammar")

_SPACE = r"\n? {0,16}"
"""The space that may stand between the parts of JSON. A small model could otherwise go on with
spaces to the end of its answer."""


def check_form(form: Any) -> Mapping[str, Any]:
    """Return `form` if it names one form, as in `{"json": {"type": "object"}}`.

    Raises:
        InvalidInput: it does not.

    Example:
        >>> check_form({"regex": "[0-9]+"})["regex"]
        '[0-9]+'
    """
    if not isinstance(form, Mapping) or len(form) != 1 or next(iter(form)) not in FORMS:
        raise InvalidInput(
            f"structured_outputs must name one of {', '.join(FORMS)}, as in "
            f"{{'regex': '[0-9]+'}}; it is {form!r:.80}"
        )
    kind, value = next(iter(form.items()))
    expected = {
        "json": (isinstance(value, (Mapping, str, bool)), "a JSON schema"),
        "json_object": (value is True, "True"),
        "regex": (isinstance(value, str), "a regular expression"),
        "choice": (_is_choice(value), "a list of texts"),
        "grammar": (isinstance(value, str), "a Lark grammar"),
    }
    fits, what = expected[kind]
    if not fits:
        raise InvalidInput(f"structured_outputs: {kind!r} takes {what}; it is {value!r:.80}")
    return form


def _is_choice(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(text, str) and text for text in value)
    )


class GrammarTokens:
    """A vocabulary as llguidance reads it: made once for a model, which takes up to a second.

    Args:
        tokenizer: a fast tokenizer of transformers.
        vocab_size: the number of logits in a row of the target.
        ends: the tokens that end an answer.

    Raises:
        InvalidInput: it is no fast tokenizer, or no token ends an answer.
        MissingExtra: llguidance is not installed.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, ends: Iterable[int]) -> None:
        try:
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise MissingExtra.needed("serve", "structured outputs") from error
        self.vocab_size = vocab_size
        self.ends = frozenset(token for token in ends if 0 <= token < vocab_size)
        if not self.ends:
            raise InvalidInput(
                "structured_outputs need a token that ends an answer, and this model names none"
            )
        try:
            self.tokens = from_tokenizer(tokenizer, vocab_size, sorted(self.ends))
        except ValueError as error:
            raise InvalidInput(f"structured_outputs: {error}") from error

    def grammar(self, form: Mapping[str, Any]) -> Grammar:
        """The constraint for a form, see `check_form`.

        Raises:
            InvalidInput: the schema, expression or grammar is invalid or not supported.
        """
        from llguidance import LLMatcher

        kind, value = next(iter(check_form(form).items()))
        try:
            if kind in ("json", "json_object"):
                schema = {"type": "object"} if kind == "json_object" else value
                text = schema if isinstance(schema, str) else json.dumps(schema)
                source = LLMatcher.grammar_from_json_schema(text, {"whitespace_pattern": _SPACE})
            elif kind == "grammar":
                source = LLMatcher.grammar_from_lark(value)
            else:
                expression = "|".join(map(re.escape, value)) if kind == "choice" else value
                source = LLMatcher.grammar_from_regex(expression)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"structured_outputs: {kind!r} cannot be read: {error}") from error
        wrong, told = LLMatcher.validate_grammar_with_warnings(source, self.tokens)
        if wrong:
            raise InvalidInput(f"structured_outputs: {kind!r} is not supported: {told[0]:.300}")
        return Grammar(source, self)


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """A form that answers have, see `core.protocols.Constraint`.

    Args:
        source: in llguidance's own form.
        tokens: the vocabulary.
    """

    source: str = field(repr=False)
    tokens: GrammarTokens = field(repr=False)

    def open(self) -> GrammarSession:
        """See `protocols.Constraint.open`."""
        return GrammarSession(self)


class GrammarSession:
    """See `protocols.ConstraintSession`.

    One matcher stands at the end of the answer and of a path that was asked for; it goes back to
    where two paths part.
    """

    def __init__(self, grammar: Grammar) -> None:
        from llguidance import LLMatcher

        self._tokens = grammar.tokens
        self._matcher = LLMatcher(grammar.tokens.tokens, grammar.source, log_level=0)
        self._path: list[int] = []
        self._masks: dict[tuple[int, ...], Tensor] = {}

    def allowed(self, path: Sequence[int]) -> Tensor:
        """See `protocols.ConstraintSession.allowed`."""
        key = tuple(path)
        if key not in self._masks:
            if not self._can_go_to(path):  # nothing comes out there, whatever is allowed
                return torch.ones(self._tokens.vocab_size, dtype=torch.bool)
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            self._check()
            mask = np.unpackbits(bits, bitorder="little", count=self._tokens.vocab_size)
            self._masks[key] = torch.from_numpy(mask).bool()
        return self._masks[key]

    def allows(self, path: Sequence[int], token: int) -> bool:
        """See `protocols.ConstraintSession.allows`."""
        if (mask := self._masks.get(tuple(path))) is not None:
            return bool(mask[token])
        if not self._can_go_to(path):
            return False
        if token in self._tokens.ends:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]) == 1)

    def forced(self) -> Sequence[int]:
        """See `protocols.ConstraintSession.forced`."""
        self._can_go_to(())
        return list(self._matcher.compute_ff_tokens())

    def observe(self, tokens: Sequence[int]) -> None:
        """See `protocols.ConstraintSession.observe`."""
        said = [token for token in tokens if token not in self._tokens.ends]
        if not self._can_go_to(said):
            raise InvalidInput(
                "structured_outputs: a token came out that the form does not allow; a processor or "
                "a rule of the request takes the answer out of its form"
            )
        self._path.clear()
        self._masks.clear()

    def _can_go_to(self, path: Sequence[int]) -> bool:
        """Move the matcher to the end of `path`; whether all of it is allowed."""
        same = 0
        while same < min(len(path), len(self._path)) and path[same] == self._path[same]:
            same += 1
        if back := len(self._path) - same:
            self._matcher.rollback(back)
        ahead = list(path[same:])
        taken = self._matcher.try_consume_tokens(ahead) if ahead else 0
        self._path[same:] = ahead[:taken]
        self._check()
        return taken == len(ahead)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidInput(
                f"structured_outputs: the form is too costly to follow: "
                f"{self._matcher.get_error():.300}"
            )
