"""The value of a skip set: its acceptance on recorded answers, and the cost of a draft token.

At temperature 0, a draft along the target's own answer is accepted up to the first token that
differs. So a draft of k tokens need not be decoded: one pass through the remaining layers, over k
tokens of the answer, shows how many of them would have been accepted. That is exact up to rounding,
and the same in every trial; only the costs are timed, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Target, Work
from paceline.core.target import Need, SkipSet
from paceline.drafting.self_draft import layers_of
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what)."""

_REPEATS = 7


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt with the target's own greedy answer.

    Args:
        tokens: prompt and answer.
        num_prompt_tokens: how many of them are the prompt.
    """

    tokens: tuple[int, ...]
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, each the minimum of several timings.

    Args:
        base: a draft step with all layers skipped: the output head and the host.
        attention, mlp: the time that one attention part and one feed-forward part add.
        passes: a target pass over 1, 2, ... rows.
    """

    base: float
    attention: float
    mlp: float
    passes: tuple[float, ...]

    def verify_cost(self, rows: int) -> float:
        """The time of a pass over n rows, relative to one row."""
        return self.passes[rows - 1] / self.passes[0]


def draft_cost(costs: Costs, skip: SkipSet, num_layers: int) -> float:
    """The cost of a draft step, in plain target passes.

    >>> draft_cost(Costs(0.1, 0.1, 0.2, (1.0,)), SkipSet(mlp=frozenset({0})), 3)
    0.8
    """
    attention = (num_layers - len(skip.attention)) * costs.attention
    mlp = (num_layers - len(skip.mlp)) * costs.mlp
    return round((costs.base + attention + mlp) / costs.passes[0], 12)


def layered(model: LanguageModel) -> Target:
    """The target of a model that gives its layers.

    Raises:
        InvalidInput: the model does not give its layers.
    """
    target = model.target
    if Need.LAYERS not in target.info.gives:
        raise InvalidInput(
            f"{model.name} does not give its layers, which the lean decoder does (llama, mistral, "
            "qwen2, qwen3, gemma); choose such a model, or another drafter"
        )
    return target


def record(
    model: LanguageModel, prompts: Sequence[Any], max_tokens: int, shortest: int, progress: Progress
) -> list[Sample]:
    """The greedy answers of the target; those shorter than `shortest` tokens are left out.

    Raises:
        InvalidInput: all are too short, or a prompt does not fit into the context.
    """
    samples = []
    for number, prompt in enumerate(prompts):
        progress(number, len(prompts), "answering the prompts")
        tokens = model.encode(prompt)
        answer = model.generate(tokens, drafter="ngram", max_tokens=max_tokens).token_ids
        if len(answer) >= shortest:
            samples.append(Sample((*tokens, *answer), len(tokens)))
    progress(len(prompts), len(prompts), "answering the prompts")
    if not samples:
        raise InvalidInput(
            f"no prompt has an answer of {shortest} tokens or more, the length of a draft; give "
            "other prompts, or a larger --max-tokens"
        )
    return samples


def measure_costs(target: Target, sample: Sample, num_draft_tokens: int) -> Costs:
    """Time draft steps and passes after a sample, each the minimum of several timings.

    Raises:
        ContextOverflow: the sample leaves no room for a draft.
    """
    slot = target.open(len(sample.tokens) + num_draft_tokens)
    try:
        prefill(target, slot, sample.tokens[:-1])
        own = layers_of(target.view(slot), "layer-skip")
        every = frozenset(range(own.num_layers))
        root, filler = sample.tokens[-1], sample.tokens[0]

        def step(skip: SkipSet) -> float:
            own.start(skip)
            return _seconds(lambda: own.run([root]))

        def whole(rows: int) -> float:
            draft = Draft((filler,) * (rows - 1))
            return _seconds(lambda: target.score([Work(slot, [root], draft)]))

        steps: list[list[float]] = [[], [], [], []]
        passes: list[list[float]] = [[] for _ in range(num_draft_tokens + 1)]
        for _ in range(_REPEATS):
            for times, skip in zip(
                steps,
                (SkipSet(), SkipSet(every), SkipSet(mlp=every), SkipSet(every, every)),
                strict=True,
            ):
                times.append(step(skip))
            for rows, times in enumerate(passes, start=1):
                times.append(whole(rows))
    finally:
        target.close(slot)
    full, no_attention, no_mlp, base = (min(times) for times in steps)
    return Costs(
        base,
        max(full - no_attention, no_mlp - base, 0.0) / own.num_layers,
        max(full - no_mlp, no_attention - base, 0.0) / own.num_layers,
        tuple(min(times) for times in passes),
    )


def prefix_rates(
    target: Target, samples: Sequence[Sample], skip: SkipSet, num_draft_tokens: int
) -> tuple[float, ...]:
    """How often the i-th token of a greedy draft is accepted together with all before it.

    Drafts of `num_draft_tokens` start at every `num_draft_tokens`-th token of the answers, which
    have at least that many (`record`).
    """
    accepted, drafts = [0] * num_draft_tokens, 0
    for sample in samples:
        slot = target.open(len(sample.tokens))
        try:
            prefill(target, slot, sample.tokens[:-1])
            own = layers_of(target.view(slot), "layer-skip")
            last = len(sample.tokens) - 1
            first = sample.num_prompt_tokens - 1
            for root in range(first, last - num_draft_tokens + 1, num_draft_tokens):
                window = sample.tokens[root : root + num_draft_tokens]
                said = own.replay(root, window, skip).argmax(dim=-1).tolist()
                drafts += 1
                for i, token in enumerate(said):
                    if token != sample.tokens[root + 1 + i]:
                        break
                    accepted[i] += 1
        finally:
            target.close(slot)
    return tuple(count / drafts for count in accepted)


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start
