"""A head that reads three layers and the final state, added from outside.

All of it stands in this file and is written against the public contracts alone: what it needs is a
value, what it gets comes with what became final, and the target's embedding and output head come
with the view that it opens on. Nothing anywhere knows its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from paceline.core.drafts import Budget, Draft, Scheme
from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import prefill
from paceline.core.protocols import Noise, Purpose, Verifier, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need
from paceline.core.view import TargetView
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.errors import InvalidInput
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.testing.table import TableTarget
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import Run, assert_alone_as_together, assert_r0, run
from tests.tiny_models import FAMILIES, build, tokens_of

LAYERS = 4
PROMPT = tokens_of(6) * 2


class Given:
    """All that the sessions of a drafter were given; no part of its settings."""

    def __init__(self) -> None:
        self.all: list[Committed] = []

    def __iter__(self) -> Any:
        return iter(self.all)

    def __getitem__(self, index: Any) -> Any:
        return self.all[index]


@dataclass(frozen=True)
class ScriptedHead:
    """Guesses that a state hardly changes: the next one is the last, moved by the token drafted.

    Args:
        layers: the three that it reads.
        branches: whether it drafts the second best token beside the first, too.
        log: what its sessions were given.
    """

    layers: tuple[int, int, int] = (0, 2, LAYERS)
    branches: bool = False
    log: Given = field(default_factory=Given)

    name: ClassVar[str] = "scripted-head"

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        own = {Hidden(self.layers, final=True), Need.EMBEDDING, Need.HEAD}
        return frozenset(own | ({Need.TREE} if self.branches else set()))

    def open(self, target: TargetView, capacity: int) -> HeadSession:
        return HeadSession(self, target)


class HeadSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: ScriptedHead, target: TargetView) -> None:
        self._drafter, self._target = drafter, target
        self._fused: Tensor | None = None
        self._length = 0

    def observe(self, committed: Committed) -> None:
        self._drafter.log.all.append(committed)
        self._length += len(committed.tokens)
        if (hidden := committed.hidden) is None:
            return
        assert hidden.final is not None
        low, middle, high = (hidden.layers[layer][-1] for layer in self._drafter.layers)
        self._fused = hidden.final[-1] + 0.05 * (low + middle + high)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        head, embed, state = self._target.head, self._target.embed, self._fused
        assert head is not None
        assert embed is not None
        if state is None or not budget.num_draft_tokens:
            return Draft()
        tokens: list[int] = []
        laws: list[Tensor] = []
        for place in range(budget.num_draft_tokens):
            q = warp.law(head(state[None])[0].float(), tokens)
            if self._drafter.branches and not tokens:
                best = q.topk(2).indices.tolist()
                if q[best[1]] > 0 or warp.is_greedy:
                    return Draft(tuple(best), (-1, -1), scheme=Scheme.CHOSEN)
            token = noise.sample(q, self._length + place, Purpose.DRAFT)
            tokens.append(token)
            laws.append(q)
            state = state + embed(torch.tensor([token]))[0]
        return Draft(tuple(tokens), probs=None if warp.is_greedy else tuple(laws))

    def close(self) -> None:
        self._fused = None


MODELS = ("llama", "qwen3", "gemma", "gemma2", "gpt2", "opt", "gpt_oss")
LEAN = ("llama", "qwen3", "gemma")
KINDS = [(family, "transformers") for family in MODELS] + [(family, "lean") for family in LEAN]

PLACES = {"gpt2": ("transformer.h", "transformer.ln_f"), "opt": ("model.decoder.layers",) * 2}


def grown(family: str) -> Any:
    """A model of four layers."""
    layers = {"n_layer": LAYERS} if family == "gpt2" else {"num_hidden_layers": LAYERS}
    if "layer_types" in FAMILIES[family][1]:
        layers["layer_types"] = ["sliding_attention", "full_attention"] * 2
    return build(family, **layers)


def target_of(family: str, kind: str) -> CachedTarget:
    model = grown(family)
    if kind == "transformers":
        return CachedTarget(HFDecoder(model))
    return CachedTarget(from_weights(model.state_dict(), model.config, dtype=torch.float32))


def rule_of(drafter: ScriptedHead) -> Verifier:
    return TreeVerifier() if drafter.branches else TokenVerifier()


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_greedy_output_is_that_of_plain_decoding(family: str, kind: str, branches: bool) -> None:
    target, drafter = target_of(family, kind), ScriptedHead(branches=branches)
    options: dict[str, Any] = {"max_tokens": 30, "keep_logits": True}
    plain = run(target, PROMPT, **options)
    found = run(target, PROMPT, drafter, verifier=rule_of(drafter), **options)
    assert_r0(found, plain, atol=1e-3)
    assert sum(r.num_draft_tokens for r in found.rounds) > 0


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_its_states_are_those_that_hooks_on_the_model_see(family: str, branches: bool) -> None:
    """To the bit: of the prompt, of each round's root, and of the accepted tokens, no others."""
    model = grown(family)
    seen: dict[int, list[Tensor]] = {}
    layers = model.get_submodule(PLACES.get(family, ("model.layers",))[0])
    assert isinstance(layers, nn.ModuleList)
    for number in (0, 2):
        layers[number].register_forward_pre_hook(
            lambda _, args, number=number: seen.setdefault(number, []).append(args[0][0].clone())
        )

    def leaving(_: Any, __: Any, output: Any) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        seen.setdefault(LAYERS, []).append(states[0].clone())

    layers[-1].register_forward_hook(leaving)
    target = CachedTarget(HFDecoder(model))
    seen.clear()
    drafter = ScriptedHead(branches=branches)
    found = run(target, PROMPT, drafter, verifier=rule_of(drafter), max_tokens=30, prefill_rows=4)
    given = [c.hidden for c in drafter.log if c.hidden is not None]
    assert len(given) == 3 + len(found.rounds), "the prompt in three parts"
    rows = [list(range(4))] * 2 + [list(range(len(PROMPT) - 1 - 8))]
    rows += [[0, *(1 + node for node in c.path)] for c in drafter.log[3:]]
    for layer in drafter.layers:
        for states, of_pass, kept in zip(given, seen[layer], rows, strict=True):
            assert torch.equal(states.layers[layer], of_pass[kept])


@pytest.mark.parametrize(("family", "kind"), [("llama", "transformers"), ("llama", "lean")])
@pytest.mark.parametrize("part", [1, 4, 100])
def test_each_row_stands_beside_the_token_that_followed(family: str, kind: str, part: int) -> None:
    """All rows together are those of one plain pass over the text but for its last token."""
    model, drafter = grown(family), ScriptedHead()
    target = target_of(family, kind)
    found = run(target, PROMPT, drafter, max_tokens=30, prefill_rows=part)
    text = (*PROMPT, *found.tokens)
    assert tuple(token for c in drafter.log for token in c.tokens) == text
    first, *others = drafter.log
    assert first.hidden is not None
    assert first.hidden.num_rows == len(first.tokens) - 1 <= part
    assert all(c.hidden is not None and c.hidden.num_rows == len(c.tokens) for c in others)
    joined = HiddenStates.join([c.hidden for c in drafter.log if c.hidden is not None])
    with torch.no_grad():
        inputs = torch.tensor([text[:-1]])
        output = model(inputs, use_cache=False, output_hidden_states=True)
    states = output.hidden_states
    for layer in (0, 2):
        torch.testing.assert_close(joined.layers[layer], states[layer][0], rtol=1e-4, atol=1e-4)
    assert joined.final is not None
    torch.testing.assert_close(joined.final, states[-1][0], rtol=1e-4, atol=1e-4)


def short() -> CachedTarget:
    """Two layers and a short context, for checks that run every outcome of the noise."""
    model = build("llama", max_position_embeddings=20)
    return CachedTarget(from_weights(model.state_dict(), model.config, dtype=torch.float32))


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
def test_it_keeps_its_contract_and_the_distribution_of_the_target(branches: bool) -> None:
    drafter = ScriptedHead((0, 1, 2), branches=branches)
    params = SamplingParams(temperature=1.0, top_k=2)
    options: dict[str, Any] = {"verifier": rule_of(drafter), "params": params}
    check_drafter(drafter, target=short(), text_alone=True, **options)


def test_coupled_samples_are_those_of_plain_decoding() -> None:
    target = target_of("llama", "lean")
    options: dict[str, Any] = {
        "params": SamplingParams(temperature=1.0),
        "max_tokens": 40,
        "verifier": CouplingVerifier(),
    }
    found = run(target, PROMPT, ScriptedHead(), **options)
    assert found.tokens == run(target, PROMPT, **options).tokens


def test_a_batch_is_as_each_alone() -> None:
    prompts: Sequence[Sequence[int]] = [PROMPT, PROMPT[:1], tokens_of(9, seed=3)]
    params = SamplingParams(temperature=1.0)
    assert_alone_as_together(
        target_of("llama", "lean"),
        prompts,
        ScriptedHead(),
        k=3,
        verifier=TokenVerifier(),
        params=params,
    )


@pytest.mark.parametrize(
    "others", [(NgramDrafter(),), (EarlyExitDrafter(exit_layer=2), NgramDrafter())], ids=len
)
def test_beside_other_drafters(others: tuple[Any, ...]) -> None:
    """Layers that another one ran on the rows take no state from it."""
    target, head = target_of("llama", "lean"), ScriptedHead()
    plain = run(target, PROMPT, max_tokens=30)
    found: Run = run(target, PROMPT, CascadeDrafter((*others, head)), max_tokens=30)
    assert found.tokens == plain.tokens
    assert all(c.hidden is not None for c in head.log)


def test_a_cached_prompt_is_read_again() -> None:
    """What is cached has no states any more."""
    target, drafter = target_of("llama", "lean"), ScriptedHead()
    slot = target.open(60)
    prefill(target, slot, PROMPT[:8])
    found = run(target, PROMPT, drafter, slot=slot, max_tokens=20)
    assert found.tokens == run(target, PROMPT, max_tokens=20).tokens
    assert drafter.log[0].hidden is not None
    assert drafter.log[0].hidden.num_rows == len(PROMPT) - 1


def test_a_target_that_has_no_such_states_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs embedding, head, hidden states 0, 2, 4, final"):
        run(TableTarget(torch.tensor([0.5, 0.5])), (0, 1), ScriptedHead(), max_tokens=3)
    with pytest.raises(InvalidInput, match="needs hidden states 0, 2, 9, final of the target"):
        run(target_of("llama", "lean"), PROMPT, ScriptedHead((0, 2, 9)), max_tokens=3)


def test_drafters_that_ask_for_none_are_given_none() -> None:
    @dataclass(frozen=True)
    class Silent(ScriptedHead):
        @property
        def needs(self) -> frozenset[Need | Hidden]:
            return frozenset({Need.LOGITS})

    drafter = Silent()
    run(target_of("llama", "lean"), PROMPT, drafter, max_tokens=10)
    assert all(c.hidden is None for c in drafter.log)
