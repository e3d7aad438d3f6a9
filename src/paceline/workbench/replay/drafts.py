"""What a drafter would have proposed along a text, and what the target would have accepted."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from paceline.core.drafts import ROOT, Budget, Draft
from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import drive
from paceline.core.protocols import Drafter, Target
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.model import ModelDrafter
from paceline.drafting.model import fit
from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.workbench.replay.passes import read_states, teacher_forced
from paceline.workbench.replay.texts import RecordedText
from paceline.workbench.replay.walk import Row, walk


@dataclass(frozen=True)
class Replayed:
    """The result for one text.

    Args:
        counts: acceptance by position.
        num_draft_tokens: all drafted nodes.
        alpha: the sum of min(p, q) at each token of the answer, if it is known.
        draft_s: the time of proposing, by length of the draft; empty if nothing was proposed round
            by round.
    """

    counts: AcceptanceCounts
    num_draft_tokens: int
    alpha: tuple[float, ...] = ()
    draft_s: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Reader:
    """How texts are read.

    Args:
        info: the target's description.
        params: the sampling options of the target.
        target: for texts of others, and for distributions; None if it is not needed.
        by_target: whether the target wrote the texts, under `params`.
        seed: of all random draws.
    """

    info: TargetInfo
    params: SamplingParams
    target: Target | None
    by_target: bool
    seed: int = 0
    _references: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def needs_target(self) -> bool:
        """Whether the target is needed: only its own greedy text can be replayed without it."""
        return not (self.by_target and self.params.is_greedy)

    def replay(self, drafter: Drafter, text: RecordedText, num_draft_tokens: int) -> Replayed:
        """The acceptance that a drafter would have had on a text.

        Raises:
            InvalidInput: the drafter cannot be replayed on recorded text.
        """
        if isinstance(drafter, ModelDrafter) and not (
            drafter.min_confidence or drafter.entropy_bound
        ):
            return self._by_passes(drafter, text, num_draft_tokens)
        return self._by_rounds(drafter, text, num_draft_tokens)

    def _by_passes(
        self, drafter: ModelDrafter, text: RecordedText, num_draft_tokens: int
    ) -> Replayed:
        """Replay a draft model that follows the text: every position is a row of the same pass."""
        rows = list(self._rows(drafter, text))
        limit = drafter.model.info.max_length
        room = len(text.prompt) + self._room(text)
        # See DraftModel.reach: the last draft token is not fed to the draft model.
        reach = room if limit is None else min(room, limit)

        def longest(done: int) -> int:
            left = reach - len(text.prompt) - done + 1
            return max(0, min(num_draft_tokens, self._room(text) - done - 1, left))

        random = torch.Generator().manual_seed(self._seed_of(text))
        counts = walk(rows, longest, lambda: float(torch.rand((), generator=random)))
        alpha = tuple(row.alpha for row in rows if row.alpha is not None)
        return Replayed(counts, counts.num_draft_tokens, alpha)

    def _rows(self, drafter: ModelDrafter, text: RecordedText) -> Iterator[Row]:
        draft_params = drafter.params or self.params
        ours = SamplingWarp(self.params, text.prompt)
        theirs = ours if drafter.params is None else SamplingWarp(draft_params)
        laws_of_target = self._laws(ours, text) if self.needs_target else None
        for place, logits in enumerate(self._draft_logits(drafter.model, text)):
            token, path = text.answer[place], text.answer[:place]
            q = theirs.law(logits, path)
            if laws_of_target is None:
                # The target's distribution is a point mass on the recorded token.
                yield Row(float(q[token]), alpha=float(q[token]))
                continue
            p = next(laws_of_target)
            both = torch.minimum(p, q.to(p.dtype))
            alpha, common, whole = float(both.sum()), float(both[token]), float(p[token])
            alpha = min(alpha, 1.0)
            if not self.by_target:
                yield Row(common, max(0.0, alpha - common), alpha)
            elif whole > 0:
                yield Row(min(1.0, common / whole), alpha=alpha)
            else:
                # Rounding: the passes that made the text gave this token mass, this one does not.
                yield Row(0.0, alpha=alpha)

    def _draft_logits(self, model: Target, text: RecordedText) -> Iterator[Tensor]:
        tokens = list(text.tokens)
        limit, vocab = model.info.max_length, model.info.vocab_size
        known = [token if token < vocab else 0 for token in tokens]
        # A draft reaches one token past what the draft model takes.
        fed = known if limit is None else known[: limit + 1]
        count = 0
        if len(fed) > len(text.prompt):
            for block in teacher_forced(model, fed, len(text.prompt)):
                for row in block:
                    count += 1
                    yield fit(row, self.info.vocab_size)
        for _ in range(len(text.answer) - count):
            yield torch.zeros(self.info.vocab_size)  # no draft reaches this position

    def _laws(self, warp: SamplingWarp, text: RecordedText) -> Iterator[Tensor]:
        if self.target is None:
            raise InvalidInput(
                "the target is needed for its distributions, and it was not loaded; only its own "
                "text at temperature 0 can be replayed without it"
            )
        place = 0
        for block in teacher_forced(self.target, text.tokens, len(text.prompt)):
            for row in block:
                yield warp.law(row, text.answer[:place])
                place += 1

    def _by_rounds(self, drafter: Drafter, text: RecordedText, num_draft_tokens: int) -> Replayed:
        """Replay a deterministic drafter: it proposes round by round."""
        hidden = Hidden.union(drafter.needs)
        # One pass over the text has all that a head reads of the target.
        of_text = {Need.TREE} if hidden is None else {Need.TREE, Need.EMBEDDING, Need.HEAD}
        if missing := {need for need in drafter.needs - of_text if not isinstance(need, Hidden)}:
            words = ", ".join(sorted(map(str, missing)))
            raise InvalidInput(
                f"drafter {drafter.name!r} needs {words} of the target's "
                "passes over its own drafts, which no recorded text has; measure it with "
                "`paceline bench`"
            )
        said = self._reference(text)
        counts, nodes, done = AcceptanceCounts(), 0, 0
        times: list[tuple[int, float]] = []
        warp = SamplingWarp(self.params, text.prompt)
        noise = SeededNoise(self._seed_of(text))
        states, view = None, TargetView(self.info)
        if hidden is not None:
            states, view = read_states(self._loaded(drafter.name), text.tokens, hidden)
        session = drafter.open(view, len(text.prompt) + self._room(text))
        try:
            seen = _rows_of(states, 0, len(text.prompt) - 1)
            session.observe(Committed(text.prompt, hidden=seen))
            while done < len(text.answer):
                length = min(num_draft_tokens, self._room(text) - done - 1)
                start = perf_counter()
                draft = Draft()
                if length > 0:
                    draft = drive(session.propose(Budget(length), warp, noise))
                seconds = perf_counter() - start
                if draft.probs is not None and any(law is not None for law in draft.probs):
                    raise InvalidInput(
                        f"drafter {drafter.name!r} samples its tokens, and recorded text cannot "
                        "show what it would draft; replay it at temperature 0, or measure it with "
                        "`paceline bench`"
                    )
                path, left = _follow(draft, said[done:], text.answer[done:])
                on_text = len(path) - left
                unknown = left or done + on_text == len(text.answer)
                counts = counts.add(
                    draft.max_path_length, len(path), len(path) if unknown else None
                )
                nodes += len(draft)
                tokens = text.answer[done : done + on_text + 1]
                root = len(text.prompt) + done - 1
                seen = _rows_of(states, root, root + len(tokens))
                done += len(tokens)
                warp.observe(tokens)
                start = perf_counter()
                session.observe(Committed(tokens, draft, path[:on_text], hidden=seen))
                times.append((draft.max_path_length, seconds + perf_counter() - start))
        finally:
            session.close()
        return Replayed(counts, nodes, draft_s=tuple(times))

    def _loaded(self, drafter: str) -> Target:
        """The target, for a drafter that reads its hidden states.

        Raises:
            InvalidInput: it was not loaded.
        """
        if self.target is None:
            raise InvalidInput(
                f"drafter {drafter!r} reads the target's hidden states, and the target was not "
                "loaded; replay with --timed"
            )
        return self.target

    def _reference(self, text: RecordedText) -> tuple[int, ...]:
        """The target's token at each position of the answer, after the recorded tokens."""
        if self.by_target:
            return text.answer
        if text.id not in self._references:
            noise = SeededNoise(self._seed_of(text))
            laws = self._laws(SamplingWarp(self.params, text.prompt), text)
            said = tuple(
                noise.race(law, len(text.prompt) + place) for place, law in enumerate(laws)
            )
            self._references[text.id] = said
        return self._references[text.id]

    def _room(self, text: RecordedText) -> int:
        """The greatest possible length of the answer."""
        limit = self.info.max_length
        # Unknown: long enough that no draft is cut.
        most = 2**31 if text.max_tokens is None else text.max_tokens
        return most if limit is None else min(most, limit - len(text.prompt))

    def _seed_of(self, text: RecordedText) -> int:
        return self.seed + zlib.crc32(text.id.encode())


def _rows_of(states: HiddenStates | None, start: int, end: int) -> HiddenStates | None:
    """Some rows of the states of a text; None if there are none."""
    if states is None:
        return None
    rows = states.rows(slice(start, min(end, states.num_rows)))
    return rows if rows.num_rows else None


def _follow(
    draft: Draft, said: Sequence[int], recorded: Sequence[int]
) -> tuple[tuple[int, ...], bool]:
    """The accepted path, and whether its last token is not the recorded one.

    Tokens chosen deterministically are accepted if and only if they are the target's.
    """
    path: list[int] = []
    node = ROOT
    for token, own in zip(said, recorded, strict=True):
        match = [child for child in draft.children(node) if draft.tokens[child] == token]
        if not match:
            break
        node = match[0]
        path.append(node)
        if token != own:
            return tuple(path), True
    return tuple(path), False
