"""Rigged drafters, scripted targets, and R0: the same tokens, logits, cache and end as without.

`Line` drafts from a rule over the text so far, so that a test can say exactly what is right and
what is wrong: `oracle`, `wrong`, `flip` and `ragged` are such rules. `Soft` draws from a scripted
law, `Branches` is a small tree.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Budget, Draft, Scheme
from paceline.core.events import Event, Finished, FinishReason, Prefilled, Round
from paceline.core.protocols import Controller, Drafter, Noise, Purpose, Target, Verifier, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.core.view import TargetView
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import PREFILL_ROWS, Request, decode
from paceline.sampling.noise import SeededNoise
from paceline.testing.law import output_law
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier

# ---------------------------------------------------------------- drafters

Rule = Callable[[tuple[int, ...], int, int], Sequence[int]]
"""Takes the text so far, the number of the proposal, and the budget; returns draft tokens."""


@dataclass
class Log:
    """What the sessions of a rigged drafter went through."""

    opened: int = 0
    closed: int = 0
    observed: list[tuple[int, ...]] = field(default_factory=list)
    proposed: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """Drafts the chain that a rule says, as a point mass."""

    rule: Rule
    log: Log = field(default_factory=Log)

    name: ClassVar[str] = "line"
    needs: ClassVar[frozenset[str]] = frozenset()

    def open(self, target: TargetView, capacity: int) -> LineSession:
        self.log.opened += 1
        return LineSession(self)


class LineSession:
    def __init__(self, drafter: Line) -> None:
        self._drafter = drafter
        self._text: tuple[int, ...] = ()
        self._proposals = 0

    def observe(self, committed: Committed) -> None:
        self._text += committed.tokens
        self._drafter.log.observed.append(committed.tokens)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        tokens = tuple(self._drafter.rule(self._text, self._proposals, budget.num_draft_tokens))
        self._proposals += 1
        self._drafter.log.proposed.append(tokens)
        return Draft(tokens[: budget.num_draft_tokens])

    def close(self) -> None:
        self._drafter.log.closed += 1


def oracle(text: Sequence[int]) -> Line:
    """Always right: `text` is the prompt with the answer of plain decoding."""
    return Line(lambda so_far, _, k: text[len(so_far) : len(so_far) + k])


def wrong(text: Sequence[int], vocab_size: int) -> Line:
    """Never right."""
    return flip(text, vocab_size, 0)


def flip(text: Sequence[int], vocab_size: int, j: int) -> Line:
    """Right for j tokens, then wrong."""
    return ragged(text, vocab_size, [j])


def ragged(text: Sequence[int], vocab_size: int, js: Sequence[int]) -> Line:
    """Right for a different number of tokens in each round, in turn, then wrong."""

    def rule(so_far: tuple[int, ...], number: int, k: int) -> list[int]:
        right = list(text[len(so_far) : len(so_far) + k])
        j = js[number % len(js)]
        return right[:j] + [(token + 1) % vocab_size for token in right[j:]]

    return Line(rule)


@dataclass(frozen=True)
class Soft:
    """Draws from a scripted law of the text so far, and says so.

    Args:
        law: the text so far (draft tokens included) -> q `[V]`.
        length: tokens a draft, within the budget.
    """

    law: Callable[[tuple[int, ...]], Tensor]
    length: int = 8

    name: ClassVar[str] = "soft"
    needs: ClassVar[frozenset[str]] = frozenset()

    def open(self, target: TargetView, capacity: int) -> SoftSession:
        return SoftSession(self)


class SoftSession:
    def __init__(self, drafter: Soft) -> None:
        self._drafter = drafter
        self._text: tuple[int, ...] = ()

    def observe(self, committed: Committed) -> None:
        self._text += committed.tokens

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        tokens: tuple[int, ...] = ()
        laws: list[Tensor] = []
        for _ in range(min(budget.num_draft_tokens, self._drafter.length)):
            laws.append(self._drafter.law(self._text + tokens))
            at = len(self._text) + len(tokens)
            tokens += (noise.sample(laws[-1], at, Purpose.DRAFT),)
        return Draft(tokens, probs=tuple(laws))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Branches:
    """A tree of two branches: one wrong from the start, one right for j tokens, then wrong."""

    text: Sequence[int]
    vocab_size: int
    j: int

    name: ClassVar[str] = "branches"
    needs: ClassVar[frozenset[str]] = frozenset()

    def open(self, target: TargetView, capacity: int) -> BranchesSession:
        return BranchesSession(self)


class BranchesSession:
    def __init__(self, drafter: Branches) -> None:
        self._drafter = drafter
        self._length = 0

    def observe(self, committed: Committed) -> None:
        self._length += len(committed.tokens)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        text, vocab, j = self._drafter.text, self._drafter.vocab_size, self._drafter.j
        right = list(text[self._length : self._length + budget.num_draft_tokens])
        off = [(token + 1) % vocab for token in right]
        mixed = right[:j] + off[j:] if j else [(token + 2) % vocab for token in right]
        n = len(right)
        if not n:
            return Draft()
        # Level by level, so that the two branches are interleaved: 0 and 1, 2 and 3, ...
        tokens = [token for pair in zip(off, mixed, strict=True) for token in pair]
        parents = [-1, -1, *range(2 * n - 2)]
        return Draft(tuple(tokens), parents=tuple(parents), scheme=Scheme.CHOSEN)

    def close(self) -> None:
        pass


# ---------------------------------------------------------------- targets


def markov(
    vocab_size: int, seed: int, *, order: int = 2, scale: float = 2.0, max_length: int | None = None
) -> TableTarget:
    """A random law that follows from the last `order` tokens, in float64."""
    generator = torch.Generator().manual_seed(seed)
    shape = (vocab_size,) * (order + 1)
    laws = (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(dim=-1)

    def law(tokens: tuple[int, ...]) -> Tensor:
        padded = (0,) * order + tokens
        return laws[padded[-order:]]

    return TableTarget(law, vocab_size=vocab_size, max_length=max_length)


# ---------------------------------------------------------------- runs


@dataclass
class Run:
    """All that a run of one sequence told."""

    tokens: tuple[int, ...] = ()
    reason: FinishReason | None = None
    cached: int = 0
    rounds: list[Round] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def logits(self) -> Tensor:
        return torch.cat([r.logits for r in self.rounds if r.logits is not None])

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(value for r in self.rounds for value in r.logprobs or ())


def run(
    target: Target,
    prompt: Sequence[int],
    drafter: Drafter | None = None,
    *,
    k: int = 4,
    verifier: Verifier | None = None,
    noise: Noise | None = None,
    seed: int = 0,
    slot: Any = None,
    controller: Controller | None = None,
    prefill_rows: int = PREFILL_ROWS,
    **options: Any,
) -> Run:
    """Decode one sequence in a slot of our own, and hold the invariants after every event."""
    if slot is None:
        longest = target.info.max_length
        slot = target.open(longest if longest is not None else len(prompt) + options["max_tokens"])
    request = Request(
        prompt=prompt,
        drafter=drafter or NoDrafter(),
        controller=controller or FixedController(k),
        verifier=verifier or TokenVerifier(),
        noise=noise or SeededNoise(seed),
        slot=slot,
        **options,
    )
    result = Run()
    for event in decode(target, [request], prefill_rows=prefill_rows):
        assert result.reason is None, "an event after the last"
        result.events.append(event)
        if isinstance(event, Round):
            result.rounds.append(event)
            result.tokens += event.tokens
        elif isinstance(event, Finished):
            result.reason = event.reason
            assert event.num_tokens == len(result.tokens)
        else:
            assert isinstance(event, Prefilled)
        result.cached = target.length(slot)
        assert result.cached == len(prompt) + len(result.tokens) - 1
    return result


def assert_alone_as_together(
    target: Target,
    prompts: Sequence[Sequence[int]],
    drafter: Drafter,
    *,
    k: int,
    verifier: Verifier,
    params: SamplingParams,
) -> None:
    """Each sequence of a batch gets what it gets alone, with answers of different lengths."""
    requests = [
        Request(
            prompt=prompt,
            drafter=drafter,
            controller=FixedController(k),
            verifier=verifier,
            noise=SeededNoise(seed),
            params=params,
            max_tokens=20 + seed,
        )
        for seed, prompt in enumerate(prompts)
    ]
    together: list[list[int]] = [[] for _ in prompts]
    for event in decode(target, requests):
        if isinstance(event, Round):
            together[event.id] += event.tokens
    for seed, prompt in enumerate(prompts):
        options: dict[str, Any] = {"seed": seed, "params": params, "max_tokens": 20 + seed}
        alone = run(target, prompt, drafter, k=k, verifier=verifier, **options)
        assert tuple(together[seed]) == alone.tokens


def assert_r0(found: Run, plain: Run, *, atol: float = 0.0) -> None:
    """Tokens, end, cache, and where asked for logits and log-probabilities, as without a draft."""
    assert found.tokens == plain.tokens
    assert found.reason == plain.reason
    assert found.cached == plain.cached
    if plain.rounds and plain.rounds[0].logits is not None:
        torch.testing.assert_close(found.logits, plain.logits, rtol=0, atol=atol)
    if plain.rounds and plain.rounds[0].logprobs is not None:
        assert len(found.logprobs) == len(plain.logprobs) == len(plain.tokens)
        torch.testing.assert_close(
            torch.tensor(found.logprobs), torch.tensor(plain.logprobs), rtol=0, atol=max(atol, 1e-9)
        )


def law_of_run(
    target: Target,
    prompt: Sequence[int],
    drafter: Drafter | None,
    **options: Any,
) -> dict[Hashable, float]:
    """The exact law of the tokens of a run, over all outcomes of its noise."""
    return output_law(lambda noise: run(target, prompt, drafter, noise=noise, **options).tokens)


def assert_same_law(
    found: dict[Any, float], expected: dict[Any, float], *, atol: float = 1e-12
) -> None:
    for outcome in found.keys() | expected.keys():
        difference = abs(found.get(outcome, 0.0) - expected.get(outcome, 0.0))
        assert difference <= atol, f"{outcome}: {found.get(outcome)} for {expected.get(outcome)}"
