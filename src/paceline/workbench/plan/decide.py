"""From measurements to a decision: which method, how many draft tokens, up to which batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from paceline.economics.acceptance import AcceptanceProfile
from paceline.economics.stats import AcceptanceCounts
from paceline.workbench.plan.costs import MethodCosts, PassCosts
from paceline.workbench.plan.predict import Prediction, predict
from paceline.workbench.workload.methods import DraftSource

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PLAIN = "none"


@dataclass(frozen=True, slots=True)
class Method:
    """A method that is considered.

    Args:
        name: for tables.
        counts: acceptance by position.
        costs: what its drafts take.
        drafter: under which the drafter is registered.
        draft: the draft model, where there is one.
        settings: of the drafter.
    """

    name: str
    counts: AcceptanceCounts
    costs: MethodCosts
    drafter: str
    draft: DraftSource | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """The longest draft that the counts tell of."""
        return len(self.counts.drafted)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do.

    Args:
        rows: every method and length at batch 1 and the measured context.
        best: the fastest of them; None where plain decoding is.
        by_batch: for each batch the fastest method and length there; None is plain decoding.
        by_context: the same at longer contexts.
        free_rows: rows that a pass takes for (nearly) nothing, see `PassCosts.free_rows`.
    """

    rows: tuple[Prediction, ...]
    best: Prediction | None
    by_batch: Mapping[int, Prediction | None]
    by_context: Mapping[int, Prediction | None]
    free_rows: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "predictions": [asdict(row) for row in self.rows],
            "best": _json(self.best),
            "by_batch": {str(batch): _json(row) for batch, row in self.by_batch.items()},
            "by_context": {str(context): _json(row) for context, row in self.by_context.items()},
            "free_rows": self.free_rows,
        }

    def schedule(self, method: str) -> list[tuple[int, int, int]]:
        """(smallest batch, largest batch, k) for one method, as vLLM's table takes it.

        The k of a batch holds up to the next one that was looked at; the last one has no end.
        """
        chosen = {
            batch: row.num_draft_tokens if row is not None and row.method == method else 0
            for batch, row in self.by_batch.items()
        }
        batches = sorted(chosen)
        ends = [*(batch - 1 for batch in batches[1:]), 10_000]
        rows = [(batch, end, chosen[batch]) for batch, end in zip(batches, ends, strict=True)]
        table = []
        for k, group in groupby(rows, key=lambda row: row[2]):
            members = list(group)
            table.append((members[0][0], members[-1][1], k))
        return table


def decide(
    methods: Sequence[Method],
    passes: PassCosts,
    *,
    plain: MethodCosts | None = None,
    lengths: Sequence[int] | None = None,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = (),
) -> Decision:
    """Predict every method and length, and take the fastest that is faster than plain decoding.

    Args:
        methods: what there is to choose from.
        passes: measured.
        plain: what plain decoding spends beside its passes.
        lengths: draft lengths; None is every one that the counts tell of.
        batches, contexts: where else to look.
    """

    def every(batch: int, context: int | None) -> list[Prediction]:
        return [
            predict(
                method.name,
                method.counts,
                k,
                passes,
                method.costs,
                plain=plain,
                batch=batch,
                context=context,
            )
            for method in methods
            for k in (lengths or range(1, method.longest + 1))
            if k <= method.longest
        ]

    rows = every(1, None)
    return Decision(
        rows=tuple(rows),
        best=_fastest(rows),
        by_batch={batch: _fastest(every(batch, None)) for batch in batches},
        by_context={context: _fastest(every(1, context)) for context in contexts},
        free_rows=passes.free_rows(),
    )


def _fastest(rows: Sequence[Prediction]) -> Prediction | None:
    best = max(rows, key=lambda row: row.speedup, default=None)
    return best if best is not None and best.speedup > 1 else None


def sentences(decision: Decision) -> list[str]:
    """What to do, in words."""
    best = decision.best
    if best is None:
        nearest = max(decision.rows, key=lambda row: row.speedup, default=None)
        why = "nothing was ever drafted"
        if nearest is not None:
            why = (
                f"the best, {nearest.method} with k = {nearest.num_draft_tokens}, would give "
                f"{_speed(nearest)}"
            )
        return [f"Do not use speculation here: {why}."]
    found = [f"Use {best.method} with k = {best.num_draft_tokens}: {_speed(best)}."]
    if best.low <= 1:
        found.append("The interval holds 1, so it may not pay: measure more text before you do.")
    if lost := [batch for batch, row in decision.by_batch.items() if row is None]:
        found.append(f"From a batch of {min(lost)} on plain decoding is faster.")
    others = {row.method for row in decision.by_batch.values() if row is not None} - {best.method}
    for name in sorted(others):
        where = [
            b for b, row in decision.by_batch.items() if row is not None and row.method == name
        ]
        found.append(f"At a batch of {', '.join(map(str, where))} {name} is faster.")
    found.append(
        f"A pass takes {decision.free_rows} rows for at most 10 % more time than one: beyond "
        "that, drafted and batched rows cost arithmetic."
    )
    return found


def _speed(row: Prediction) -> str:
    return (
        f"{row.speedup:.2f} times the speed of plain decoding ({row.low:.2f} to {row.high:.2f}), "
        f"{row.tokens:.2f} tokens a round"
    )


def _json(row: Prediction | None) -> dict[str, Any] | None:
    return None if row is None else asdict(row)


def counts_of_rates(
    rates: Sequence[float], num_draft_tokens: int, rounds: int = 10_000
) -> AcceptanceCounts:
    """The counts that acceptance rates would give, for a plan without a measurement.

    Args:
        rates: one for every position, or one *conditional* rate a position.
        num_draft_tokens: the length of every draft.
        rounds: how many; their number sets the width of intervals.

    >>> counts_of_rates([0.5], 2, rounds=8)
    AcceptanceCounts(rounds=8, drafted=(8, 8), tested=(8, 4), accepted=(4, 2))
    """
    profile = AcceptanceProfile(tuple(rates), rates[0] if len(rates) == 1 else None)
    accepted = [round(rounds * share) for share in profile.unconditional(num_draft_tokens)]
    return AcceptanceCounts(
        rounds=rounds,
        drafted=(rounds,) * num_draft_tokens,
        tested=tuple([rounds, *accepted][:num_draft_tokens]),
        accepted=tuple(accepted),
    )
