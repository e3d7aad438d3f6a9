"""Draft with the target itself, skipping some attention and feed-forward parts of its layers.

Source: Zhang et al., Draft & Verify, arXiv 2309.08168. Their code drafts greedily but verifies
against a distribution at another temperature; here q is the distribution that drew the token.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from paceline.checks import require_finite, require_int
from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need, SkipSet
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetLayers, TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN, DRAWN_CHAIN
from paceline.drafting.self_draft import SelfDraft, every_second, layers_of, skip_set
from paceline.drafting.tuned import read_tuned, tuned_file
from paceline.errors import InvalidInput
from paceline.sampling.threshold import GREEDY_START, SAMPLING_START, Threshold, next_threshold

log = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True)
class LayerSkipDrafter:
    """Draft with a part of the target's own layers.

    `paceline tune layer-skip` finds which part and stores it in the cache folder, where it is
    looked up by the target's name. Without tuning, every second layer is skipped.

    Args:
        attention: the layers whose attention is skipped, counted from 0.
        mlp: the layers whose feed-forward part is skipped.
        tuned: a file that `paceline tune layer-skip` wrote, instead of both lists.
        min_confidence: a draft ends after a token whose probability under q is below this; the
            token is kept. None starts at .8 for greedy decoding and at .5 otherwise.
        adaptive: move `min_confidence` after each round, so that about nine in ten draft tokens are
            accepted.

    Raises:
        InvalidInput: a setting is outside its range or of the wrong type.

    Example:
        >>> sorted(LayerSkipDrafter(attention=[1, 2], mlp=[2]).skip(None, 4).attention)
        [1, 2]
    """

    name: ClassVar[str] = "layer-skip"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LAYERS})
    drafts: ClassVar[DraftKinds] = DRAWN_CHAIN
    greedy_drafts: ClassVar[DraftKinds] = CHOSEN_CHAIN

    attention: Sequence[int] | None = None
    mlp: Sequence[int] | None = None
    tuned: str | Path | None = None
    min_confidence: float | None = None
    adaptive: bool = True

    def __post_init__(self) -> None:
        for name in ("attention", "mlp"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, _layers(name, given))
        if self.tuned is not None and (self.attention, self.mlp) != (None, None):
            raise InvalidInput(
                "the skipped layers are given twice, by the file `tuned` and by `attention` or "
                "`mlp`; leave one out"
            )
        if self.tuned is not None and not isinstance(self.tuned, (str, Path)):
            raise InvalidInput(f"tuned must be the path of a file; it is {self.tuned!r:.80}")
        if self.min_confidence is not None:
            require_finite(self, "min_confidence", self.min_confidence, low=0.0, high=1.0)
        if not isinstance(self.adaptive, bool):
            raise InvalidInput(f"adaptive must be true or false; it is {self.adaptive!r}")

    def open(self, target: TargetView, capacity: int) -> LayerSkipSession:
        """See `protocols.Drafter.open`."""
        layers = layers_of(target, self.name)
        return LayerSkipSession(self, layers, self.skip(target.info.name, layers.num_layers))

    def skip(self, model: str | None, num_layers: int) -> SkipSet:
        """The parts to skip in a target of this name and size.

        Raises:
            InvalidInput: it does not have these layers, or the file belongs to another model or
                cannot be read.
        """
        if (self.attention, self.mlp) != (None, None):
            return _inside(skip_set(self.attention or (), self.mlp or ()), num_layers)
        if self.tuned is not None:
            file = Path(self.tuned).expanduser()
            found = read_tuned(file)
            if found is None:
                raise InvalidInput(f"no such file: {file}; `paceline tune layer-skip` writes one")
            return skip_of(found, file, num_layers)
        if model is not None:
            file = tuned_file(self.name, model)
            if (found := read_tuned(file)) is not None:
                return skip_of(found, file, num_layers)
            _tell_untuned(model)
        return every_second(num_layers)


@cache
def _tell_untuned(model: str) -> None:
    """Once per process, because every request opens a session."""
    log.warning(
        "layer-skip is not tuned for %s and skips every second layer, which drafts poorly; "
        "`paceline tune layer-skip` finds the layers that can be skipped",
        model,
    )


def skip_of(found: dict[str, Any], file: Path, num_layers: int) -> SkipSet:
    """The skip set in a file of `paceline tune layer-skip`.

    Raises:
        InvalidInput: the file is not one, or belongs to a model of another size.
    """
    try:
        layers = require_int("num_layers", found["num_layers"], low=1)
        skip = skip_set(_layers("attention", found["attention"]), _layers("mlp", found["mlp"]))
    except (KeyError, InvalidInput) as error:
        raise InvalidInput(
            f"{file} is not a file of `paceline tune layer-skip` ({error}); tune again"
        ) from None
    if layers != num_layers:
        raise InvalidInput(
            f"{file} was tuned for a model of {layers} layers, and this one has {num_layers}; tune "
            "again"
        )
    return _inside(skip, num_layers)


class LayerSkipSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: LayerSkipDrafter, layers: TargetLayers, skip: SkipSet) -> None:
        self._drafter, self._skip = drafter, skip
        self._draft = SelfDraft(layers)
        given = drafter.min_confidence
        self._threshold = None if given is None else Threshold(given)
        self._last: tuple[tuple[int, ...], int] = (), 0

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._draft.observe(committed.tokens)
        drafted, length = self._last
        self._last = (), 0
        if not drafted or committed.draft is None or committed.draft.tokens != drafted:
            return  # another draft was verified, not this one
        if self._drafter.adaptive and self._threshold is not None:
            self._threshold = next_threshold(
                self._threshold,
                len(committed.path),
                len(drafted),
                reached_end=len(drafted) == length,
            )

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        if self._threshold is None:
            self._threshold = Threshold(GREEDY_START if warp.is_greedy else SAMPLING_START)
        draft = self._draft.chain(self._skip, budget, warp, noise, self._threshold.value)
        self._last = draft.tokens, budget.num_draft_tokens
        return draft

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""


def _layers(name: str, given: Any) -> tuple[int, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, (Sequence, frozenset, set)):
        raise InvalidInput(f"{name} must be a list of layers, as in [3, 5]; it is {given!r:.80}")
    return tuple(sorted({require_int(f"each layer of {name}", layer, low=0) for layer in given}))


def _inside(skip: SkipSet, num_layers: int) -> SkipSet:
    if outside := [layer for layer in skip.attention | skip.mlp if layer >= num_layers]:
        raise InvalidInput(
            f"layer {min(outside)} cannot be skipped: the layers of the target are 0 to "
            f"{num_layers - 1}"
        )
    return skip
