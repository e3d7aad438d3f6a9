"""A draft model for one sequence: its cache, and the rollback after a rejection.

Every drafter with a separate model uses it; the drafters differ in the passes that they run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional

from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Ask, Noise, Purpose, Steps, Target, Warp, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Scores, TargetInfo
from paceline.engine.contract import check_scores
from paceline.errors import InvalidInput, NoTokenLeft, UnknownName
from paceline.sampling.entropy import acceptance_bound

log = logging.getLogger("paceline")

_NOTHING = Draft()

READ_ROWS = 512
"""A text is read in chunks of this many tokens, so that a long one does not stall others."""

SHARED_ROWS = 16
"""A text of up to this many tokens is not shared with other sequences: it costs no pass more."""


class DraftModel:
    """A model that follows the committed tokens of one sequence and runs ahead of them.

    Its cache holds committed tokens from the position `origin` on, then drafted ones. It is cut as
    late as possible: a drafted token that became final stays in the cache. Tokens are read only
    when a draft is requested, so a model that is not used costs nothing.

    Args:
        model: the draft model, a target like any other.
        capacity: the longest sequence, prompt and answer together.
        vocab_size: of the target, to which logits are fitted.
    """

    def __init__(self, model: Target, capacity: int, vocab_size: int) -> None:
        limit = model.info.max_length
        self.room = capacity if limit is None else min(capacity, limit)
        """The most tokens that the model takes."""
        self.committed: list[int] = []
        self.origin = 0
        """The position of the first committed token that it has read, or will read first."""
        self.cached: list[int] = []
        self.model, self._vocab_size = model, vocab_size
        self.slot = model.open(self.room)
        self._told = False

    def observe(self, tokens: Sequence[int]) -> None:
        """Cut the cache to what became final; new tokens wait for the next draft."""
        right = min(len(self.committed) - self.origin, len(self.cached))
        self.committed += tokens
        self._keep(self.committed[self.origin :], right)

    def revise(self, kept: int, tokens: Sequence[int]) -> None:
        """Keep the first `kept` committed tokens, and append others in place of the rest.

        For a model whose tokens are not the target's: the tokens of a text may change when the text
        continues.
        """
        del self.committed[kept:]
        if kept <= self.origin:
            self._start_at(0)
        if self.committed or tokens:
            self.observe(tokens)

    def reach(self, budget: Budget) -> int:
        """The number of tokens that it can draft within a budget; called before each draft.

        Chooses the context by `Budget.max_catch_up`. The last draft token is not fed, so a draft
        may reach one token past the room.
        """
        num_draft_tokens = budget.num_draft_tokens
        if num_draft_tokens > 0:
            self._choose_context(budget.max_catch_up)
        length = min(num_draft_tokens, self.room - (len(self.committed) - self.origin) + 1)
        if length <= 0 < num_draft_tokens and not self._told:
            self._told = True
            log.warning(
                "the draft model %s takes %d tokens; from here on decoding is plain",
                self.model.info.name,
                self.room,
            )
        return max(length, 0)

    def start(self) -> Steps[Tensor]:
        """The logits `[V]` after the committed tokens; everything fed after them is dropped."""
        return (yield from self.score(()))[-1]

    def score(self, path: Sequence[int], tree: Draft = _NOTHING) -> Steps[Tensor]:
        """The logits `[1 + n, V]` after the end of a path and after every node of a tree below it.

        The path, which continues the committed tokens, stays in the cache; the tree does not. The
        part of the path that is cached already is not fed again, except for its last token.
        """
        text = [*self.committed[self.origin :], *path]
        self._keep(text, min(len(text) - len(path), len(self.cached)))
        return (yield from self._feed(text[len(self.cached) :], tree))

    def feed(self, token: int) -> Steps[Tensor]:
        """Append a token to the cache; returns the logits `[V]` after it."""
        return (yield from self._feed([token]))[-1]

    def _feed(self, tokens: Sequence[int], tree: Draft = _NOTHING) -> Steps[Tensor]:
        tokens = yield from self._read(tokens)
        known = replace(tree, tokens=tuple(self.known(tree.tokens))) if tree.tokens else tree
        scores = yield from self._score(Work(self.slot, self.known(tokens), known))
        self.model.commit(self.slot, ())
        self.cached += tokens
        return fit(scores.logits, self._vocab_size)

    def _read(self, tokens: Sequence[int]) -> Steps[Sequence[int]]:
        """Read a long text in chunks; the rest, which is fed with what follows it.

        What another sequence has read of it is taken from there. To that end a text is read to its
        last token, since a chunk has no logits.
        """
        prefixes, model, slot = self.model.prefixes, self.model, self.slot
        shares = prefixes is not None and prefixes.is_on and len(tokens) > SHARED_ROWS
        while len(tokens) > (1 if shares else READ_ROWS):
            chunk = self.known(tokens[: min(READ_ROWS, len(tokens) - 1)])
            if prefixes is None or not prefixes.recall(slot, chunk):
                start = model.length(slot)
                work = Work(slot, chunk, logits=False)
                text = (start, *chunk) if shares else None
                scores = yield Ask(model, work, len(tokens) > READ_ROWS, text)
                if scores is None:
                    continue  # another sequence has read it
                check_scores([scores], [work], model.info)
                model.commit(slot, ())
                if prefixes is not None:
                    prefixes.remember(slot, start)
            self.cached += tokens[: len(chunk)]
            tokens = tokens[len(chunk) :]
        return tokens

    def _score(self, work: Work) -> Steps[Scores]:
        """A pass over it, shared with others that ask for one."""
        scores: Scores = yield Ask(self.model, work)
        check_scores([scores], [work], self.model.info)
        return scores

    def known(self, tokens: Sequence[int]) -> list[int]:
        """Replace ids that only the target has, the padding of its vocabulary, by any known id."""
        vocab = self.model.info.vocab_size
        return [token if token < vocab else 0 for token in tokens]

    def close(self) -> None:
        """Free the slot."""
        self.model.close(self.slot)

    def _choose_context(self, max_catch_up: int | None) -> None:
        """Restart from the last tokens if too many are missing, or from the first token."""
        if max_catch_up is None:
            if self.origin:
                self._start_at(0)
        elif len(self.committed) - self.origin - len(self.cached) > max(max_catch_up, 1):
            self._start_at(len(self.committed) - max(max_catch_up, 1))

    def _start_at(self, origin: int) -> None:
        self.origin = origin
        self.cached.clear()
        self.model.rollback(self.slot, 0)

    def _keep(self, text: Sequence[int], right: int) -> None:
        """Cut the cache to a prefix of a text; the first `right` tokens agree."""
        # The last token is always fed again: its logits start the draft.
        most = min(len(self.cached), len(text) - 1)
        right = min(right, most)
        while right < most and self.cached[right] == text[right]:
            right += 1
        del self.cached[right:]
        self.model.rollback(self.slot, right)


def fit(logits: Tensor, vocab_size: int) -> Tensor:
    """Cut or pad rows of draft logits `[..., v]` to the target's vocabulary; padding is -inf.

    >>> import torch
    >>> fit(torch.tensor([1.0, 2.0]), 3)
    tensor([1., 2., -inf])
    """
    missing = vocab_size - logits.shape[-1]
    return functional.pad(logits, (0, missing), value=-math.inf) if missing else logits


class Stop(NamedTuple):
    """When to end a draft early: the bounds of a `Budget` and those of a drafter."""

    min_confidence: float
    min_path_confidence: float
    entropy_bound: float
    entropy_factor: float = 0.2

    def before(self, belief: Tensor) -> bool:
        """Whether to stop before a token is drawn from the draft model's distribution."""
        if not self.entropy_bound:
            return False
        return acceptance_bound(belief, self.entropy_factor) < self.entropy_bound

    def after(self, confidence: Sequence[float]) -> bool:
        """Whether the last token of a path is too unsure.

        Where the confidence says something of the token that was drawn, the token is kept, and the
        path ends after it; where it was known before, it ends before the draw.
        """
        if confidence[-1] < self.min_confidence:
            return True
        return math.prod(confidence) < self.min_path_confidence


def draw_chain(
    start: Callable[[], Steps[Tensor]],
    feed: Callable[[int], Steps[Tensor]],
    *,
    position: int,
    length: int,
    warp: Warp,
    noise: Noise,
    stop: Stop,
    foresee: Callable[[], float | None] = lambda: None,
) -> Steps[Draft]:
    """Draw a chain, token by token, each from the distribution that is submitted with it.

    Whether a token is submitted depends only on those before it (rule 2 of `protocols`): `stop`
    ends the chain before a draw, or after a token that is kept. At temperature 0 the draft is a
    point mass, and `stop` uses the softmax of the logits.

    Args:
        start: the logits `[V]` after the committed tokens.
        feed: the logits `[V]` after one more token; not called for the last one.
        position: the absolute position of the first token of the draft.
        length: the most tokens, at least 1.
        warp, noise: see `protocols.DraftSession.propose`.
        stop: when to end early.
        foresee: the drafter's own estimate, from what was drafted before, of the probability that
            the next token is accepted; asked once the logits are there. None if it has none: then
            the confidence in a token is its probability.
    """
    tokens: list[int] = []
    laws: list[Tensor] = []
    confidence: list[float] = []
    foreseen = None
    logits = yield from start()
    while True:
        try:
            q = warp.law(logits, tokens)
        except NoTokenLeft:
            break  # the draft model has no mass on the tokens that the options allow
        belief = logits.softmax(dim=-1) if warp.is_greedy else q
        foreseen = foresee()
        if stop.before(belief) or (foreseen is not None and stop.after([*confidence, foreseen])):
            break
        token = noise.sample(q, position + len(tokens), Purpose.DRAFT)
        tokens.append(token)
        laws.append(q)
        confidence.append(float(belief[token]) if foreseen is None else foreseen)
        if len(tokens) == length or (foreseen is None and stop.after(confidence)):
            break
        logits = yield from feed(token)
    return Draft(
        tuple(tokens),
        probs=None if warp.is_greedy else tuple(laws),
        confidence=tuple(confidence),
        is_foreseen=foreseen is not None,
    )


def own_params(given: Any) -> SamplingParams | None:
    """The sampling options of a draft; from a command line or from JSON they are mappings.

    Raises:
        InvalidInput: options that a draft cannot have.
        UnknownName: there is no such option.

    Example:
        >>> own_params({"temperature": 0.5}).temperature
        0.5
    """
    if given is None:
        return None
    if not isinstance(given, SamplingParams):
        known = SamplingParams.__dataclass_fields__
        if not isinstance(given, Mapping):
            raise InvalidInput(
                "params must be sampling options, as in {'temperature': 0.5}; it is "
                f"{given!r:.80}"
            )
        for name in given:
            if name not in known:
                raise UnknownName.among("sampling option", str(name), known)
        given = SamplingParams(**given)
    if given.has_penalties:
        raise InvalidInput(
            "the draft's own sampling options take no penalties; leave params out and the "
            "draft follows the target's, penalties included"
        )
    if given.seed is not None:
        raise InvalidInput(
            "the draft draws from the noise of its sequence and has no seed of its own; leave "
            "seed out of its params"
        )
    return given


def check_params(params: SamplingParams | None, target: TargetInfo, drafter: str) -> None:
    """Refuse sampling options of a draft that name tokens outside the target's vocabulary."""
    own = params or SamplingParams()
    named = {*own.logit_bias, *own.banned_token_ids, *(own.allowed_token_ids or ())}
    if outside := [token for token in named if not 0 <= token < target.vocab_size]:
        raise InvalidInput(
            f"the sampling options of drafter {drafter!r} name token {outside[0]}; the vocabulary "
            f"of {target.name} is 0 to {target.vocab_size - 1}"
        )
