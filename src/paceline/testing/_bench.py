"""A drafter with a small target, and the rules for a single draft."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import torch
from torch import Tensor

from paceline.core.drafts import Budget, Draft, Scheme
from paceline.core.hidden import Hidden
from paceline.core.passes import drive, prefill
from paceline.core.protocols import (
    Drafter,
    DraftSession,
    Noise,
    Purpose,
    Target,
    Verifier,
    Warp,
    Work,
)
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need
from paceline.core.traits import traits_of
from paceline.core.view import TargetView
from paceline.errors import ContractViolation, PacelineError
from paceline.sampling.warp import SamplingWarp
from paceline.testing.table import TableTarget

History = tuple[tuple[int, ...], ...]
"""What a session observes: the prompt, then the tokens of each round."""

MAX_BUDGET = 8


class DrafterRule(StrEnum):
    """The rules that `check_drafter` checks; its errors name one of them."""

    IDENTITY = "identity"
    """`name` is a string, and `needs` is a frozenset."""
    LIFECYCLE = "lifecycle"
    """A session can be closed at any point, also after an error, and rounds may pass without a
    proposal."""
    BUDGET = "budget"
    """No path is longer than the budget, for prompts of any length."""
    VOCABULARY = "vocabulary"
    """Token ids are plain integers in the target's vocabulary."""
    LAW = "law"
    """Each law (distribution of a drawn token) covers the vocabulary and gives its token mass."""
    HONESTY = "honesty"
    """Each law is the one that actually drew its token, and whether the token is submitted does not
    depend on the token (rules 1 and 2 of `protocols`)."""
    DECLARED = "declared drafts"
    """Drafts are of the kinds that the traits `drafts` and `greedy_drafts` declare, if any."""
    DETERMINISM = "determinism"
    """All randomness comes from the noise that is passed in."""
    ISOLATION = "isolation"
    """Sequences are independent of each other, earlier or concurrent."""
    TEXT_ALONE = "text alone"
    """Drafts depend on the observed tokens, not on earlier drafts and rounds (optional)."""
    SETTINGS = "settings"
    """The drafter itself does not change."""
    GREEDY = "greedy output"
    """At temperature 0 the tokens are those of plain decoding, for every draft length."""
    EXACT = "exact output"
    """At temperature 1 the joint distribution of the tokens is that of plain decoding."""


@dataclass(frozen=True)
class Bench:
    """A drafter and its target."""

    drafter: Drafter
    target: Target
    verifier: Verifier
    params: SamplingParams

    @property
    def vocab_size(self) -> int:
        return self.target.info.vocab_size

    def texts(self) -> list[tuple[int, ...]]:
        """Prompts of one or more tokens, with repetitions of several periods."""
        pattern = [token % self.vocab_size for token in (1, 2, 1, 2, 0, 1, 2, 1, 1)]
        lengths = [n for n in (1, 2, 3, 4, 7, 9) if n <= self.capacity - 8]
        return [tuple(pattern[:n]) for n in lengths]

    def histories(self) -> list[History]:
        """Each text at once, and split into a prompt and rounds."""
        texts = self.texts()
        whole: list[History] = [(text,) for text in texts]
        return whole + [(t[:1], t[1:3], t[3:]) for t in texts if len(t) > 3]

    @property
    def capacity(self) -> int:
        return min(self.target.info.max_length or 32, 32)


def small_target() -> Target:
    rows = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.7, 0.0, 0.3]]
    return TableTarget(torch.tensor(rows, dtype=torch.float64))


def large_target() -> Target:
    """Eleven tokens; the law depends on the last two, and the context ends at 24."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(11, 11, 11, generator=generator, dtype=torch.float64)
    laws = logits.softmax(dim=-1)

    def law(tokens: tuple[int, ...]) -> Tensor:
        return laws[tokens[-2:][0], tokens[-1]]

    return TableTarget(law, vocab_size=11, max_length=24)


class Broken(Exception):
    """The error that a failing noise raises."""


class BrokenNoise:
    """Fails whenever it is used."""

    def accept(self, probability: float, position: int) -> bool:
        raise Broken

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        raise Broken

    def race(self, law: Tensor, position: int) -> int:
        raise Broken


def fail(drafter: Drafter, rule: DrafterRule, detail: str) -> NoReturn:
    name = getattr(drafter, "name", type(drafter).__name__)
    raise ContractViolation(f"drafter {name!r} breaks the rule {rule.value!r}: {detail}")


@contextmanager
def session_after(bench: Bench, history: History) -> Iterator[DraftSession]:
    """A session that has observed `history`; always closed at the end."""
    try:
        session = _open(bench)
        try:
            for number, tokens in enumerate(history):
                session.observe(round_of(bench, history[:number], tokens))
            yield session
        finally:
            session.close()
    except (PacelineError, Broken):
        raise
    except Exception as error:
        raise ContractViolation(
            f"drafter {bench.drafter.name!r} breaks the rule {DrafterRule.LIFECYCLE.value!r}: "
            f"after {history} it raised {error!r}"
        ) from error


def _open(bench: Bench) -> DraftSession:
    if bench.drafter.needs.isdisjoint({Need.LAYERS, Need.EMBEDDING, Need.HEAD}):
        return bench.drafter.open(TargetView(bench.target.info), bench.capacity)
    slot = bench.target.open(bench.capacity)
    try:
        view = bench.target.view(slot)
        return _Followed(bench.drafter.open(view, bench.capacity), bench.target, slot)
    except BaseException:
        bench.target.close(slot)
        raise


class _Followed:
    """A session that runs parts of the target: the target's slot follows what it observes."""

    def __init__(self, session: DraftSession, target: Target, slot: Any) -> None:
        self._session, self._target, self._slot = session, target, slot
        self._text: tuple[int, ...] = ()

    def observe(self, committed: Committed) -> None:
        self._text += committed.tokens
        if new := self._text[self._target.length(self._slot) : -1]:
            prefill(self._target, self._slot, new)
        self._session.observe(committed)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        return drive(self._session.propose(budget, warp, noise))

    def close(self) -> None:
        try:
            self._session.close()
        finally:
            self._target.close(self._slot)


def round_of(bench: Bench, before: History, tokens: tuple[int, ...]) -> Committed:
    """What the engine reports of the prompt, or of a round whose draft was fully accepted."""
    text, needs = [token for part in before for token in part], bench.drafter.needs
    hidden = Hidden.union(needs)
    draft, logits, states = Draft(tokens[:-1] if text else ()), None, None
    # A prompt is scored up to its last token, a round up to its last draft token.
    seen = text if text else tokens[:-1]
    if seen and (hidden is not None or (text and Need.LOGITS in needs)):
        slot = bench.target.open(len(text) + len(tokens))
        try:
            done = text[:-1]
            prefill(bench.target, slot, done)
            work = Work(slot, seen[len(done) :], draft, hidden=hidden)
            (scores,) = bench.target.score([work])
            logits, states = scores.logits, scores.hidden
        finally:
            bench.target.close(slot)
    if not text:
        return Committed(tokens, hidden=states)
    logits = logits if Need.LOGITS in needs else None
    return Committed(tokens, draft, tuple(range(len(draft))), logits, states)


def warp_after(
    bench: Bench, history: History, params: SamplingParams | None = None
) -> SamplingWarp:
    warp = SamplingWarp(params or bench.params, history[0])
    for tokens in history[1:]:
        warp.observe(tokens)
    return warp


def propose(
    bench: Bench,
    history: History,
    budget: int,
    noise: Noise,
    params: SamplingParams | None = None,
) -> Draft:
    """What a new session proposes after `history`, with the checks that apply to a single draft.

    Args:
        params: the sampling options; None takes those of the bench.
    """
    params = bench.params if params is None else params
    with session_after(bench, history) as session:
        draft = drive(session.propose(Budget(budget), warp_after(bench, history, params), noise))
    _check_draft(bench, draft, budget)
    _check_declared(bench.drafter, draft, params)
    return draft


def _check_draft(bench: Bench, draft: Draft, budget: int) -> None:
    drafter, vocab = bench.drafter, bench.vocab_size
    if draft.max_path_length > budget:
        fail(
            drafter,
            DrafterRule.BUDGET,
            f"it proposed {draft.max_path_length} tokens on a path for a budget of {budget}",
        )
    for node, token in enumerate(draft.tokens):
        if type(token) is not int or not 0 <= token < vocab:
            fail(
                drafter,
                DrafterRule.VOCABULARY,
                f"it proposed {token!r}; the vocabulary is the integers from 0 to {vocab - 1}",
            )
        if (law := draft.law(node)) is not None:
            _check_law(drafter, law, token, vocab)
    alone = draft.scheme is Scheme.SINGLE
    if alone and any(len(draft.children(n)) > 1 for n in range(-1, len(draft))):
        fail(
            drafter, DrafterRule.LAW, "a node has several children under a scheme for only children"
        )


def _check_declared(drafter: Drafter, draft: Draft, params: SamplingParams) -> None:
    kinds = traits_of(drafter).drafts_where(is_greedy=params.is_greedy)
    if not kinds.schemes or not len(draft):
        return
    where = f"at temperature {params.temperature:g}"
    if draft.scheme not in kinds.schemes:
        declared = ", ".join(repr(str(scheme)) for scheme in sorted(kinds.schemes))
        fail(
            drafter,
            DrafterRule.DECLARED,
            f"{where} it made a draft of scheme {draft.scheme.value!r}; it declares {declared}",
        )
    if not kinds.draws and any(law is not None for law in draft.probs or ()):
        fail(
            drafter,
            DrafterRule.DECLARED,
            f"{where} it made a draft with laws; it declares that it draws nothing",
        )


def _check_law(drafter: Drafter, law: Tensor, token: int, vocab: int) -> None:
    if law.shape != (vocab,):
        fail(drafter, DrafterRule.LAW, f"a law has shape {tuple(law.shape)}, not ({vocab},)")
    total = float(law.sum())
    if not (law >= 0).all() or abs(total - 1) > 1e-4:
        fail(drafter, DrafterRule.LAW, f"a law has entries below 0, or its sum {total} is not 1")
    if not law[token] > 0:
        fail(drafter, DrafterRule.LAW, f"token {token} has no mass under the law that drew it")


def key_of(draft: Draft) -> tuple[Any, ...]:
    """All of a draft, in a comparable form."""
    laws = tuple(None if law is None else tuple(law.tolist()) for law in draft.probs or ())
    aux = draft.aux and (draft.aux.tokens, draft.aux.positions, str(draft.aux.visible.tolist()))
    return draft.tokens, draft.parents, draft.scheme, aux, draft.confidence, laws
