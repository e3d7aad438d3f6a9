"""Exact distributions of drafts and of output: every outcome of the noise is run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Draft, Scheme
from paceline.core.events import Round
from paceline.core.protocols import Drafter, Noise
from paceline.core.sampling import SamplingParams
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import Request, decode
from paceline.errors import ContractViolation, InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.testing._bench import MAX_BUDGET, Bench, DrafterRule, History, fail, key_of, propose
from paceline.testing.law import output_law

_MAX_RUNS = 20_000
_LAW_TOLERANCE = 1e-6


def check_laws(bench: Bench, num_draft_tokens: int) -> None:
    """Run every outcome of the drafter's noise; compare token frequencies with distributions."""
    for history in bench.histories():
        _compare_laws(bench, history, _all_drafts(bench, history, num_draft_tokens))


def _all_drafts(bench: Bench, history: History, num_draft_tokens: int) -> list[tuple[Draft, float]]:
    """Every draft that can follow `history`, with its probability."""
    drafts: dict[tuple[Any, ...], Draft] = {}

    def run(noise: Noise) -> tuple[Any, ...]:
        draft = propose(bench, history, num_draft_tokens, noise)
        drafts[key := key_of(draft)] = draft
        return key

    return [(drafts[key], share) for key, share in _enumerate(bench, run).items()]


def _compare_laws(bench: Bench, history: History, drafts: list[tuple[Draft, float]]) -> None:
    """Group the drafts by all that was known when a node was drawn; in a group, q must hold."""
    reach: defaultdict[tuple[Any, ...], float] = defaultdict(float)
    groups: defaultdict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    laws: dict[tuple[Any, ...], Tensor] = {}
    for draft, share in drafts:
        assert draft.parents is not None
        keys = key_of(draft)[-1] or (None,) * len(draft)
        for node, token in enumerate(draft.tokens):
            past = draft.tokens[:node], draft.parents[:node], keys[:node]
            reach[past] += share
            if (expected := _expected_law(draft, node)) is not None:
                group = (*past, draft.parents[node], keys[node])
                groups[group][token] = groups[group].get(token, 0.0) + share
                laws[group] = expected
        reach[draft.tokens, draft.parents, keys] += share
    for group, shares in groups.items():
        total = sum(shares.values())
        found = torch.zeros(bench.vocab_size, dtype=torch.float64)
        for token, share in shares.items():
            found[token] = share / total
        worst = int((found - laws[group]).abs().argmax())
        if abs(float(found[worst] - laws[group][worst])) > _LAW_TOLERANCE:
            always = total >= reach[group[:3]] - _LAW_TOLERANCE
            fail(
                bench.drafter,
                DrafterRule.HONESTY,
                f"after {history} and the draft {group[0]}, token {worst} makes up "
                f"{float(found[worst]):.6f} of the tokens submitted next; its distribution says "
                f"{float(laws[group][worst]):.6f}"
                + ("" if always else ". Is a token dropped because of what it is?"),
            )


def _expected_law(draft: Draft, node: int) -> Tensor | None:
    """The distribution of `node` given the nodes before; None if it was not drawn."""
    law = draft.law(node)
    if law is None or draft.scheme is Scheme.CHOSEN:
        return None
    law = law.to(torch.float64).clone()
    if draft.scheme is Scheme.WITHOUT_REPLACEMENT:
        assert draft.parents is not None
        siblings = [i for i in draft.children(draft.parents[node]) if i < node]
        law[[draft.tokens[i] for i in siblings]] = 0
    return law / law.sum()


def _enumerate(
    bench: Bench, run: Callable[[Noise], tuple[Any, ...]]
) -> dict[tuple[Any, ...], float]:
    try:
        return output_law(run, max_runs=_MAX_RUNS)
    except ContractViolation as error:
        if "cases" not in str(error):
            raise
        raise InvalidInput(
            f"drafter {bench.drafter.name!r} has more than {_MAX_RUNS} outcomes here; check it "
            "with a smaller num_draft_tokens, a smaller vocabulary or a smaller top_k"
        ) from error


def check_greedy(bench: Bench) -> None:
    """The same tokens as plain decoding, up to the end of the context."""
    greedy = SamplingParams()
    for prompt in bench.texts():
        length = bench.capacity - len(prompt)
        plain = _decode(
            bench,
            NoDrafter(),
            prompt,
            SeededNoise(0),
            num_draft_tokens=0,
            params=greedy,
            max_tokens=length,
        )
        for k in range(MAX_BUDGET + 1):
            tokens = _decode(
                bench,
                bench.drafter,
                prompt,
                SeededNoise(0),
                num_draft_tokens=k,
                params=greedy,
                max_tokens=length,
            )
            if tokens != plain:
                fail(
                    bench.drafter,
                    DrafterRule.GREEDY,
                    f"after {prompt} with {k} draft tokens it gave {tokens}; plain decoding "
                    f"{plain}",
                )


def check_coupled(bench: Bench) -> None:
    """Under a rule that couples: the same seed gives the same tokens."""
    for seed, prompt in enumerate(bench.texts()):
        length = bench.capacity - len(prompt)
        plain, coupled = (
            _decode(
                bench,
                drafter,
                prompt,
                SeededNoise(seed),
                num_draft_tokens=4,
                params=bench.params,
                max_tokens=length,
            )
            for drafter in (NoDrafter(), bench.drafter)
        )
        if plain != coupled:
            fail(
                bench.drafter,
                DrafterRule.EXACT,
                f"after {prompt} with seed {seed} it gave {coupled}; plain decoding {plain}",
            )


def check_exact(bench: Bench, num_draft_tokens: int, tolerance: float) -> None:
    """The exact joint distribution of a few tokens, over several rounds, against plain decoding."""
    max_tokens = num_draft_tokens + 1
    for prompt in bench.texts()[-2:]:

        def law_of(
            drafter: Drafter, prompt: tuple[int, ...] = prompt
        ) -> dict[tuple[Any, ...], float]:
            return _enumerate(
                bench,
                lambda noise: _decode(
                    bench,
                    drafter,
                    prompt,
                    noise,
                    num_draft_tokens=num_draft_tokens,
                    params=bench.params,
                    max_tokens=max_tokens,
                ),
            )

        plain, drafted = law_of(NoDrafter()), law_of(bench.drafter)
        for tokens in plain.keys() | drafted.keys():
            expected, found = plain.get(tokens, 0.0), drafted.get(tokens, 0.0)
            if abs(found - expected) > tolerance:
                fail(
                    bench.drafter,
                    DrafterRule.EXACT,
                    f"after {prompt} the tokens {tokens} have probability {found:.12f}; "
                    f"with plain decoding {expected:.12f}",
                )


def _decode(
    bench: Bench,
    drafter: Drafter,
    prompt: tuple[int, ...],
    noise: Noise,
    *,
    num_draft_tokens: int,
    params: SamplingParams,
    max_tokens: int,
) -> tuple[int, ...]:
    request = Request(
        prompt=prompt,
        drafter=drafter,
        controller=FixedController(num_draft_tokens),
        verifier=bench.verifier,
        noise=noise,
        params=params,
        max_tokens=max_tokens,
    )
    tokens: list[int] = []
    for event in decode(bench.target, [request]):
        if isinstance(event, Round):
            tokens += event.tokens
    return tuple(tokens)
