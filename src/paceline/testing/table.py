"""A scripted target with known probabilities, for tests and for the audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.protocols import Work
from paceline.core.target import Need, Scores, TargetInfo
from paceline.core.view import TargetView
from paceline.errors import ContextOverflow, ContractViolation, InvalidInput

Table = Callable[[tuple[int, ...]], Tensor]
"""From all tokens so far to the probabilities `[V]` of the next one."""


@dataclass(slots=True, eq=False)
class TableSlot:
    """The cached tokens, and the tokens and draft that were scored after them."""

    tokens: list[int] = field(default_factory=list)
    scored: tuple[Sequence[int], Draft] | None = None


class TableTarget:
    """The distribution of the next token is a function of the tokens so far, in float64.

    Args:
        table: a `[V]` tensor (the same distribution everywhere), a `[V, V]` tensor (row t follows
            token t), or a function from all tokens so far to `[V]`.
        vocab_size: V; needed if `table` is a function.
        max_length: the context limit.
        states: a function from all tokens so far to the hidden state `[d]` of the last of them, for
            drafters that read `Hidden` states: it is given as the final state and as the input of
            each of `num_layers` layers and the output of the last; None gives none.
        num_layers: the number of layers.
        embedding: `[V, d]`, the input embedding that drafters may ask for; None gives none.

    Example:
        >>> target = TableTarget(torch.tensor([0.75, 0.25]))
        >>> target.info.vocab_size
        2
    """

    def __init__(
        self,
        table: Tensor | Table,
        *,
        vocab_size: int | None = None,
        max_length: int | None = None,
        states: Table | None = None,
        num_layers: int = 1,
        embedding: Tensor | None = None,
    ) -> None:
        if isinstance(table, Tensor):
            vocab_size, rows = table.shape[-1], table.to(torch.float64)
            self._law: Table = (
                (lambda tokens: rows) if rows.dim() == 1 else (lambda tokens: rows[tokens[-1]])
            )
        elif vocab_size is None:
            raise InvalidInput("a table that is a function needs vocab_size")
        else:
            self._law = table
        gives: set[Need | Hidden] = {Need.LOGITS, Need.TREE, Need.AUXILIARY}
        if states is not None:
            gives.add(Hidden.all(num_layers))
        if embedding is not None:
            gives.add(Need.EMBEDDING)
        self._states, self._embedding = states, embedding
        self.prefixes: None = None
        """See `protocols.Target.prefixes`: there is nothing to save."""
        self.info = TargetInfo("table", vocab_size, max_length, gives=frozenset(gives))

    def open(self, capacity: int) -> TableSlot:
        """See `protocols.Target.open`."""
        limit = self.info.max_length
        if limit is not None and capacity > limit:
            raise ContextOverflow(f"the table takes {limit} tokens; {capacity} were requested")
        return TableSlot()

    def slot_bytes(self, capacity: int) -> int:
        """See `protocols.Target.slot_bytes`: a token is counted as eight bytes."""
        return 8 * capacity

    def length(self, slot: TableSlot) -> int:
        """See `protocols.Target.length`."""
        return len(slot.tokens)

    def score(self, work: Sequence[Work]) -> list[Scores]:
        """See `protocols.Target.score`."""
        scores = []
        for slot, new, draft, wanted, asked in work:
            slot.scored = new, draft
            before = (*slot.tokens, *new)
            paths = [(), *(draft.path(node) for node in range(len(draft)))]
            drafted = [tuple(draft.tokens[i] for i in path) for path in paths]
            after = [(*before, *tokens) for tokens in [*drafted, *_auxiliary(draft)]]
            hidden = None
            if asked is not None:
                first = len(slot.tokens) + 1
                rows = [*(before[:end] for end in range(first, len(before))), *after]
                hidden = self._hidden(rows, asked)
            logits = torch.empty(0, self.info.vocab_size, dtype=torch.float64)
            if wanted:
                logits = torch.stack([self._law(text) for text in after]).to(torch.float64).log()
            scores.append(Scores(logits, hidden))
        return scores

    def _hidden(self, texts: Sequence[tuple[int, ...]], asked: Hidden) -> HiddenStates:
        assert self._states is not None
        states = torch.stack([self._states(text) for text in texts])
        return HiddenStates(dict.fromkeys(asked.layers, states), states if asked.final else None)

    def commit(self, slot: TableSlot, path: Sequence[int]) -> None:
        """See `protocols.Target.commit`."""
        if slot.scored is None:
            raise ContractViolation("commit without a score before it")
        tokens, draft = slot.scored
        if not draft.is_path(path):
            raise ContractViolation(f"commit takes a path from the root; {list(path)} is not one")
        slot.tokens += [*tokens, *(draft.tokens[node] for node in path)]
        slot.scored = None

    def rollback(self, slot: TableSlot, length: int) -> None:
        """See `protocols.Target.rollback`."""
        if not 0 <= length <= len(slot.tokens):
            raise ContractViolation(
                f"rollback only shortens: the slot has {len(slot.tokens)} tokens, {length} "
                "requested"
            )
        del slot.tokens[length:]
        slot.scored = None

    def view(self, slot: TableSlot) -> TargetView:
        """See `protocols.Target.view`."""
        embedding = self._embedding
        return TargetView(
            self.info, embed=None if embedding is None else lambda tokens: embedding[tokens]
        )

    def close(self, slot: TableSlot) -> None:
        """See `protocols.Target.close`."""
        slot.tokens, slot.scored = [], None


def _auxiliary(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens after the root that each auxiliary row sees, in order of position."""
    if draft.aux is None:
        return []
    depths = [len(draft.path(node)) for node in range(len(draft))]
    tokens = [*draft.tokens, *draft.aux.tokens]
    places = [*depths, *draft.aux.positions]
    order = sorted(range(len(tokens)), key=places.__getitem__)
    return [tuple(tokens[i] for i in order if bool(seen[1 + i])) for seen in draft.aux.visible]
