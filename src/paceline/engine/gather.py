"""What several sequences ask of one model, run as one pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any

from paceline.core.drafts import Draft
from paceline.core.protocols import Ask, Steps, Target, Work
from paceline.core.target import Scores
from paceline.engine.contract import check_scores
from paceline.engine.threads import MOST_ROWS, THREADS
from paceline.errors import ContractViolation

Answer = Scores | Exception


def score_each(target: Target, work: Sequence[Work]) -> Sequence[Answer]:
    """One pass of a target over all; an error stands in the place of the items that cause it."""

    def score(items: Sequence[Work]) -> list[Scores]:
        with THREADS.all() if _has_many_rows(items) else nullcontext():
            scores = target.score(items)
        check_scores(scores, items, target.info)
        return scores

    return run_each(score, work)


def run_each(
    run: Callable[[Sequence[Any]], Sequence[Any]], work: Sequence[Any]
) -> Sequence[Any | Exception]:
    """One run over all; an error stands in the place of the items that cause it.

    A run that fails is done again item by item: scoring changes no cached length, and so an item
    that is at fault does not take the others with it.
    """
    try:
        answers = run(work)
        if len(answers) != len(work):
            raise ContractViolation(
                f"a pass over the parts of {len(work)} sequences gave {len(answers)} answers; it "
                "must give one for each"
            )
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported for its item
        if len(work) == 1:
            return [error]
        return [answer for item in work for answer in run_each(run, [item])]
    return answers


def _has_many_rows(work: Sequence[Work]) -> bool:
    rows = sum(item.num_rows for item in work)
    return rows > MOST_ROWS or not all(item.logits for item in work)


class Drafting:
    """One sequence's draft in the making.

    Attributes:
        ask: the pass that it waits for; None once it has ended.
        draft, error: how it ended.
        seconds: its own host time, and its equal part of the passes that it shared.
    """

    def __init__(self, steps: Steps[Draft]) -> None:
        self._steps = steps
        self.ask: Ask | None = None
        self.draft: Draft | None = None
        self.error: Exception | None = None
        self.seconds = 0.0
        self.resume(None)

    def resume(self, answer: Any) -> None:
        """Go on, with what was asked for, to the next pass or to the end."""
        start = perf_counter()
        self.ask = None
        try:
            if isinstance(answer, Exception):
                self.ask = self._steps.throw(answer)
            else:
                self.ask = self._steps.send(answer)  # None starts it
        except StopIteration as end:
            self.draft = end.value
        except Exception as error:  # noqa: BLE001 - it ends this sequence alone
            self.error = error
        self.seconds += perf_counter() - start

    def close(self) -> None:
        """Abandon it."""
        self._steps.close()


def advance_together(drafts: Sequence[Drafting]) -> None:
    """Run the drafts to their ends, as one pass of each model or head a step.

    One whose pass `ends_round`, since it reads a long text first, goes on by one such pass alone,
    and keeps nobody waiting for the rest of them. What one has read the others can take over.
    """
    waiting = [drafting for drafting in drafts if drafting.ask is not None]
    while waiting:
        by_model: dict[int, list[Drafting]] = {}
        for drafting in waiting:
            assert drafting.ask is not None
            by_model.setdefault(id(drafting.ask.model), []).append(drafting)
        waiting = []
        for asking in by_model.values():
            group, others = _each_text_once(asking)
            asks: list[Any] = [drafting.ask for drafting in group]
            start = perf_counter()
            reads = any(ask.ends_round for ask in asks)
            with THREADS.all() if reads else nullcontext():
                answers = run_each(asks[0].model.score, [ask.work for ask in asks])
            share = (perf_counter() - start) / len(group)
            for drafting, ask, answer in zip(group, asks, answers, strict=True):
                drafting.seconds += share
                drafting.resume(answer)
                if drafting.ask is not None and not ask.ends_round:
                    waiting.append(drafting)
            for drafting in others:
                asked: Any = drafting.ask
                drafting.resume(None)
                if drafting.ask is not None and not asked.ends_round:
                    waiting.append(drafting)


def _each_text_once(asking: Sequence[Drafting]) -> tuple[list[Drafting], list[Drafting]]:
    """Those whose passes are run, and those whose texts are read in one of these passes."""
    texts: set[Hashable] = set()
    first: list[Drafting] = []
    others: list[Drafting] = []
    for drafting in asking:
        assert drafting.ask is not None
        text = drafting.ask.text
        (others if text is not None and text in texts else first).append(drafting)
        texts.add(text)
    return first, others
