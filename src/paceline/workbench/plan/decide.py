"""From measurements to a decision: which method, how many draft tokens, up to which batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

from paceline.economics.acceptance import AcceptanceProfile
from paceline.economics.stats import AcceptanceCounts
from paceline.workbench.plan.acceptance import MeasuredSpeed
from paceline.workbench.plan.costs import MethodCosts, PassCosts
from paceline.workbench.plan.predict import Prediction, predict
from paceline.workbench.workload.methods import USUAL_FORM, DraftSource, HeadForm

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PLAIN = "none"


AUTO = "auto"
"""In place of a draft length: a controller chooses the length."""

CLOSE = 0.03
"""`auto` is preferred to a fixed length that is predicted to be faster by less than this share,
because `auto` was measured, and adapts to other texts."""

POSSIBLE = 1.15
"""A measured speed-up of more than this times the tokens per round is noise."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method to choose from.

    Args:
        name: its name in tables.
        by_length: acceptance by position, for each known draft length.
        costs: the time of its drafts.
        drafter: the name under which the drafter is registered.
        draft: the draft model, if there is one.
        settings: of the drafter.
        adaptive: its measured speed with lengths chosen by a controller.
        head: how a draft head is loaded, if there is one and no draft model.
    """

    name: str
    by_length: Mapping[int, AcceptanceCounts]
    costs: MethodCosts
    drafter: str
    draft: DraftSource | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    adaptive: Sequence[MeasuredSpeed] = ()
    head: HeadForm = USUAL_FORM


@dataclass(frozen=True, slots=True)
class Decision:
    """The recommendation.

    Args:
        rows: every method and length at batch 1 and the measured context: predicted fixed lengths,
            and measured ones that a controller chose.
        best: the fastest of them; None if plain decoding is the fastest.
        by_batch: for each batch, the fastest method and fixed length; None means plain decoding.
            Empty if no fixed length is known.
        by_context: the same at longer contexts.
        free_rows: the rows that cost a pass (nearly) nothing, see `PassCosts.free_rows`.
        noise: measured speeds that the tokens per round do not allow; they are ignored.
    """

    rows: tuple[Prediction, ...]
    best: Prediction | None
    by_batch: Mapping[int, Prediction | None]
    by_context: Mapping[int, Prediction | None]
    free_rows: int
    noise: tuple[MeasuredSpeed, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "predictions": [asdict(row) for row in self.rows],
            "best": _json(self.best),
            "by_batch": {str(batch): _json(row) for batch, row in self.by_batch.items()},
            "by_context": {str(context): _json(row) for context, row in self.by_context.items()},
            "free_rows": self.free_rows,
            "noise": [asdict(row) for row in self.noise],
        }

    def schedule(self, method: str) -> list[tuple[int, int, int]]:
        """(smallest batch, largest batch, k) for one method, as in vLLM's table.

        The k of a batch is valid up to the next batch that was predicted; the last one has no end.
        """
        chosen = {
            batch: row.fixed_length if row is not None and row.method == method else 0
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

    With a larger batch, rows cost more, and more sequences share the plain pass that they are
    compared with. So a method does not gain more at a larger batch than at a smaller one. A
    prediction that does is noise: it is cut to that of the smaller batch.

    Args:
        methods: the methods to choose from.
        passes: measured.
        plain: the time of plain decoding outside its passes.
        lengths: draft lengths; None means all that are known.
        batches, contexts: others to predict for.
    """

    def every(batch: int, context: int | None) -> list[Prediction]:
        return [
            predict(
                method.name, counts, k, passes, method.costs,
                plain=plain, batch=batch, context=context,
            )
            for method in methods
            for k, counts in method.by_length.items()
            if not lengths or k in lengths
        ]  # fmt: skip

    fixed = every(1, None)
    speeds = [(method, speed) for method in methods for speed in method.adaptive]
    noise = tuple(speed for _, speed in speeds if speed.speedup > POSSIBLE * speed.tokens)
    measured = [_measured(method, speed, passes) for method, speed in speeds if speed not in noise]
    rows = [*fixed, *(measured if not lengths else ())]
    by_batch = {}
    before = fixed
    for batch in sorted(batches) if fixed else ():
        before = [
            row if row.speedup <= smaller.speedup else _no_faster(row, smaller)
            for row, smaller in zip(every(batch, None), before, strict=True)
        ]
        by_batch[batch] = _fastest(before)
    return Decision(
        rows=tuple(rows),
        best=_fastest(rows),
        by_batch=by_batch,
        by_context={context: _fastest(every(1, context)) for context in contexts if fixed},
        free_rows=passes.free_rows(),
        noise=noise,
    )


def _measured(method: Method, speed: MeasuredSpeed, passes: PassCosts) -> Prediction:
    return Prediction(
        method=method.name,
        num_draft_tokens=AUTO,
        batch=1,
        context=passes.context,
        tokens=speed.tokens,
        seconds=speed.seconds,
        speedup=speed.speedup,
        low=speed.low,
        high=speed.high,
    )


def _no_faster(row: Prediction, smaller: Prediction) -> Prediction:
    share = smaller.speedup / row.speedup
    return replace(row, speedup=smaller.speedup, low=row.low * share, high=row.high * share)


def _fastest(rows: Sequence[Prediction]) -> Prediction | None:
    best = max(rows, key=lambda row: row.speedup, default=None)
    if best is None or best.speedup <= 1:
        return None
    adaptive = [row for row in rows if row.num_draft_tokens == AUTO]
    nearest = max(adaptive, key=lambda row: row.speedup, default=best)
    return nearest if nearest.speedup >= (1 - CLOSE) * best.speedup else best


def sentences(decision: Decision) -> list[str]:
    """The recommendation, in words."""
    best = decision.best
    found = [
        f"{speed.name} was measured at {speed.speedup:.2f} times plain decoding with "
        f"{speed.tokens:.2f} tokens per round. That is noise and is ignored: measure it again."
        for speed in decision.noise
    ]
    if best is None:
        nearest = max(decision.rows, key=lambda row: row.speedup, default=None)
        why = "nothing was ever drafted"
        if decision.noise:
            why = "no other method is known to pay"
        if nearest is not None:
            why = (
                f"the best, {nearest.method} with k = {nearest.num_draft_tokens}, would give "
                f"{_speed(nearest)}"
            )
        return [*found, f"Do not use speculation here: {why}."]
    how = ", as measured" if best.num_draft_tokens == AUTO else ""
    found.append(f"Use {best.method} with k = {best.num_draft_tokens}: {_speed(best)}{how}.")
    if best.low <= 1:
        found.append("The interval includes 1, so it may not pay: measure more text first.")
    if any(row.num_draft_tokens == AUTO for row in decision.rows):
        found.append(
            "With auto, drafts are long where the text is easy, so they say little about fixed "
            "lengths. Those are planned only as far as their acceptance is known without that "
            "selection; `paceline bench` with k=2,4,8 measures more of them."
        )
    if decision.by_batch:
        found.append(_batches(decision))
    found.append(
        f"A pass over {decision.free_rows} rows takes at most 10 % longer than over one: beyond "
        "that, drafted and batched rows cost time."
    )
    return found


def _batches(decision: Decision) -> str:
    """The fastest method for each range of batches, in one line."""
    ranges = []
    by_batch = sorted(decision.by_batch.items(), key=lambda pair: pair[0])
    for choice, rows in groupby(by_batch, key=lambda pair: _choice(pair[1])):
        batches = [batch for batch, _ in rows]
        first, last = batches[0], batches[-1]
        where = f"{first}" if first == last else f"{first} to {last}"
        if last == by_batch[-1][0]:
            where = f"{first} and more"
        ranges.append(f"{where}: {choice}")
    return f"By batch, with fixed lengths: {'; '.join(ranges)}."


def _choice(row: Prediction | None) -> str:
    return "plain decoding" if row is None else f"{row.method} with k = {row.num_draft_tokens}"


def _speed(row: Prediction) -> str:
    return (
        f"{row.speedup:.2f} times the speed of plain decoding ({row.low:.2f} to {row.high:.2f}), "
        f"{row.tokens:.2f} tokens per round"
    )


def _json(row: Prediction | None) -> dict[str, Any] | None:
    return None if row is None else asdict(row)


def counts_of_rates(
    rates: Sequence[float], num_draft_tokens: int, rounds: int = 10_000
) -> AcceptanceCounts:
    """The counts that acceptance rates would give, for a plan without a measurement.

    Args:
        rates: one for every position, or one *conditional* rate per position.
        num_draft_tokens: the length of every draft.
        rounds: the number of rounds, which sets the width of intervals.

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
