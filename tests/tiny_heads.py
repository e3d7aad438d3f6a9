"""What tiny draft heads read, and their random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import run
from paceline.core.target import Need, TargetInfo
from paceline.core.view import TargetView
from paceline.drafting.heads.contract import Head, HeadState

NUM_LAYERS, WIDTH, VOCAB = 5, 32, 64

TARGET = TargetInfo(
    "a tiny target",
    vocab_size=VOCAB,
    gives=frozenset({Need.EMBEDDING, Need.HEAD, Need.TREE, Hidden.all(NUM_LAYERS)}),
    hidden_size=WIDTH,
)


def view_of(embedding: Tensor, output: Tensor) -> TargetView:
    """The tiny target with an embedding and an output head, `[V, hidden]` each."""
    return TargetView(
        TARGET,
        embed=lambda tokens: embedding[tokens],
        head=lambda states: states @ output.T,
    )


def random_hidden(rows: int, seed: int = 0) -> HiddenStates:
    """Random states of every layer."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(NUM_LAYERS + 2, rows, WIDTH, generator=generator)
    return HiddenStates(dict(enumerate(states[:-1])), states[-1])


def random_tokens(count: int, seed: int = 0) -> Tensor:
    """Random token ids."""
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


def random_weights(shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, Tensor]:
    """Weights whose numbers matter: norms near 1."""
    generator = torch.Generator().manual_seed(seed)
    noise = {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    return {name: 1 + 0.2 * x if "norm" in name else 0.25 * x for name, x in noise.items()}


def randomise_weights(module: nn.Module, seed: int = 0) -> None:
    """Give every weight of a module numbers that matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.15 * noise if parameter.dim() > 1 else 1 + 0.2 * noise)


def layer_settings(**changes: Any) -> dict[str, Any]:
    """The settings of a tiny layer."""
    return {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        **changes,
    }


def layer_shapes(at: str, inputs: int = WIDTH, *, qk_norms: bool = False) -> dict[str, list[int]]:
    """The shapes of the weights of a layer of `layer_settings`, without its first norm."""
    shapes = {
        f"{at}.self_attn.q_proj.weight": [32, inputs],
        f"{at}.self_attn.k_proj.weight": [16, inputs],
        f"{at}.self_attn.v_proj.weight": [16, inputs],
        f"{at}.self_attn.o_proj.weight": [WIDTH, 32],
        f"{at}.mlp.gate_proj.weight": [48, WIDTH],
        f"{at}.mlp.up_proj.weight": [48, WIDTH],
        f"{at}.mlp.down_proj.weight": [WIDTH, 48],
        f"{at}.post_attention_layernorm.weight": [WIDTH],
    }
    if qk_norms:
        shapes |= {f"{at}.self_attn.{x}_norm.weight": [8] for x in "qk"}
    return shapes


class Alone:
    """A head's state whose passes are run at once, by themselves; it says logits."""

    def __init__(self, state: HeadState) -> None:
        self._state = state
        self.observe, self.close = state.observe, state.close

    def start(self, levels: int) -> Tensor:
        return run(self._state.start(levels)).logits

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        return run(self._state.follow(parents, tokens)).logits


def chain_logits(
    head: Head,
    view: TargetView,
    hidden: HiddenStates,
    tokens: Sequence[int],
    drafted: Sequence[int],
) -> Tensor:
    """A head's logits after the final tokens and each of a chain of drafted ones."""
    with torch.inference_mode():
        state = Alone(head.open(view, 64))
        state.observe(hidden, tokens)
        found = [state.start(len(drafted) + 1)]
        found += [state.follow([0], [token]) for token in drafted]
        state.close()
    return torch.cat(found)
