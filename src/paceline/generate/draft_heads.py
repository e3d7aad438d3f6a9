"""The draft heads of one target: each is loaded and compared with the target once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.core.drafts import Scheme
from paceline.core.protocols import Verifier
from paceline.core.target import Need, TargetInfo
from paceline.drafting.heads.contract import Head
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.generate.choice import Choice
from paceline.generate.drafts import HeadTokens
from paceline.kernels.packing import Storage
from paceline.models.heads.loading import HeadFile, open_head
from paceline.models.loading import check_storage

ANY = "head"
"""The drafter that takes a head of any kind: by name it stands for the head's own drafter."""

_TREE_SETTINGS = frozenset({"top_k", "width", "max_nodes", "children"})

CHAIN: Mapping[str, Any] = {"shape": "chain"}
"""The settings of a head where the target or the rule takes no trees."""


class _Form(NamedTuple):
    """How a head is loaded; see `load_head`."""

    storage: Storage
    head_tokens: HeadTokens


@dataclass(frozen=True, slots=True, eq=False)
class DraftHeads:
    """The draft heads of one target.

    Args:
        target: what is known about the target; None if that comes with each call. A head given by
            path is then a `HeadFile`, whose drafter is made all the same, and made again of the
            head of `beside` once the target is known.
        device: says where its hidden states are, when a head is loaded.
        allow_pickle: accept pickled heads.
        token_ids: from a number and the size of the vocabulary to the ids of that many of the most
            frequent tokens, and of the control tokens.
    """

    target: TargetInfo | None
    device: Callable[[], torch.device | str] = lambda: "cpu"
    allow_pickle: bool = False
    token_ids: Callable[[int, int], Tensor | None] = lambda count, vocab_size: None
    _files: dict[str, HeadFile] = field(default_factory=dict, repr=False)
    _loaded: dict[tuple[str, _Form], Head | HeadFile] = field(default_factory=dict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def open(
        self,
        choice: Choice,
        storage: Storage | None = None,
        head_tokens: HeadTokens = None,
        *,
        rule: Verifier | None = None,
    ) -> Choice:
        """The choice with its head loaded, under the name of the head's own drafter.

        Where no shape is set, it is a tree if the target and the rule take trees, else a chain.

        Args:
            choice: any choice; those without a head stay as they are.
            storage: how the weights are stored; None is "auto".
            head_tokens: how many of the most frequent tokens the head may propose; None and "all"
                leave it to the file.
            rule: the rule that the user named; None leaves it to the drafter.

        Raises:
            PacelineError: the head cannot be loaded, or does not match the target.
        """
        return choice.with_heads(
            lambda one: self._opened(one, storage or "auto", head_tokens, rule)
        )

    def _opened(
        self, choice: Choice, storage: Storage, head_tokens: HeadTokens, rule: Verifier | None
    ) -> Choice:
        head = choice.settings["head"]
        if isinstance(head, (str, Path)):
            head = self._load(str(head), _Form(storage, head_tokens))
        elif head_tokens is not None:
            raise InvalidInput(
                "draft_head_tokens says how a draft head is loaded, and the one given is loaded; "
                "give token_ids to paceline.load_head, or give its path"
            )
        own = getattr(head, "drafter", None)
        if own is None:
            raise InvalidInput(
                "draft_head must be the path or hub name of a head, or one from "
                f"paceline.load_head; it is {head!r:.80}"
            )
        name = own if choice.name == ANY and own in plugins.names("drafter") else choice.name
        found = choice._replace(name=name, settings={**choice.settings, "head": head})
        return found if self._takes_trees(rule) else as_chain(found)

    def _load(self, source: str, form: _Form) -> Head | HeadFile:
        """The head; without a target its file, which is read once there is one."""
        check_storage(form.storage)
        with self._lock:  # a second thread waits for the head instead of loading it too
            if source not in self._files:
                self._files[source] = open_head(source, allow_pickle=self.allow_pickle)
            if (source, form) not in self._loaded:
                self._loaded[source, form] = self._read(self._files[source], form)
        return self._loaded[source, form]

    def _read(self, file: HeadFile, form: _Form) -> Head | HeadFile:
        if (target := self.target) is None:
            return file
        kept = None
        if isinstance(form.head_tokens, int):
            kept = self.token_ids(form.head_tokens, target.vocab_size)
        return file.load(target, storage=form.storage, device=self.device(), token_ids=kept)

    def beside(self, target: TargetInfo, device: torch.device) -> DraftHeads:
        """The same heads for a target that is known now, loaded where its states are."""
        found = DraftHeads(target, lambda: device, self.allow_pickle, self.token_ids, self._files)
        for source, form in self._loaded:
            found._load(source, form)
        return found

    def same(self, head: Head | HeadFile, of: DraftHeads) -> Head | HeadFile:
        """The head here that has the source of `head` there; `head` itself if it has none."""
        places = [key for key, found in of._loaded.items() if found is head]
        return self._loaded[places[0]] if places else head

    def _takes_trees(self, rule: Verifier | None) -> bool:
        if self.target is not None and Need.TREE not in self.target.gives:
            return False
        if rule is None:
            return True
        schemes = {Scheme.CHOSEN, Scheme.WITHOUT_REPLACEMENT}
        return not rule.needs_chain and schemes <= rule.schemes


def as_chain(choice: Choice) -> Choice:
    """The choice with its heads drafting chains, where trees were not asked for."""
    return choice.with_heads(
        lambda one: (
            one._replace(settings={**CHAIN, **one.settings})
            if not (_TREE_SETTINGS & one.settings.keys())
            else one
        )
    )


def describe_heads(choice: Choice) -> str | None:
    """What was chosen for the heads of a choice, in one line; None without any."""
    found = [
        f"head {one.settings['head'].name}; drafter {one.name}, "
        + ("a chain" if one.settings.get("shape") == "chain" else "a tree")
        for one in choice.of_heads()
    ]
    return ", ".join(found) or None
