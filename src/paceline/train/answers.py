"""The capture of a whole run: prompts answered shard by shard until there is enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from paceline.core.events import Failed, Round
from paceline.core.hidden import Hidden
from paceline.engine.loop import Engine
from paceline.engine.request import Request
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel
from paceline.sampling.noise import SeededNoise
from paceline.train.capture import FEWEST_ANSWER_TOKENS, capture
from paceline.train.prompts import Filter, Prompt, Prompts, Sampler
from paceline.train.store import Store

SHARD_ROUNDS = 2
"""The number of sequences in a shard for each one that is decoded at once."""

PROMPT_SAMPLING = {"temperature": 1.0, "top_p": 0.95}
"""How the target's own prompts are drawn."""

PROMPT_TOKENS = 96
"""The longest prompt of the target's own."""

SHARDS_IN_VAIN = 8
"""After this many shards in a row without a usable answer, there is taken to be none."""

_OF_PROMPTS = 1 << 62
"""Separates the draws of prompts from those of answers."""


class Ended(Exception):
    """The time is over, or the user has asked to stop, before a prompt was complete."""


@dataclass(frozen=True, slots=True)
class Answering:
    """How prompts are answered.

    Args:
        sampling: options of `LanguageModel.generate` that say how tokens are drawn.
        max_tokens: the longest answer.
        batch: how many are decoded at once.
        seed: of the draws.
    """

    sampling: Mapping[str, Any]
    max_tokens: int
    batch: int
    seed: int

    def requests(
        self, model: LanguageModel, prompts: Sequence[Prompt], number: int
    ) -> list[Request]:
        """The requests of some prompts; `number` is that of the first, and seeds its draws."""
        jobs = model.prepare(
            [prompt.tokens for prompt in prompts],
            drafter="none",
            max_tokens=self.max_tokens,
            **self.sampling,
        )
        return [
            replace(job.request, noise=SeededNoise(seed_of(self.seed, number + place)))
            for place, job in enumerate(jobs)
        ]


def seed_of(seed: int, number: int) -> int:
    """The seed of one sequence of a run."""
    return (seed * 0x9E3779B97F4A7C15 + number) % 2**64


def own_sampler(
    model: LanguageModel,
    seed: int,
    batch: int,
    ends: Callable[[], bool],
    told: Callable[[], object] = lambda: None,
) -> Sampler:
    """What lets the target write prompts; see `prompts.Sampler`.

    Args:
        model: the target.
        seed: of the draws.
        batch: how many are written at once.
        ends: asked after each round.
        told: called after each round.
    """

    def sample(
        prefixes: Sequence[Sequence[int]], first: int, stops: frozenset[int]
    ) -> list[list[int]]:
        jobs = model.prepare(
            list(prefixes),
            drafter="none",
            max_tokens=PROMPT_TOKENS,
            stop_token_ids=sorted(stops),
            **PROMPT_SAMPLING,  # type: ignore[arg-type]
        )
        written: list[list[int]] = [[] for _ in prefixes]
        with closing(Engine(model.target, max_sequences=batch)) as engine:
            for place, job in enumerate(jobs):
                own = seed_of(seed, _OF_PROMPTS + first + place)
                engine.add(replace(job.request, noise=SeededNoise(own)))
            while engine.is_busy:
                if ends():
                    raise Ended
                told()
                for event in engine.step():
                    if isinstance(event, Failed):
                        raise event.error
                    if isinstance(event, Round):
                        written[event.id] += event.tokens
        last = [job.request.stop_token_ids for job in jobs]
        return [
            tokens[:-1] if tokens and tokens[-1] in own else tokens
            for tokens, own in zip(written, last, strict=True)
        ]

    return sample


def fill(
    store: Store,
    model: LanguageModel,
    source: Prompts,
    passes: Filter,
    how: Answering,
    hidden: Hidden,
    num_tokens: int,
    *,
    deadline: float | None = None,
    stops: Callable[[], bool] = lambda: False,
    told: Callable[[int], object] = lambda num_tokens: None,
    clock: Callable[[], float] = monotonic,
) -> str:
    """Answer prompts, shard by shard, until the store has enough answer tokens.

    A shard follows from the run's seed and its place alone, so that a run that goes on after a
    break captures what it would have captured without.

    Args:
        store: what there is already is gone on from.
        model: the target.
        source: where prompts come from.
        passes: the filter of `source`; it learns what came before.
        how: how to answer.
        hidden: the states to keep.
        num_tokens: answer tokens in all.
        deadline: when to end, by `clock`; answers are kept as far as they got.
        stops: asked after each round; the shard in the making is given up.
        told: called with the number of new answer tokens.
        clock: seconds.

    Returns:
        "tokens", "time", "prompts" (no more) or "stopped".

    Raises:
        NoSpace: the disk is full; what was captured is kept.
    """
    total, candidate, number, in_vain = 0, 0, 0, 0
    for shard in store:
        total += sum(answer for _, answer in shard.lengths)
        candidate, number = shard.about["candidate"], shard.about["number"]
        passes.remember(shard.about["prompts"])
        passes.thrown_out.clear()
        passes.thrown_out.update(shard.about["thrown_out"])

    def is_late() -> bool:
        return deadline is not None and clock() >= deadline

    while total < num_tokens:
        if stops():
            return "stopped"
        if is_late():
            return "time"
        try:
            prompts, candidate = source.take(SHARD_ROUNDS * how.batch, candidate)
        except Ended:
            return "stopped" if stops() else "time"
        if not prompts:
            return "prompts"
        sequences = capture(
            model.target,
            how.requests(model, prompts, number),
            hidden,
            batch=how.batch,
            told=told,
            ends=lambda: stops() or is_late(),
        )
        if stops():
            return "stopped"
        number += len(prompts)
        in_vain = 0 if sequences else in_vain + 1
        if in_vain == SHARDS_IN_VAIN:
            raise InvalidInput(
                f"the answers of {model.name} are shorter than {FEWEST_ANSWER_TOKENS} tokens, and "
                "there is nothing to draft in them; give other prompts with --prompts FILE"
            )
        if sequences:
            store.append(
                sequences,
                {
                    "prompts": [prompt.text for prompt in prompts],
                    "candidate": candidate,
                    "number": number,
                    "thrown_out": dict(passes.thrown_out),
                },
            )
        total += sum(one.num_answer_tokens for one in sequences)
    return "tokens"
