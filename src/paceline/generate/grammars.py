"""The forms that answers of one model may be asked to have: each is compiled once."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput
from paceline.text.grammar import Grammar, GrammarTokens, check_form

_KEPT = 64
"""How many compiled forms are kept; servers get the same few again and again."""


@dataclass(slots=True, eq=False)
class Grammars:
    """The forms for one model. Several threads may use it.

    Args:
        target: what is known about the model.
        tokenizer: its tokenizer; None if unknown.
        ends: the tokens that end its answers.
    """

    target: TargetInfo
    tokenizer: Any
    ends: frozenset[int]
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)
    _tokens: GrammarTokens | None = field(default=None, init=False, repr=False)
    _kept: OrderedDict[str, Grammar] = field(default_factory=OrderedDict, init=False, repr=False)

    def open(self, form: Mapping[str, Any]) -> Grammar:
        """The constraint for the option `structured_outputs`.

        Raises:
            InvalidInput: the form is invalid, or there is no tokenizer.
            MissingExtra: llguidance is not installed.
        """
        check_form(form)
        if self.tokenizer is None:
            raise InvalidInput(
                f"structured_outputs need a tokenizer, and {self.target.name} was loaded without "
                "one; pass it to load"
            )
        try:
            key = json.dumps(form, default=list)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"structured_outputs cannot be written as JSON: {error}") from error
        with self._lock:
            if self._tokens is None:
                size = self.target.vocab_size
                self._tokens = GrammarTokens(self.tokenizer, size, self.ends)
            if key not in self._kept:
                self._kept[key] = self._tokens.grammar(form)
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]
