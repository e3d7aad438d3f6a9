"""The target over a decoder and its states: slots, masks, positions, rollback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paceline.core.drafts import ROOT, Draft
from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.protocols import Work
from paceline.core.target import Need, Scores, TargetInfo
from paceline.core.view import TargetView
from paceline.errors import ContextOverflow, ContractViolation, InvalidInput
from paceline.targets.attention import Pass, Segment
from paceline.targets.decoder import Decoder, Output
from paceline.targets.prefixes import PrefixStore
from paceline.targets.slot import Slot
from paceline.targets.state.protocol import State
from paceline.targets.text_head import Columns

PREFILL_ROWS = 512
"""Rows of one prefill pass. Bounds the memory for activations and masks."""


class CachedTarget:
    """A `protocols.Target` over any decoder.

    Args:
        decoder: the model.
        fixed_rows: the number of rows that every scoring pass is padded to, plain ones included,
            so that the logits of a committed token have the same bits whatever was drafted
            (invariant mode); None does not pad. A padded pass holds one sequence, and its draft
            is a chain: the branches of a tree lie between a row's keys and change how its sums
            are rounded.
        fixed_keys: in invariant mode, attention reads a multiple of this many cache rows.
        prefill_rows: the most rows of one prefill pass.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        fixed_rows: int | None = None,
        fixed_keys: int = 1,
        prefill_rows: int = PREFILL_ROWS,
    ) -> None:
        self.decoder = decoder
        self.fixed_rows, self.fixed_keys = fixed_rows, fixed_keys
        self.prefill_rows = prefill_rows
        self.prefixes = PrefixStore()
        """See `protocols.Target.prefixes`."""
        self._sample: State | None = None
        self.info = _info(decoder.info, fixed_rows)
        """See `protocols.Target.info`."""

    def open(self, capacity: int) -> Slot:
        """See `protocols.Target.open`."""
        limit = self.info.max_length
        if limit is not None and capacity > limit:
            raise ContextOverflow(
                f"{self.info.name} takes {limit} tokens, prompt and answer together; "
                f"{capacity} were asked for"
            )
        # Columns for the text come and go, and a product of another width may round differently.
        head = self.decoder.text_head() if self.fixed_rows is None else None
        return Slot(capacity, self.decoder.state(self._rows(capacity)), head=head)

    def slot_bytes(self, capacity: int) -> int:
        """See `protocols.Target.slot_bytes`; known from a pass over one token."""
        if self._sample is None:
            slot = self.open(1)
            self.score([Work(slot, (0,), logits=False)])
            self.commit(slot, ())
            self._sample = slot.state
            self.close(slot)
        return self._sample.bytes_for(self._rows(capacity))

    def _rows(self, capacity: int) -> int:
        """The rows of a slot: in invariant mode, attention reads beyond the last token."""
        return -(-capacity // self.fixed_keys) * self.fixed_keys + self.fixed_keys

    def length(self, slot: Slot) -> int:
        """See `protocols.Target.length`."""
        return slot.state.length

    def score(self, work: Sequence[Work]) -> list[Scores]:
        """See `protocols.Target.score`."""
        if self.fixed_rows is not None and len(work) > 1:
            return [scores for item in work for scores in self.score([item])]
        for item in work:
            self._check(item)
        tokens: list[int] = []
        positions: list[int] = []
        scored: list[int] = []
        segments: list[Segment] = []
        fed: list[list[HiddenStates]] = []
        for item in work:
            slot, draft = item.slot, item.draft
            start, known, early = self._feed_long(item)
            new, places = list(draft.tokens), [len(draft.path(node)) for node in range(len(draft))]
            if draft.aux is not None:
                new += draft.aux.tokens
                places += draft.aux.positions
            first, lead = len(tokens), len(known) - 1
            padding = self._padding(item, lead)
            # Padding rows repeat the root; no row sees them and their logits are dropped.
            tokens += [*known, *new, *[known[-1]] * padding]
            root = start + lead
            positions += [*range(start, root + 1), *(root + p for p in places), *[root] * padding]
            rows = len(tokens) - first
            plain = draft.is_chain and draft.aux is None
            visible = None if plain else _tree_mask(draft)
            # In invariant mode every row goes through a pass of the same shape. That holds for
            # the head too, whose product has its own shape.
            skipped = lead if self.fixed_rows is None else 0
            outputs = slice(0)
            columns: Sequence[Columns] = ()
            if item.logits:
                begin = len(scored) + lead - skipped
                outputs = slice(begin, begin + item.num_scored)
                scored += range(first + skipped, first + rows)
                if slot.head is not None:
                    columns = slot.head.columns(item.tokens[:-1], [known[-1], *new], visible)
            resume = None
            if slot.ahead is not None and item.logits and plain and self.fixed_rows is None:
                resume = slot.ahead.resume(known, draft, item.hidden)
            end = start + rows
            if item.logits:
                end = -(-end // self.fixed_keys) * self.fixed_keys
            slot.state.begin(start, end)
            mask = None if visible is None else _after(lead, visible)
            segments.append(
                Segment(slot.state, first, rows, start, mask, end, None, resume, outputs, columns)
            )
            fed.append(early)
            slot.forget()
        asked = Hidden.union(item.hidden for item in work)
        output = self._run(tokens, positions, segments, scored, asked)
        scores = []
        for item, segment, early in zip(work, segments, fed, strict=True):
            item.slot.scored = item.tokens, item.draft
            kept = output.logits[segment.outputs]
            logits = kept.to(torch.promote_types(kept.dtype, torch.float32)).cpu()
            scores.append(Scores(logits, _hidden_of(item, segment, early, output.hidden)))
        return scores

    def commit(self, slot: Slot, path: Sequence[int]) -> None:
        """See `protocols.Target.commit`."""
        if slot.scored is None:
            raise ContractViolation("commit without a score before it: the slot has no new rows")
        tokens, draft = slot.scored
        if not draft.is_path(path):
            raise ContractViolation(f"commit takes a path from the root; {list(path)} is not one")
        start = slot.state.length
        first = start + len(tokens)
        kept = [*tokens, *(draft.tokens[node] for node in path)]
        slot.forget()
        reached = slot.state.keep([*range(start, first), *(first + node for node in path)])
        slot.append(kept[: reached - start])
        self._run_again(slot, kept[reached - start :])

    def rollback(self, slot: Slot, length: int) -> None:
        """See `protocols.Target.rollback`."""
        if not 0 <= length <= slot.state.length:
            raise ContractViolation(
                f"rollback only shortens: the slot has {slot.state.length} tokens, not {length}"
            )
        slot.forget()
        reached = slot.state.cut(length)
        missing = slot.text[reached:length]
        slot.cut(reached)
        self._run_again(slot, missing)

    def close(self, slot: Slot) -> None:
        """See `protocols.Target.close`."""
        slot.capacity, slot.state, slot.head = 0, self.decoder.state(0), None
        slot.text.clear()
        slot.prefixes.clear()
        slot.forget()

    def view(self, slot: Slot) -> TargetView:
        """See `protocols.Target.view`."""
        return self.decoder.view(self.info, slot)

    def _run_again(self, slot: Slot, tokens: Sequence[int]) -> None:
        """Commit tokens for which `keep` fell short; it never does for a whole chain."""
        for first in range(0, len(tokens), self.prefill_rows):
            chunk, start = tokens[first : first + self.prefill_rows], slot.state.length
            positions = range(start, start + len(chunk))
            slot.state.begin(start, positions.stop)
            segment = Segment(slot.state, 0, len(chunk), start, None, positions.stop)
            self._run(chunk, positions, [segment], [], None)
            if slot.state.keep(positions) != positions.stop:
                raise ContractViolation(
                    f"the state of {self.info.name} did not keep all rows of a chain"
                )
            slot.append(chunk)

    def _require_room(self, slot: Slot, rows: int) -> None:
        """Refuse positions beyond the slot's capacity; they may lie outside the model's context."""
        if (needed := slot.state.length + rows) > slot.capacity:
            raise ContextOverflow(
                f"the slot was opened for {slot.capacity} tokens and would hold {needed}; "
                "open it for more, or give fewer"
            )

    def _check(self, item: Work) -> None:
        """Refuse what this target cannot score, before anything is written."""
        slot, tokens, draft = item.slot, item.tokens, item.draft
        if not tokens or not (item.logits or draft.num_rows == 1):
            raise ContractViolation(
                "score takes at least one committed token per slot, and no draft if no logits are "
                f"wanted; it was given {len(tokens)} tokens and a draft of {draft.num_rows - 1}"
            )
        plain = draft.is_chain and draft.aux is None
        if self.fixed_rows is not None and not plain:
            raise InvalidInput(
                "invariant mode takes drafts that are chains, and this one is a tree or has "
                "auxiliary rows; choose a drafter of chains, or decode without invariant mode"
            )
        if self.fixed_rows is not None and (rows := draft.num_rows) > self.fixed_rows:
            raise ContractViolation(
                f"invariant mode pads every pass to {self.fixed_rows} rows; a draft of {rows - 1} "
                f"tokens needs {rows}. Draft at most {self.fixed_rows - 1} tokens"
            )
        deepest = max((len(draft.path(node)) for node in range(len(draft))), default=0)
        if draft.aux is not None:
            deepest = max(deepest, *draft.aux.positions)
        self._require_room(slot, len(tokens) + deepest)

    def _feed_long(self, item: Work) -> tuple[int, Sequence[int], list[HiddenStates]]:
        """Run the first tokens in separate passes where one pass must not hold them all.

        Their rows are pending then, and are kept with the rest.

        Returns:
            Where the rest begins, the rest (at least one token), and the hidden states of the
            tokens before it, one part per pass.
        """
        slot, tokens = item.slot, item.tokens
        start, hidden = slot.state.length, []
        most = self.prefill_rows
        if self.fixed_rows is not None and item.logits:
            most = self.fixed_rows - item.num_scored + 1
        while len(tokens) > most:
            chunk = tokens[: min(self.prefill_rows, len(tokens) - 1)]
            end = start + len(chunk)
            segment = Segment(slot.state, 0, len(chunk), start, None, end)
            slot.state.begin(start, end)
            output = self._run(chunk, range(start, end), [segment], [], item.hidden)
            if output.hidden is not None:
                hidden.append(output.hidden)
            start, tokens = end, tokens[len(chunk) :]
        return start, tokens, hidden

    def _padding(self, item: Work, lead: int) -> int:
        """The rows that bring a pass to the fixed number; `lead` of its rows precede the root."""
        if self.fixed_rows is None or not item.logits:
            return 0
        return self.fixed_rows - lead - item.num_scored

    def _run(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        segments: list[Segment],
        scored: Sequence[int],
        hidden: Hidden | None,
    ) -> Output:
        device = self.decoder.device
        with torch.inference_mode():
            return self.decoder.run(
                Pass(
                    torch.tensor(tokens, device=device),
                    torch.tensor(positions, device=device),
                    segments,
                    torch.tensor(scored, dtype=torch.long, device=device),
                    hidden,
                )
            )


def _info(decoder: TargetInfo, fixed_rows: int | None) -> TargetInfo:
    """What the target reports of itself over a decoder that reports this."""
    gives = decoder.gives | {Need.LOGITS}
    if fixed_rows is None:
        return replace(decoder, gives=gives | {Need.TREE, Need.AUXILIARY})
    return replace(
        decoder,
        gives=gives,
        max_draft_tokens=fixed_rows - 1,
        invariant=True,
        row_costs={1: 1.0, fixed_rows: 1.0},
    )


def _hidden_of(
    item: Work, segment: Segment, early: list[HiddenStates], found: HiddenStates | None
) -> HiddenStates | None:
    """The hidden states of all rows of `item`: of the passes before, then of the last pass."""
    if item.hidden is None or found is None:
        return None
    count = item.num_rows - sum(part.num_rows for part in early)
    own = found.only(item.hidden).rows(slice(segment.first, segment.first + count))
    return HiddenStates.join([*early, own])


def _tree_mask(draft: Draft) -> Tensor:
    """Which rows each row sees: the root, its ancestors, itself. `[rows, rows]`.

    (The tree attention of SpecInfer, arXiv 2305.09781.) Auxiliary rows see what they declare.
    """
    seen = torch.eye(draft.num_rows, dtype=torch.bool)
    seen[:, 0] = True
    assert draft.parents is not None
    for node, parent in enumerate(draft.parents):
        if parent != ROOT:
            seen[node + 1] |= seen[parent + 1]
    if draft.aux is not None:
        seen[1 + len(draft) :] = draft.aux.visible
    return seen


def _after(count: int, visible: Tensor) -> Tensor:
    """The mask of `count` causal rows, followed by the rows of `visible`, which see all of them."""
    rows = count + len(visible)
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    seen[count:, count:] = visible
    return seen
