"""The loop: draft, score, verify, commit. Contracts in, events out; no plug-in has a name here."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from time import perf_counter

from paceline.core.events import Event
from paceline.core.protocols import Target, Work
from paceline.engine.contract import check_scores
from paceline.engine.request import Request, StopRule
from paceline.engine.sequence import ActiveSequence, SharedPass

__all__ = ["Request", "StopRule", "decode"]


def decode(target: Target, requests: Sequence[Request]) -> Generator[Event]:
    """Decode the requests together, one target pass a round for all of them.

    Yields `Prefilled` for each, then its `Round`s, then `Finished`; ids are places in `requests`.
    Closing the generator, or an exception anywhere, closes the slots and sessions that were opened
    here and leaves a slot of the caller's at the tokens that were emitted: all but the last are
    cached.

    Raises:
        InvalidInput: a request that cannot be served; raised before the first event.
        ContractViolation: a plug-in broke its contract.
    """
    with ExitStack() as stack:
        sequences = []
        for number, request in enumerate(requests):
            sequences.append(ActiveSequence(number, request, target))
            stack.callback(sequences[-1].close)
        for sequence in sequences:
            yield sequence.prefill()
            if sequence.reason is not None:
                yield sequence.finish()
        while live := [sequence for sequence in sequences if sequence.reason is None]:
            work = [Work(s.slot, s.tokens[-1:], s.propose(), hidden=s.hidden) for s in live]
            start = perf_counter()
            all_scores = target.score(work)
            seconds = perf_counter() - start
            check_scores(all_scores, work, target.info)
            shared = SharedPass(seconds, len(live), sum(item.num_rows for item in work))
            for sequence, item, scores in zip(live, work, all_scores, strict=True):
                yield sequence.advance(item.draft, scores, shared)
                if sequence.reason is not None:
                    yield sequence.finish()
