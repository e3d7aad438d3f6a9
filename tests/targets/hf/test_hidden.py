"""Hidden states of models of transformers: the model's own, to the bit, in passes of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.core.drafts import Auxiliary, Draft
from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.core.target import Need
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from tests.tiny_models import FAMILIES, build, tiny, tokens_of

TEXT = tokens_of(12)
CHAIN = Draft(tokens_of(4, seed=1))
TREE = Draft(tokens_of(5, seed=2), parents=(-1, -1, 0, 1, 1))

PLACES: dict[str, tuple[str, str]] = {
    "gpt2": ("transformer.h", "transformer.ln_f"),
    "gpt_neox": ("gpt_neox.layers", "gpt_neox.final_layer_norm"),
    "opt": ("model.decoder.layers", "model.decoder.final_layer_norm"),
    "phi": ("model.layers", "model.final_layernorm"),
}
"""Where the layers and the final norm are, if not at `model.layers` and `model.norm`."""


class Hooked:
    """A model of its own with hooks that write down what goes through it, and a target over it.

    The target runs a copy of the modules, and hooks are copied with them.
    """

    def __init__(self, family: str) -> None:
        model = build(family)
        layers, norm = PLACES.get(family, ("model.layers", "model.norm"))
        found = model.get_submodule(layers)
        assert isinstance(found, nn.ModuleList)
        self.seen: dict[Any, list[Tensor]] = {}
        for number, layer in enumerate(found):
            layer.register_forward_pre_hook(self._before(number), with_kwargs=True)
        found[-1].register_forward_hook(self._after(len(found)))
        model.get_submodule(norm).register_forward_hook(self._after("final"))
        self.hidden = Hidden.all(len(found))
        self.target = CachedTarget(HFDecoder(model), prefill_rows=5)
        self.seen.clear()

    def _before(self, key: Any) -> Any:
        def hook(_: nn.Module, args: Any, options: Any) -> None:
            states = args[0] if args else options["hidden_states"]
            self.seen.setdefault(key, []).append(states[0].clone())

        return hook

    def _after(self, key: Any) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            states = output if isinstance(output, Tensor) else output[0]
            self.seen.setdefault(key, []).append(states.reshape(-1, states.shape[-1]).clone())

        return hook

    def expected(self) -> HiddenStates:
        """What went through since the last time, pass after pass."""
        found = {key: torch.cat(parts) for key, parts in self.seen.items()}
        self.seen.clear()
        return HiddenStates({n: found[n] for n in self.hidden.layers}, found["final"])


def assert_bits(found: HiddenStates | None, expected: HiddenStates) -> None:
    assert found is not None
    assert found.layers.keys() == expected.layers.keys()
    for layer, states in found.layers.items():
        assert torch.equal(states, expected.layers[layer]), layer
    assert found.final is not None
    assert expected.final is not None
    assert torch.equal(found.final, expected.final)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_state_of_every_row_is_the_models_own_to_the_bit(family: str) -> None:
    hooked = Hooked(family)
    target = hooked.target
    slot = target.open(60)
    # A prompt that needs three passes; a chain with a committed token before it; a tree.
    steps: list[tuple[Sequence[int], Draft, bool, tuple[int, ...]]] = [
        (TEXT[:11], Draft(), False, ()),
        (TEXT[11:], CHAIN, True, (0, 1)),
        (tokens_of(2, seed=5), CHAIN, True, ()),
        (tokens_of(1, seed=6), TREE, True, (1, 4)),
    ]
    for tokens, draft, wanted, path in steps:
        work = Work(slot, tokens, draft, wanted, hooked.hidden)
        (scores,) = target.score([work])
        assert_bits(scores.hidden, hooked.expected())
        assert scores.hidden is not None
        assert scores.hidden.num_rows == work.num_rows
        target.commit(slot, path)


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_a_plain_pass_of_the_model(family: str) -> None:
    """What layers enter is what transformers counts so; paths of a tree see themselves alone."""
    model = tiny(family)
    target = CachedTarget(HFDecoder(model))
    num_layers = model.config.get_text_config().num_hidden_layers
    slot = target.open(60)
    prefill(target, slot, TEXT[:-1])
    work = Work(slot, TEXT[-1:], TREE, hidden=Hidden.all(num_layers))
    (scores,) = target.score([work])
    assert scores.hidden is not None
    for node in range(-1, len(TREE)):
        text = (*TEXT, *(TREE.tokens[i] for i in TREE.path(node)))
        with torch.no_grad():
            output = model(torch.tensor([text]), use_cache=False, output_hidden_states=True)
        *entering, final = (states[0, -1] for states in output.hidden_states)
        close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
        for layer, states in enumerate(entering):
            found = scores.hidden.layers[layer][node + 1]
            torch.testing.assert_close(found, states, **close)
        assert scores.hidden.final is not None
        torch.testing.assert_close(scores.hidden.final[node + 1], final, **close)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_makes_the_logits_of_the_final_states_to_the_bit(family: str) -> None:
    """Soft caps and scalings of logits included."""
    model = tiny(family)
    target = CachedTarget(HFDecoder(model))
    assert {Need.EMBEDDING, Need.HEAD} <= target.info.gives
    slot = target.open(30)
    view = target.view(slot)
    work = Work(slot, TEXT[:1], Draft(TEXT[1:]), hidden=Hidden(final=True))
    (scores,) = target.score([work])
    assert scores.hidden is not None
    assert scores.hidden.final is not None
    assert view.head is not None
    assert view.embed is not None
    with torch.inference_mode():
        assert torch.equal(view.head(scores.hidden.final), scores.logits)
        tokens = torch.tensor(TEXT)
        assert torch.equal(view.embed(tokens), model.get_input_embeddings()(tokens))


def test_each_sequence_of_a_pass_gets_what_it_asked_for() -> None:
    target = CachedTarget(HFDecoder(tiny("llama")))
    asked = [Hidden((1,)), None, Hidden((0, 2), final=True)]
    drafts = [CHAIN, TREE, Draft()]
    slots = [target.open(40) for _ in asked]
    work = [
        Work(slot, TEXT[: 3 + i], draft, hidden=hidden)
        for i, (slot, draft, hidden) in enumerate(zip(slots, drafts, asked, strict=True))
    ]
    together = target.score(work)
    for item, scores in zip(work, together, strict=True):
        (alone,) = target.score([item])
        if item.hidden is None:
            assert scores.hidden is None
            continue
        assert scores.hidden is not None
        assert alone.hidden is not None
        assert tuple(scores.hidden.layers) == item.hidden.layers
        assert (scores.hidden.final is not None) == item.hidden.final
        for layer, states in scores.hidden.layers.items():
            torch.testing.assert_close(states, alone.hidden.layers[layer])


def test_auxiliary_rows_have_states_too() -> None:
    target = CachedTarget(HFDecoder(tiny("llama")))
    slot = target.open(40)
    visible = torch.zeros(1, 1 + len(TREE) + 1, dtype=torch.bool)
    visible[0, 0] = visible[0, -1] = True
    draft = Draft(TREE.tokens, TREE.parents, aux=Auxiliary((9,), (1,), visible))
    (scores,) = target.score([Work(slot, TEXT, draft, hidden=Hidden((2,)))])
    assert scores.hidden is not None
    alone = Draft((9,))
    (other,) = target.score([Work(slot, TEXT, alone, hidden=Hidden((2,)))])
    assert other.hidden is not None
    torch.testing.assert_close(scores.hidden.layers[2][-1], other.hidden.layers[2][-1])


def test_passes_that_ask_for_nothing_go_by_no_hooks() -> None:
    model = build("llama")
    decoder = HFDecoder(model)
    target = CachedTarget(decoder)

    def hooks() -> int:
        modules = decoder._model.modules()
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)

    slot = target.open(30)
    target.score([Work(slot, TEXT)])
    assert hooks() == 0
    target.score([Work(slot, TEXT, hidden=Hidden((1,)))])
    assert hooks() == 1
    target.score([Work(slot, TEXT, hidden=Hidden((1,)))])
    assert hooks() == 1
    assert sum(len(m._forward_pre_hooks) for m in model.modules()) == 0


def test_a_model_without_a_list_of_layers_gives_none() -> None:
    class Odd(nn.Module):
        """Its layers are members of their own."""

        def __init__(self, layers: nn.ModuleList) -> None:
            super().__init__()
            self.one, self.two = layers

        def __iter__(self) -> Any:
            return iter((self.one, self.two))

        def __getitem__(self, index: slice) -> Any:
            return [self.one, self.two][index]

    model = build("llama")
    model.model.layers = Odd(model.model.layers)
    target = CachedTarget(HFDecoder(model))
    assert target.info.gives == {Need.LOGITS, Need.TREE, Need.AUXILIARY}
    view = target.view(target.open(4))
    assert (view.embed, view.head, view.layers) == (None, None, None)
