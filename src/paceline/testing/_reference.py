"""A target and plain decoding on it: the reference that everything else is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NoReturn

import torch
from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.protocols import Target, Work
from paceline.errors import ContractViolation


class TargetRule(StrEnum):
    """The rules that `check_target` checks; its errors name one of them."""

    INFO = "info"
    """The name, vocabulary size and limits have the right types."""
    SCORES = "scores"
    """One row for the root and one for each node, without NaN, in float32 or float64, on the CPU.
    Rows do not change later, and the same pass gives the same rows."""
    LENGTH = "length"
    """Only commit and rollback change the cached length; score does not."""
    PREFILL = "prefill"
    """A prompt processed at once, in parts, or with a draft gives the same as token by token."""
    CHAIN = "chain"
    """Each row of a chain is what plain decoding gives after those tokens."""
    TREE = "tree"
    """Each row of a tree is what plain decoding gives after the path to its node."""
    AUXILIARY = "auxiliary"
    """Each auxiliary row is what plain decoding gives after the tokens that it sees."""
    COMMIT = "commit"
    """A commit keeps the tokens and the path of the last score, and nothing else."""
    ROLLBACK = "rollback"
    """What is rolled back leaves no trace."""
    BATCH = "batch"
    """Slots that share a pass get the rows that each would get alone, in order."""
    ISOLATION = "isolation"
    """Slots are independent of each other, open or closed."""
    LIMIT = "limit"
    """More than `max_length` is refused when a slot is opened; up to that everything works."""
    MEMORY = "memory"
    """`slot_bytes` is a whole number that does not fall with the capacity."""
    PREFIXES = "prefixes"
    """What is recalled is what was read, and only the same tokens after the same text are."""
    FAILURE = "failure"
    """Valid input raises nothing else."""


PARENTS = (-1, -1, 0, 1, 1, 4, 0)
"""A tree with siblings on two levels, whose deepest path is not its first."""

DEPTH = 3
"""The length of its longest path."""

ROOM = 6
"""The number of tokens that a draft and what follows it add to a prompt."""


class _Broken(ContractViolation):
    """A broken rule that was found here, as opposed to an error raised by the target itself."""


class Check:
    """The target, how to compare, and plain decoding as the reference.

    Rows are compared after their slot was closed, since the reference opens slots of its own: a
    target that mixes up slots should fail in the check for that.
    """

    def __init__(self, target: Target, tolerance: float, trees: bool) -> None:
        self.target, self.tolerance, self.trees = target, tolerance, trees
        self._rows: dict[tuple[int, ...], Tensor] = {}
        self._noted: list[tuple[TargetRule, Tensor, tuple[int, ...], str]] = []

    def tree(self) -> Draft:
        """A tree of `PARENTS`, or a short chain if the target takes no trees."""
        if not self.trees:
            return self.chain(DEPTH)
        tokens = self._tokens(len(PARENTS), 0)
        return Draft(tokens, PARENTS[: len(tokens)])

    def chain(self, length: int, salt: int = 0) -> Draft:
        """A chain of up to `length` tokens; a different `salt` gives different tokens."""
        return Draft(self._tokens(length, 1 + salt))

    def _tokens(self, count: int, salt: int) -> tuple[int, ...]:
        info = self.target.info
        count = count if info.max_draft_tokens is None else min(count, info.max_draft_tokens)
        return tuple((info.vocab_size // 3 + 5 * i + salt) % info.vocab_size for i in range(count))

    def fail(self, rule: TargetRule, detail: str) -> NoReturn:
        raise self._violation(rule, detail)

    def _violation(self, rule: TargetRule, detail: str) -> _Broken:
        name = type(self.target).__name__
        return _Broken(f"target {name} breaks the rule {rule.value!r}: {detail}")

    @contextmanager
    def calls(self, rule: TargetRule) -> Iterator[None]:
        """Names the rule that was checked when the target raised."""
        try:
            yield
        except _Broken:
            raise
        except Exception as error:
            detail = f"while {rule.value!r} was checked it raised {error!r}"
            raise self._violation(TargetRule.FAILURE, detail) from error

    @contextmanager
    def slot(self, rule: TargetRule, capacity: int) -> Iterator[Any]:
        """A new slot, always closed at the end; then its rows are compared."""
        with self.calls(rule):
            slot = self.target.open(capacity)
            try:
                yield slot
            finally:
                self.target.close(slot)
        self.compare()

    def score(self, work: Sequence[Work]) -> list[Tensor]:
        """The logits of each item, their form checked."""
        items, vocab = list(work), self.target.info.vocab_size
        all_scores = self.target.score(items)
        if len(all_scores) != len(items):
            self.fail(TargetRule.SCORES, f"{len(all_scores)} scores for {len(items)} drafts")
        for item, scores in zip(items, all_scores, strict=True):
            logits: Any = scores.logits
            shape = (item.num_scored, vocab)
            if not isinstance(logits, Tensor) or tuple(logits.shape) != shape:
                found = getattr(logits, "shape", type(logits).__name__)
                self.fail(TargetRule.SCORES, f"logits {shape} expected, {found} found")
            if logits.dtype not in (torch.float32, torch.float64) or logits.device.type != "cpu":
                self.fail(TargetRule.SCORES, f"logits in {logits.dtype} on {logits.device}")
            if bool(logits.isnan().any()):
                self.fail(TargetRule.SCORES, "logits that are not numbers")
        return [scores.logits for scores in all_scores]

    def row_after(self, text: tuple[int, ...]) -> Tensor:
        """The reference: the row `[V]` after the last token, decoded one token per pass."""
        if text not in self._rows:
            with self.slot(TargetRule.LENGTH, len(text) + 1) as slot:
                for position, token in enumerate(text):
                    row = self.score([Work(slot, [token], Draft())])[0][0]
                    self._rows.setdefault(text[: position + 1], row.clone())
                    self.expect_length(slot, position)
                    self.target.commit(slot, ())
                    self.expect_length(slot, position + 1)
        return self._rows[text]

    def expect_length(self, slot: Any, length: int) -> None:
        if (found := self.target.length(slot)) != length:
            self.fail(TargetRule.LENGTH, f"a slot of {length} cached tokens reports {found}")

    def expect_row(self, rule: TargetRule, row: Tensor, text: tuple[int, ...], where: str) -> None:
        """Record a row, to be compared with the reference after `text`."""
        self._noted.append((rule, row.clone(), text, where))

    def compare(self) -> None:
        """Compare the rows recorded so far."""
        noted, self._noted = self._noted, []
        for rule, row, text, where in noted:
            if apart := self.apart(row, self.row_after(text)):
                self.fail(rule, f"{where} after the tokens {list(text)}, {apart}")

    def expect_rows(
        self, rule: TargetRule, rows: Tensor, text: tuple[int, ...], draft: Draft, where: str
    ) -> None:
        """Record the rows of a root (the last of `text`) and its draft."""
        self.expect_row(rule, rows[0], text, f"{where}, root")
        for node in range(len(draft)):
            path = tuple(draft.tokens[i] for i in draft.path(node))
            self.expect_row(rule, rows[node + 1], (*text, *path), f"{where}, node {node}")

    def apart(self, found: Tensor, expected: Tensor) -> str | None:
        """How two rows differ, if they do. Infinities of the same sign are equal."""
        off = torch.where(found == expected, 0.0, (found - expected).abs())
        finite = expected[expected.isfinite()].abs()
        scale = max(1.0, float(finite.max()) if len(finite) else 1.0)
        worst = int(off.argmax())
        if float(off[worst]) <= self.tolerance * scale:
            return None
        return (
            f"token {worst} has the logit {float(found[worst]):.6g}, and "
            f"{float(expected[worst]):.6g} when it is decoded one token per pass"
        )
