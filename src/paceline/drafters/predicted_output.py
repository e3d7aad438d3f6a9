"""Predicted output: draft the expected answer, and recover after edits.

The use is that of OpenAI's predicted outputs: the client supplies the output it expects, such as a
file with a few changes. The draft follows the prediction as long as the answer does, and finds its
position again after each edit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN
from paceline.drafting.stores.copies import copied
from paceline.drafting.stores.ngrams import NgramPlaces, check_vocabulary, reference_ids
from paceline.errors import InvalidInput

REACHES = {8: None, 4: 256, 2: 64, 1: 16}
"""How far away a match of n tokens is trusted: single words occur everywhere, lines do not."""

TRUSTED = 4
"""A position is an anchor once this many tokens in a row have agreed there."""


@dataclass(frozen=True, slots=True)
class PredictedOutputDrafter:
    """Draft the expected text of the answer, and find the position again after an edit.

    The draft is a point mass, exact under every rule, and needs no model. A round costs the same
    for a prediction of any length. Memory: about 700 bytes per token of the prediction, once for
    all sequences.

    Args:
        prediction: the expected answer as token ids (a text is encoded for you).

    Raises:
        InvalidInput: these are not token ids, or there are none.
    """

    name: ClassVar[str] = "predicted-output"
    needs: ClassVar[frozenset[Need]] = frozenset()
    needs_draft_model: ClassVar[bool] = False
    drafts: ClassVar[DraftKinds] = CHOSEN_CHAIN

    prediction: tuple[int, ...]
    _places: NgramPlaces = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prediction", reference_ids([self.prediction])[0])
        if not self.prediction:
            raise InvalidInput("drafter 'predicted-output' needs a prediction; it is empty")
        # Built once and only read afterwards, so that sessions can share it.
        object.__setattr__(self, "_places", NgramPlaces(self.prediction, tuple(REACHES)))

    def open(self, target: TargetView, capacity: int) -> PredictedOutputSession:
        """See `protocols.Drafter.open`."""
        check_vocabulary("the prediction", self.prediction, target.info)
        return PredictedOutputSession(self.prediction, self._places)


class PredictedOutputSession:
    """See `protocols.DraftSession`. `place` is where the answer is expected to continue."""

    def __init__(self, prediction: tuple[int, ...], places: NgramPlaces) -> None:
        self._prediction, self._places = prediction, places
        self._prompted = False
        self._tail: tuple[int, ...] = ()
        self._anchor = self._place = 0
        # Tokens in a row that agreed. Initially, the client's prediction counts for some.
        self._agreed, self._lost = TRUSTED, 0

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        if self._prompted:
            for token in committed.tokens:
                self._take(token)
        self._prompted = True

    def _take(self, token: int) -> None:
        """One more token of the answer."""
        self._tail = (*self._tail, token)[-max(REACHES) :]
        if self._prediction[self._place : self._place + 1] == (token,):
            self._place += 1
            self._agreed += 1
            self._lost = 0
            return
        if self._agreed >= TRUSTED:
            self._anchor = self._place
        found = self._aligned()
        if found is not None:
            (self._place, self._agreed), self._lost = found, 0
            return
        # Nothing is known. One token may have replaced one; further drafts would be guesses.
        self._agreed, self._lost = 0, self._lost + 1
        self._place = self._anchor + 1 if self._lost == 1 else len(self._prediction)

    def _aligned(self) -> tuple[int, int] | None:
        """The position after the longest match of the last tokens, and the length of the match.

        Short matches only count after the anchor: an edit changes, drops or adds tokens, and in
        each case the answer continues further down.
        """
        for n, reach in REACHES.items():
            if n > len(self._tail):
                continue
            gram = self._tail[-n:]
            if n < TRUSTED:
                place = self._places.from_on(gram, self._anchor)
            else:
                place = self._places.nearest(gram, self._anchor)
            if place is not None and (reach is None or abs(place - self._anchor) <= reach):
                return place, n
        return None

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        tokens = self._prediction[self._place : self._place + budget.num_draft_tokens]
        return copied(tokens, max(self._agreed, 1), budget)

    def close(self) -> None:
        """Nothing to free."""
