"""Hidden states of the lean decoder: what goes through its layers, and what the model computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.core.target import Need, SkipSet
from paceline.targets.attention import Pass
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.dense.loading import from_weights
from tests.tiny_models import build, tiny, tokens_of

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma")
LAYERS = 2
ALL = Hidden.all(LAYERS)

TEXT = tokens_of(12)
CHAIN = Draft(tokens_of(4, seed=1))
TREE = Draft(tokens_of(5, seed=2), parents=(-1, -1, 0, 1, 1))


class Watched(DenseDecoder):
    """Writes down what goes into each layer, what comes out of the last, and the normed states."""

    seen: dict[Any, list[Tensor]]

    def layer(self, number: int, x: Tensor, batch: Pass, angles: Any, **parts: bool) -> Tensor:
        rows = len(batch.tokens)
        self.seen.setdefault(number, []).append(x[:rows].clone())
        out = super().layer(number, x, batch, angles, **parts)
        if number == LAYERS - 1:
            self.seen.setdefault(LAYERS, []).append(out[:rows].clone())
        return out

    def expected(self) -> HiddenStates:
        found = {key: torch.cat(parts) for key, parts in self.seen.items()}
        self.seen.clear()
        return HiddenStates(found, self._math.norm(found[LAYERS], self.norm))


def watched(family: str, dtype: torch.dtype = torch.float32) -> Watched:
    model = tiny(family)
    decoder = from_weights(model.state_dict(), model.config, dtype=dtype, kind=Watched)
    assert isinstance(decoder, Watched)
    decoder.seen = {}
    return decoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_state_of_every_row_is_what_goes_through_to_the_bit(
    family: str, dtype: torch.dtype
) -> None:
    decoder = watched(family, dtype)
    target = CachedTarget(decoder, prefill_rows=5)
    slot = target.open(60)
    for tokens, draft, wanted, path in (
        (TEXT[:11], Draft(), False, ()),
        (TEXT[11:], CHAIN, True, (0, 1)),
        (tokens_of(2, seed=5), CHAIN, True, ()),
        (tokens_of(1, seed=6), TREE, True, (1, 4)),
    ):
        work = Work(slot, tokens, draft, wanted, ALL)
        (scores,) = target.score([work])
        found, expected = scores.hidden, decoder.expected()
        assert found is not None
        assert found.num_rows == work.num_rows
        for layer in ALL.layers:
            assert torch.equal(found.layers[layer], expected.layers[layer]), layer
        assert found.final is not None
        assert expected.final is not None
        assert torch.equal(found.final, expected.final)
        target.commit(slot, path)


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_a_plain_pass_of_the_model(family: str) -> None:
    model = tiny(family)
    target = CachedTarget(watched(family))
    slot = target.open(60)
    prefill(target, slot, TEXT[:-1])
    (scores,) = target.score([Work(slot, TEXT[-1:], TREE, hidden=ALL)])
    assert scores.hidden is not None
    assert scores.hidden.final is not None
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    for node in range(-1, len(TREE)):
        text = (*TEXT, *(TREE.tokens[i] for i in TREE.path(node)))
        with torch.no_grad():
            output = model(torch.tensor([text]), use_cache=False, output_hidden_states=True)
        *entering, final = (states[0, -1] for states in output.hidden_states)
        for layer, states in enumerate(entering):
            found = scores.hidden.layers[layer][node + 1]
            torch.testing.assert_close(found, states, **close)
        torch.testing.assert_close(scores.hidden.final[node + 1], final, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_same_whether_states_are_asked_for_or_not(
    family: str, dtype: torch.dtype
) -> None:
    target = CachedTarget(watched(family, dtype))
    slot = target.open(60)
    prefill(target, slot, TEXT[:-1])
    for draft in (Draft(), CHAIN, TREE):
        (plain,) = target.score([Work(slot, TEXT[-1:], draft)])
        (asked,) = target.score([Work(slot, TEXT[-1:], draft, hidden=ALL)])
        assert plain.hidden is None
        assert torch.equal(plain.logits, asked.logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_head_and_embedding(family: str) -> None:
    target = CachedTarget(watched(family))
    assert {Need.EMBEDDING, Need.HEAD, Need.LAYERS, ALL} <= target.info.gives
    slot = target.open(30)
    view = target.view(slot)
    work = Work(slot, TEXT[:1], Draft(TEXT[1:]), hidden=Hidden((0,), final=True))
    (scores,) = target.score([work])
    assert scores.hidden is not None
    assert scores.hidden.final is not None
    assert view.head is not None
    assert view.embed is not None
    tokens = torch.tensor(TEXT)
    with torch.inference_mode():
        assert torch.equal(view.head(scores.hidden.final), scores.logits)
        assert torch.equal(view.embed(tokens), scores.hidden.layers[0])
        assert torch.equal(view.embed(tokens), tiny(family).get_input_embeddings()(tokens))


@pytest.mark.parametrize("layers", [(0,), (1,), (2,), (3,), (0, 3)])
def test_rows_that_are_ahead_have_the_states_of_a_whole_pass(layers: tuple[int, ...]) -> None:
    """A drafter ran some of the layers on them; another one reads hidden states."""
    model = build("llama", num_hidden_layers=4)
    decoder = from_weights(model.state_dict(), model.config, dtype=torch.float32)
    target = CachedTarget(decoder)
    slot = target.open(40)
    prefill(target, slot, TEXT[:-1])
    asked = Hidden(layers, final=True)
    work = Work(slot, TEXT[-1:], CHAIN, hidden=asked)
    (whole,) = target.score([work])
    own = target.view(slot).layers
    assert own is not None
    own.start(SkipSet.after(2, 4))
    for token in (TEXT[-1], *CHAIN.tokens[:-1]):
        own.run([token])
    (found,) = target.score([work])
    assert found.hidden is not None
    assert whole.hidden is not None
    for layer in layers:
        torch.testing.assert_close(found.hidden.layers[layer], whole.hidden.layers[layer])
    torch.testing.assert_close(found.hidden.final, whole.hidden.final)
