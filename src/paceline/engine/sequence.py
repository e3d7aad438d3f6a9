"""One sequence on its way through the engine: draft, verify, commit, and what it knows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from enum import Enum, auto
from time import perf_counter
from typing import NamedTuple

from paceline.core.drafts import ROOT, Budget, Draft, Outcome
from paceline.core.events import Event, Failed, Finished, FinishReason, Prefilled, Round
from paceline.core.hidden import Hidden
from paceline.core.passes import steps_of
from paceline.core.protocols import ControllerSession, Steps, Target, Work
from paceline.core.target import Committed, Need, Opening, Scores
from paceline.core.traits import traits_of
from paceline.engine.constrained import cut, forced_draft
from paceline.engine.contract import check_draft, check_verdict
from paceline.engine.diagnostics import Laws, diagnostics
from paceline.engine.gather import Answer, Drafting
from paceline.engine.request import Request, length_limit, token_ids
from paceline.errors import ContractViolation, InvalidInput
from paceline.sampling.noise import CoupledNoise
from paceline.sampling.warp import SamplingWarp

log = logging.getLogger("paceline")

_NOTHING = Draft()
"""The draft of a plain round."""


class SharedPass(NamedTuple):
    """A target pass: what it took, and what was in it."""

    seconds: float
    num_sequences: int
    num_rows: int
    prefill_rows: int
    num_set: int
    set_rows: int

    @classmethod
    def of(cls, work: Sequence[Work], follows_load: Sequence[bool], seconds: float) -> SharedPass:
        """The pass over `work`; `follows_load` says whose drafts follow it, see `core.traits`."""
        fixed = [
            item.num_rows
            for item, follows in zip(work, follows_load, strict=True)
            if item.logits and not follows
        ]
        return cls(
            seconds,
            sum(item.logits for item in work),
            sum(item.num_rows for item in work),
            sum(item.num_rows for item in work if not item.logits),
            len(fixed),
            sum(fixed),
        )


class Stage(Enum):
    """Where a sequence stands."""

    WAITING = auto()
    """Nothing is open yet."""
    READING = auto()
    """A part of its prompt is missing in the cache."""
    READ = auto()
    """All of its prompt but the last token is cached; its drafter has not seen it."""
    DECODING = auto()
    """Rounds."""
    CLOSED = auto()
    """Nothing is open any more."""


class ActiveSequence:
    """The state of one request: its tokens, its sessions, its place in the cache."""

    def __init__(self, number: int, request: Request, target: Target, now: float) -> None:
        self.id, self.request, self.target = number, request, target
        self.rank = request.priority, number
        self.tokens = token_ids(request.prompt)
        self.num_prompt_tokens = len(self.tokens)
        self.limit = length_limit(request, self.tokens, target.info)
        self.deadline = None if request.timeout is None else now + request.timeout
        self.reason: FinishReason | None = None
        self.rounds = 0
        self.budget = Budget(0)
        self.is_forced = False
        self.told: int | None = None
        self.draft_noise = (
            CoupledNoise(request.noise) if request.verifier.couples else request.noise
        )
        self.constraint = None if request.constraint is None else request.constraint.open()
        self.warp = SamplingWarp(
            request.params,
            self.tokens,
            processors=request.processors,
            min_tokens=request.min_tokens,
            # Models name end tokens beyond their own vocabulary; these cannot come out anyway.
            hold_back=[t for t in request.stop_token_ids if 0 <= t < target.info.vocab_size],
            constraint=self.constraint,
        )
        self.draft_warp = self.warp.for_drafts(request.draft_processors)
        if missing := target.info.lacks(request.drafter.needs):
            raise InvalidInput(
                f"drafter {request.drafter.name!r} needs {', '.join(missing)} of the "
                f"target, which {target.info.name} does not give; choose another drafter"
            )
        self.needs_logits = Need.LOGITS in request.drafter.needs
        self.hidden = Hidden.union(request.drafter.needs)
        self.follows_load = traits_of(request.controller).follows_load
        self.stage = Stage.WAITING
        self.num_bytes = 0
        """The memory that it takes at its full length, where the engine has a budget of it."""
        self.controller: ControllerSession | None = None
        self.prefill_seconds = 0.0
        self._num_cached = 0
        self._is_read = False
        self._prefill_rows = 0
        self._drafting: Drafting | None = None

    def start(self) -> None:
        """Open the slot and the sessions; after `set_back`, for the text so far."""
        start, target, request = perf_counter(), self.target, self.request
        if self.controller is None:
            self.controller = self._open_controller()
        self.slot = target.open(self.limit) if request.slot is None else request.slot
        try:
            self.session = request.drafter.open(target.view(self.slot), self.limit)
        except BaseException:
            self._close_slot()
            raise
        self.stage, self.told = Stage.READING, len(self.tokens)
        # Of what is cached the hidden states are gone.
        known = 0 if self.hidden is not None else target.length(self.slot)
        self._num_cached = min(known, len(self.tokens) - 1)
        target.rollback(self.slot, self._num_cached)
        self._look_for_more(start)

    def _open_controller(self) -> ControllerSession:
        request = self.request
        most = self.limit - self.num_prompt_tokens
        # Without a reason to end before, the answer has as many tokens as it may have.
        ends = bool(request.stop_token_ids or request.stop_rules)
        least = request.min_tokens if ends else most
        return request.controller.open(
            Opening(self.num_prompt_tokens, most, min(least, most), self.target.info)
        )

    @property
    def can_be_set_back(self) -> bool:
        """Whether `set_back` loses nothing: the slot is its own, and all of its text was told."""
        return self.request.slot is None and self.told in (None, len(self.tokens))

    def set_back(self) -> None:
        """Free what was opened. It can start again and go on with the same tokens.

        They follow from the text, and from draws that are keyed by seed and position. A draft that
        is made is kept, since a second one would draw other numbers. One in the making is lost: a
        rule whose tokens depend on the draft may then decide otherwise, by the same distribution.
        """
        kept = self._drafting if self.has_draft else None
        self.close()
        self.stage, self._drafting = Stage.WAITING, kept

    def next_chunk(self, rows: int) -> list[int]:
        """The next tokens of the text to read, at most `rows`; the last is left to the rounds."""
        self._prefill_rows = rows
        cached = self.target.length(self.slot)
        return self.tokens[cached : min(cached + rows, len(self.tokens) - 1)]

    @property
    def _shares(self) -> bool:
        """Whether it may take what others have read; of that, the hidden states are gone."""
        prefixes = self.target.prefixes
        return prefixes is not None and prefixes.is_on and self.hidden is None

    def shared_text(self, rows: int) -> tuple[int, ...] | None:
        """The text to the end of the next chunk, if others could take the chunk from it."""
        if not self._shares:
            return None
        end = self.target.length(self.slot) + len(self.next_chunk(rows))
        return tuple(self.tokens[:end])

    def recall(self, rows: int) -> None:
        """Take what others have read of the text, in chunks of `rows`, instead of reading it."""
        if not self._shares:
            return
        start, prefixes = perf_counter(), self.target.prefixes
        assert prefixes is not None
        while (chunk := self.next_chunk(rows)) and prefixes.recall(self.slot, chunk):
            self._num_cached += len(chunk)
        self._look_for_more(start)

    def observe_prompt(self) -> Prefilled | None:
        """Show the prompt to the drafter; one that needs hidden states has seen it in parts."""
        start = perf_counter()
        if self.hidden is None or len(self.tokens) == 1:
            self.session.observe(Committed(tuple(self.tokens)))
        self.stage = Stage.DECODING
        if len(self.tokens) == self.limit:
            self.reason = FinishReason.LENGTH
        if self._is_read:
            return None  # it was told before the sequence was set back
        self._is_read = True
        return Prefilled(
            id=self.id,
            num_prompt_tokens=self.num_prompt_tokens,
            seconds=self.prefill_seconds + perf_counter() - start,
            num_cached_tokens=self._num_cached,
        )

    def end(self, reason: FinishReason) -> None:
        """Let the answer end with what it has."""
        self.reason = reason

    def drafting(self) -> Drafting:
        """The draft of this round, in the making."""
        if self._drafting is None:
            self._drafting = Drafting(self._propose())
        return self._drafting

    def check_drafting(self) -> None:
        """Raise what drafting raised; it is forgotten, and could be tried again."""
        drafting, self._drafting = self._drafting, None
        if drafting is not None and drafting.error is not None:
            raise drafting.error

    @property
    def is_open(self) -> bool:
        """Whether it has a slot and a session: it is neither set back nor at its end."""
        return self.stage not in (Stage.WAITING, Stage.CLOSED)

    @property
    def has_draft(self) -> bool:
        """Whether the draft of this round is made."""
        return self._drafting is not None and self._drafting.draft is not None

    @property
    def draft(self) -> Draft:
        """The draft of this round, which is made."""
        draft = self.drafting().draft
        assert draft is not None
        return draft

    def work(self) -> Work:
        """This sequence's part of the next pass: its draft, or a chunk of its prompt."""
        if self.stage is Stage.READING:
            chunk = self.next_chunk(self._prefill_rows)
            return Work(self.slot, chunk, logits=False, hidden=self.hidden)
        return Work(self.slot, self.tokens[-1:], self.draft, hidden=self.hidden)

    def take(self, item: Work, answer: Answer, shared: SharedPass) -> Event | None:
        """Go on with what the pass said of `item`."""
        if isinstance(answer, Exception):
            raise answer
        if item.logits:
            return self.advance(item.draft, answer, shared)
        start = perf_counter()
        self.prefill_seconds += shared.seconds * item.num_rows / shared.num_rows
        self.target.commit(self.slot, ())
        if self.target.prefixes is not None:
            end = self.target.length(self.slot)
            self.target.prefixes.remember(self.slot, end - len(item.tokens))
        if answer.hidden is not None:
            # The tokens that follow its rows; the first token of all follows none.
            end = self.target.length(self.slot)
            first = end - len(item.tokens)
            tokens = self.tokens[first + 1 if first else 0 : end + 1]
            self.session.observe(Committed(tuple(tokens), hidden=answer.hidden))
        self._look_for_more(start)
        return self.observe_prompt() if self.stage is Stage.READ else None

    def _look_for_more(self, start: float) -> None:
        if self.target.length(self.slot) == len(self.tokens) - 1:
            self.stage = Stage.READ
        self.prefill_seconds += perf_counter() - start

    def _propose(self) -> Steps[Draft]:
        """Ask for a draft that leaves room for the token that every round adds."""
        room, most = self.limit - len(self.tokens) - 1, self.target.info.max_draft_tokens
        self.is_forced = False
        if self.constraint is not None:
            forced = forced_draft(self.constraint, room if most is None else min(room, most))
            if forced is not None:
                self.is_forced = True
                return forced
        assert self.controller is not None
        budget = self.controller.budget()
        if most is not None:
            if budget.longest > most and not self.rounds:
                log.warning(
                    "%s takes at most %d draft tokens a pass; %d were asked for",
                    self.target.info.name,
                    most,
                    budget.longest,
                )
            room = min(room, most)
        budget = budget.within(room)
        draft = _NOTHING
        if budget.longest > 0:
            proposal = self.session.propose(budget, self.draft_warp, self.draft_noise)
            draft = yield from steps_of(proposal)
            check_draft(draft, budget, self.request.drafter, self.request.verifier, self.target)
            if self.constraint is not None:
                draft = cut(draft, self.constraint, self.request.stop_token_ids)
        self.budget = budget
        return draft

    def advance(self, draft: Draft, scores: Scores, shared: SharedPass) -> Round:
        """Verify the draft, cut the block where the answer ends, commit it, tell it."""
        assert self.controller is not None
        drafting, self._drafting = self.drafting(), None
        start = perf_counter()
        laws = Laws(self.warp, scores.logits, draft, self.request.keep_scores)
        verdict = self.request.verifier.verify(draft, laws, self.request.noise, len(self.tokens))
        check_verdict(verdict, draft, self.request.verifier)
        block = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        kept, self.reason = self._cut(block)
        verify_seconds = perf_counter() - start

        # The last kept token is the next root and so stays out of the cache.
        path = verdict.path[: kept - 1]
        self.target.commit(self.slot, path)
        context, committed = len(self.tokens), tuple(block[:kept])
        self.tokens += committed
        self.warp.observe(committed)
        start = perf_counter()
        logits = scores.logits if self.needs_logits else None
        hidden = None
        if scores.hidden is not None:
            hidden = scores.hidden.rows([0, *(1 + node for node in path)])
        self.session.observe(Committed(committed, draft, path, logits, hidden))
        draft_seconds = drafting.seconds + perf_counter() - start
        accepted = min(kept, len(verdict.path))
        rejected = len(committed) > accepted and bool(draft.children((ROOT, *verdict.path)[-1]))
        outcome = Outcome(
            self.budget,
            draft,
            num_accepted_tokens=accepted,
            num_tested_tokens=accepted + rejected,
            draft_seconds=draft_seconds,
            target_seconds=shared.seconds,
            verify_seconds=verify_seconds,
            num_sequences=shared.num_sequences,
            pass_rows=shared.num_rows,
            context=context,
            prefill_rows=shared.prefill_rows,
            num_set=shared.num_set,
            set_rows=shared.set_rows,
        )
        if not self.is_forced:  # it was not asked how far to draft, and would learn nothing
            self.controller.observe(outcome)
        self.rounds += 1
        event = Round(
            id=self.id,
            number=self.rounds,
            tokens=committed,
            num_draft_tokens=len(draft),
            num_accepted_tokens=accepted,
            max_path_length=draft.max_path_length,
            draft_seconds=draft_seconds,
            target_seconds=shared.seconds,
            verify_seconds=verify_seconds,
            num_sequences=shared.num_sequences,
            num_rows=draft.num_rows,
            pass_rows=shared.num_rows,
            prefill_rows=shared.prefill_rows,
            drafter=draft.drafter or self.request.drafter.name,
            **diagnostics(self.request, scores.logits, laws, draft, verdict, committed),
        )
        self.told = len(self.tokens)
        return event

    def finished(self) -> Finished | Failed:
        """Close the sequence and say why it ended; where closing fails, that is why."""
        assert self.reason is not None
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - it is handed on
            return Failed(id=self.id, error=error, num_tokens=self._num_told)
        return Finished(id=self.id, reason=self.reason, num_tokens=self._num_told)

    def failed(self, error: Exception) -> Failed:
        """Close the sequence after an error."""
        try:
            self.close()
        except Exception as other:  # noqa: BLE001 - the first one is the one to tell
            error.add_note(f"closing the request also raised {other!r}")
        return Failed(id=self.id, error=error, num_tokens=self._num_told)

    @property
    def _num_told(self) -> int:
        return 0 if self.told is None else self.told - self.num_prompt_tokens

    def close(self) -> None:
        """Free what was opened. Safe to call twice."""
        stage, self.stage = self.stage, Stage.CLOSED
        if stage in (Stage.WAITING, Stage.CLOSED):
            return
        with ExitStack() as stack:
            stack.callback(self._close_slot)
            stack.callback(self.session.close)
            if self._drafting is not None:
                stack.callback(self._drafting.close)

    def _close_slot(self) -> None:
        if self.request.slot is None:
            self.target.close(self.slot)
        elif self.told is not None and self.target.length(self.slot) >= self.told:
            # A round failed after its commit: nobody has heard of those tokens.
            self.target.rollback(self.slot, self.told - 1)

    def _cut(self, block: list[int]) -> tuple[int, FinishReason | None]:
        """How many tokens of the block to keep, and whether the answer ends with the last."""
        request, old = self.request, len(self.tokens) - self.num_prompt_tokens
        ends = [old + i + 1 for i, token in enumerate(block) if token in request.stop_token_ids]
        if request.stop_rules and old + len(block) >= request.min_tokens:
            answer = [*self.tokens[self.num_prompt_tokens :], *block]
            above = max(old, request.min_tokens - 1)
            cuts = [rule(answer, above) for rule in request.stop_rules]
            ends += [cut for cut in cuts if cut is not None]
            if wrong := [cut for cut in ends if not old < cut <= len(answer)]:
                raise ContractViolation(
                    f"a stop rule cut the answer to {wrong[0]} tokens; it had to be above {above} "
                    f"and at most {len(answer)}"
                )
        if ends:
            return min(ends) - old, FinishReason.STOP
        full = len(self.tokens) + len(block) == self.limit
        return len(block), FinishReason.LENGTH if full else None
