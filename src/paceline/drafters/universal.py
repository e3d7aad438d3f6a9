"""A draft model with another tokenizer than the target's.

Source: Timor et al. 2502.05202: token-level intersection (TLI, algorithm 4) and string-level exact
match (SLEM, algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Steps, Target, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN, DRAWN_CHAIN, KindsByTemperature, drawn_or_chosen
from paceline.drafting.model import DraftModel, Stop, check_params, draw_chain, own_params
from paceline.drafting.vocabulary import (
    LOOK_BEHIND,
    Piece,
    SharedTokens,
    Transcript,
    Vocabulary,
    shared_tokens,
    vocabulary_of,
)
from paceline.errors import InvalidInput
from paceline.sampling.candidates import Blocks
from paceline.sampling.warp import SamplingWarp

MODES = ("tli", "slem")

_ROOM = 4
"""The draft model may need up to this many times as many tokens for a text as the target."""


@dataclass(frozen=True, slots=True)
class UniversalDrafter(KindsByTemperature):
    """Draft with a model that has another tokenizer.

    Args:
        model: the draft model, a target like any other.
        tokenizer: of the target.
        draft_tokenizer: of the draft model.
        mode: "tli" drafts tokens that both vocabularies have, from the draft model's distribution
            restricted to these, and accepts with min(1, p/q). "slem" lets the draft model write
            any text, greedily, and encodes it for the target, as point masses.
        params: sampling options of the draft, in mode "tli"; None follows the target's.

    Raises:
        InvalidInput: a setting is of the wrong kind, or a tokenizer is missing.
    """

    name: ClassVar[str] = "universal"
    needs: ClassVar[frozenset[Need]] = frozenset()
    needs_draft_model: ClassVar[bool] = True
    translates: ClassVar[bool] = True

    model: Target = field(repr=False)
    tokenizer: Any = field(default=None, repr=False)
    draft_tokenizer: Any = field(default=None, repr=False)
    mode: Literal["tli", "slem"] = "tli"
    params: SamplingParams | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidInput(f"mode must be one of {', '.join(MODES)}; it is {self.mode!r}")
        object.__setattr__(self, "params", own_params(self.params))
        if self.mode == "slem" and self.params is not None:
            raise InvalidInput("mode 'slem' drafts greedily and takes no params; leave them out")
        for setting, whose in (("tokenizer", "target"), ("draft_tokenizer", "draft model")):
            if not hasattr(getattr(self, setting), "get_vocab"):
                raise InvalidInput(
                    f"drafter 'universal' needs the tokenizer of the {whose}, as its setting "
                    f"{setting!r}; it is {getattr(self, setting)!r:.80}. A model that "
                    "paceline.load loads from files brings its own"
                )

    def _kinds(self, *, is_greedy: bool) -> DraftKinds:
        if self.mode == "slem":
            return CHOSEN_CHAIN
        return drawn_or_chosen(self.params, DRAWN_CHAIN, CHOSEN_CHAIN, is_greedy=is_greedy)

    def open(self, target: TargetView, capacity: int) -> UniversalSession:
        """See `protocols.Drafter.open`.

        Raises:
            InvalidInput: the two vocabularies share no token.
        """
        check_params(self.params, target.info, self.name)
        ours, theirs = vocabulary_of(self.tokenizer), vocabulary_of(self.draft_tokenizer)
        info = self.model.info
        shared = shared_tokens(ours, theirs, target.info.vocab_size, info.vocab_size)
        if not shared.ours:
            raise InvalidInput(
                f"the tokenizers of {target.info.name} and {info.name} share no token at all; "
                "choose another draft model"
            )
        return UniversalSession(self, capacity, target.info.vocab_size, ours, theirs, shared)


class UniversalSession:
    """See `protocols.DraftSession`."""

    def __init__(
        self,
        drafter: UniversalDrafter,
        capacity: int,
        vocab_size: int,
        ours: Vocabulary,
        theirs: Vocabulary,
        shared: SharedTokens,
    ) -> None:
        self._drafter, self._vocab_size = drafter, vocab_size
        self._ours, self._theirs, self._shared = ours, theirs, shared
        self._to_draft = dict(zip(shared.ours, shared.theirs, strict=True))
        self._to_target = dict(zip(shared.theirs, shared.ours, strict=True))
        self._our_ids, self._their_ids = torch.tensor(shared.ours), torch.tensor(shared.theirs)
        self._transcript = Transcript(ours, theirs, self._to_draft)
        info = drafter.model.info
        self._model = DraftModel(drafter.model, _ROOM * capacity, info.vocab_size)
        self._warp = None if drafter.params is None else SamplingWarp(drafter.params)
        self._tokens: list[int] = []
        self._guess: list[int] = []

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        self._tokens += committed.tokens
        kept = self._transcript.add(committed.tokens, self._guess)
        self._guess = []
        self._model.revise(kept, [piece.token for piece in self._transcript.pieces[kept:]])

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        """See `protocols.DraftSession.propose`."""
        length = self._model.reach(budget)
        if not length or not self._model.committed:
            return Draft()
        stop = Stop(budget.min_confidence, budget.min_path_confidence, budget.entropy_bound)
        if self._drafter.mode == "tli":
            return (yield from self._intersection(length, self._warp or warp, noise, stop))
        return (yield from self._strings(length, budget, stop))

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""
        self._model.close()

    def _intersection(self, length: int, warp: Warp, noise: Noise, stop: Stop) -> Steps[Draft]:
        """Tokens of the target's vocabulary, drawn from the draft model's distribution."""
        model = self._model
        draft = yield from draw_chain(
            lambda: self._in_our_tokens(model.start()),
            lambda token: self._in_our_tokens(model.feed(self._to_draft[token])),
            position=len(self._tokens),
            length=length,
            warp=warp,
            noise=noise,
            stop=stop,
        )
        self._guess = [self._to_draft[token] for token in draft.tokens]
        return draft

    def _in_our_tokens(self, asked: Steps[Tensor]) -> Steps[Tensor]:
        """The draft model's logits in the target's vocabulary `[V]`; -inf for tokens it lacks."""
        logits = yield from asked
        row = logits.new_full((self._vocab_size,), -torch.inf)
        row[self._our_ids] = logits[self._their_ids]
        return row

    def _strings(self, length: int, budget: Budget, stop: Stop) -> Steps[Draft]:
        """The draft model's greedy continuation, in the target's tokens."""
        text, end, confidence = b"", None, []
        logits = yield from self._model.start()
        while True:
            belief = logits.softmax(dim=-1)
            if stop.before(belief):
                break
            token = Blocks(logits).argmax()
            self._guess.append(token)
            confidence.append(float(belief[token]))
            if token not in self._theirs.texts:  # a special token, or padding: the text ends
                end = self._to_target.get(token)
                break
            text += self._theirs.texts[token]
            if len(self._guess) == length or stop.after(confidence):
                break
            logits = yield from self._model.feed(token)
        tokens = self._encoded(text) if text else []
        tokens += [] if end is None else [end]
        sure = confidence[0] if confidence else 0.0
        if sure < budget.min_first_confidence:
            return Draft()
        return Draft(tuple(tokens[: budget.num_draft_tokens]))

    def _encoded(self, text: bytes) -> list[int]:
        """A text in the target's tokens, as a continuation of the final text."""
        ours = self._ours
        final = [
            Piece(token, None if ours.is_special(token) else ours.texts.get(token, b""))
            for token in self._tokens[-LOOK_BEHIND:]
        ]
        back, pieces = ours.go_on(final, text)
        if back:
            # Encoded as one text, the final part would change, but it is fixed.
            pieces = ours.encode_amid(text)
        return [piece.token for piece in pieces if piece.token < self._vocab_size]
