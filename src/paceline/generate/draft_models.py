"""The draft models of one target: each is loaded and compared with the target once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

from torch import nn

from paceline.core.protocols import Target
from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.generate.choice import Choice
from paceline.generate.drafts import DraftForm, DraftShape, HeadTokens, cheapest_form
from paceline.generate.tokenizers import check_same_tokenizer, warn_of_vocabularies
from paceline.kernels.packing import Storage
from paceline.models.known import refuse_other_tokenizer
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.choice import decoder_of, look_at
from paceline.targets.hf.draft import draft_decoder_of


class OpenDraft(NamedTuple):
    """A draft model that is ready to use.

    Args:
        source: what it was made from: a loaded model, a target, or a model of `transformers`.
        target: the draft model as a target.
        tokenizer: its own tokenizer; None if unknown.
        form: how it was loaded, if `drafts.cheapest_form` chose that.
    """

    source: Any
    target: Target
    tokenizer: Any = None
    form: DraftForm | None = None


Opener = Callable[[str | Path, Storage | None, HeadTokens], Any]
"""Loads a draft model like `api.load_draft`."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftModels:
    """The draft models of one target.

    Args:
        target: what is known about the target; None if that comes with each call.
        tokenizer: its tokenizer; None if unknown.
        load: loads a draft model by name or path.
    """

    target: TargetInfo | None
    tokenizer: Any
    load: Opener
    _loaded: dict[Any, Any] = field(default_factory=dict, repr=False)
    _compared: WeakSet[Any] = field(default_factory=WeakSet, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def open(
        self, choice: Choice, storage: Storage | None = None, head_tokens: HeadTokens = None
    ) -> dict[int, OpenDraft]:
        """The draft models that a choice names, keyed by the `id` of what names them.

        Raises:
            PacelineError: one cannot be loaded, or does not match the target.
        """
        found: dict[int, OpenDraft] = {}
        for part in choice.with_draft_models():
            translates = plugins.find("drafter", part.name).traits.translates
            if not translates and self.target is not None:
                refuse_other_tokenizer(self.target.name, str(part.draft_model))
            with self._lock:  # a second thread waits for the model instead of loading it too
                source = self._source(part.draft_model, storage, head_tokens)
                draft = opened(source, storage, head_tokens)
                if not translates:
                    self._compare(draft)
            found[id(part.draft_model)] = draft
        if (storage is not None or head_tokens is not None) and not found:
            raise InvalidInput(
                "draft_storage and draft_head_tokens require a draft model or a draft head; give "
                "draft_model or draft_head, or leave them out"
            )
        return found

    def _source(self, given: Any, storage: Storage | None, head_tokens: HeadTokens) -> Any:
        if isinstance(given, (str, Path)):
            key = str(given), storage, head_tokens
            if key not in self._loaded:
                self._loaded[key] = self.load(given, storage, head_tokens)
            return self._loaded[key]
        said = storage is not None or head_tokens is not None
        if said and not isinstance(given, nn.Module):
            raise InvalidInput(
                "draft_storage and draft_head_tokens say how a draft model is stored, and the one "
                "given stays as it was loaded; give its name or path, or a model of "
                "transformers, or leave them out"
            )
        return given

    def _compare(self, draft: OpenDraft) -> None:
        target, own = self.target, draft.target.info
        if self.tokenizer is None or draft.tokenizer is None:
            if target is not None:
                warn_of_vocabularies(target, own)
        elif draft.source not in self._compared:
            name = "the target" if target is None else target.name
            check_same_tokenizer(self.tokenizer, draft.tokenizer, target=name, draft=own.name)
            self._compared.add(draft.source)


def opened(
    source: Any, storage: Storage | None = None, head_tokens: HeadTokens = None
) -> OpenDraft:
    """A draft model in any form except a name: a loaded one, a target, or one of `transformers`.

    For a model of transformers, a coarse copy is made if that pays, see `targets.hf.draft`; the
    model itself is not changed.

    Args:
        source: the model.
        storage, head_tokens: the form of that copy; None chooses what pays.

    Raises:
        InvalidInput: it is something else, or the copy cannot be made.
    """
    if isinstance(source, nn.Module):
        return _of_module(source, storage, head_tokens)
    # What `load` returns holds its target.
    target = getattr(source, "target", source)
    if not isinstance(getattr(target, "info", None), TargetInfo):
        raise InvalidInput(
            f"draft_model must be a model of transformers, one from paceline.load, or the name or "
            f"path of one; it is {source!r:.80}"
        )
    return OpenDraft(
        source, target, getattr(source, "tokenizer", None), getattr(source, "form", None)
    )


def _of_module(source: nn.Module, storage: Storage | None, head_tokens: HeadTokens) -> OpenDraft:
    look = look_at(source)
    if not look.is_lean:
        if storage is not None or head_tokens is not None:
            raise InvalidInput(
                "draft_storage and draft_head_tokens need the lean decoder, which does not "
                f"support this draft model: {look.reason}; leave these options out"
            )
        return OpenDraft(source, CachedTarget(decoder_of(source, look)))
    # The tokenizers of the lean families all number their tokens by frequency.
    shape = replace(DraftShape.of(source.config, None, is_lean=True), is_ordered=True)
    form = cheapest_form(shape, storage=storage, head_tokens=head_tokens)
    decoder = draft_decoder_of(
        source, storage=form.storage, head_tokens=form.head_tokens, look=look
    )
    return OpenDraft(source, CachedTarget(decoder), None, form)
