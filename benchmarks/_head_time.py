"""The host's time for a step of a draft head, on a target so small that products take no time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from _common import median_ms
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from paceline.core.drafts import Budget
from paceline.core.hidden import Hidden
from paceline.core.passes import drive
from paceline.core.protocols import Steps, Work
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.drafting.heads.contract import Head, HeadState, Level
from paceline.drafting.heads.drafter import HeadSession
from paceline.engine.gather import Drafting, advance_together
from paceline.generate import plugins
from paceline.models.heads import load_head
from paceline.models.heads.eagle3 import Eagle3Settings
from paceline.models.heads.medusa import Weights, save_medusa
from paceline.models.heads.speculators import save_eagle3
from paceline.models.heads.weights import layer_config
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights


def random_heads(folder: Path) -> tuple[CachedTarget, dict[str, Head]]:
    """A tiny target with random weights, and heads for it."""
    width, vocab, rows = 64, 256, 32
    shape: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 1,
    }
    torch.manual_seed(0)
    config = LlamaConfig(**{**shape, "num_hidden_layers": 4})
    model = LlamaForCausalLM(config)
    target = CachedTarget(from_weights(model.state_dict(), config, dtype=torch.float32))
    blocks = [[(torch.randn(width, width), torch.randn(width))] for _ in range(4)]
    weights = Weights(blocks, [torch.randn(vocab, width) for _ in blocks])
    save_medusa(weights, folder / "medusa", base_model="random", vocab_size=vocab)
    layer, norms = "layers.0", ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    tensors = {
        "fc.weight": torch.randn(width, 3 * width),
        "norm.weight": torch.ones(width),
        "lm_head.weight": torch.randn(vocab, width),
        **{f"{layer}.{name}.weight": torch.ones(width) for name in norms},
        f"{layer}.self_attn.q_proj.weight": torch.randn(64, 2 * width),
        f"{layer}.self_attn.k_proj.weight": torch.randn(rows, 2 * width),
        f"{layer}.self_attn.v_proj.weight": torch.randn(rows, 2 * width),
        f"{layer}.self_attn.o_proj.weight": torch.randn(width, 64),
        f"{layer}.mlp.gate_proj.weight": torch.randn(2 * width, width),
        f"{layer}.mlp.up_proj.weight": torch.randn(2 * width, width),
        f"{layer}.mlp.down_proj.weight": torch.randn(width, 2 * width),
    }
    save_eagle3(
        folder / "eagle",
        Eagle3Settings(layer_config(shape, "random"), layers=(0, 2, 4)),
        tensors,
        verifier="random",
        architectures=["LlamaForCausalLM"],
        num_draft_tokens=4,
    )
    return target, {kind: load_head(folder / kind, target.info) for kind in ("medusa", "eagle")}


def heads(levels: int = 4, repeats: int = 200) -> dict[str, dict[str, float]]:
    """The host's time for a step of a head, which drafts one level.

    `head` is the head alone, `draft` with the drawing of the tokens; both as a chain, of one
    sequence and of eight that share the steps (the time of each), and `tree` drafts 16 nodes.
    """
    with TemporaryDirectory() as folder:
        target, loaded = random_heads(Path(folder))
    return {kind: times_of(head, target, levels, repeats) for kind, head in loaded.items()}


def times_of(head: Head, target: CachedTarget, levels: int, repeats: int) -> dict[str, float]:
    """The milliseconds of a step of one head."""
    prompt = [(7 * i + 3) % 200 for i in range(32)]
    warp, needs = SamplingWarp(SamplingParams(), prompt), Hidden.union(head.needs)
    slot = target.open(256)
    (scores,) = target.score([Work(slot, prompt, logits=False, hidden=needs)])
    assert scores.hidden is not None
    # A round of two tokens: the row before each, and the token that followed it.
    hidden, tokens, view = scores.hidden.rows([-3, -2]), tuple(prompt[-2:]), target.view(slot)

    def step(states: Sequence[HeadState]) -> None:
        for state in states:
            state.observe(hidden, tokens)
        together([state.start(levels) for state in states])
        for _ in range(levels - 1):
            together([state.follow([0], [5]) for state in states])

    def draft(session: HeadSession) -> None:
        session.observe(Committed(tokens, hidden=hidden))
        drive(session.propose(Budget(levels), warp, SeededNoise(0)))

    make = plugins.find("drafter", head.drafter).make
    chain, tree = (
        make({"head": head, "shape": shape}).open(view, 4096) for shape in ("chain", "dynamic")
    )
    one, eight = ([head.open(view, 4096) for _ in range(count)] for count in (1, 8))
    return {
        "head": median_ms(lambda: step(one), repeats) / levels,
        "head, of 8 sequences": median_ms(lambda: step(eight), repeats) / levels / 8,
        "draft": median_ms(lambda: draft(chain), repeats) / levels,
        "draft, tree": median_ms(lambda: draft(tree), repeats) / levels,
    }


def together(steps: Sequence[Steps[Level]]) -> None:
    """Run what states ask for, as the engine does."""
    drafts: list[Any] = [Drafting(one) for one in steps]  # type: ignore[arg-type]
    advance_together(drafts)


def heads_table(found: dict[str, dict[str, float]]) -> Table:
    """A row a head."""
    columns = next(iter(found.values()))
    table = Table("ms a step", *columns)
    for kind, times in found.items():
        table.add_row(kind, *(f"{ms:.3f}" for ms in times.values()))
    return table
