"""Models trained from scratch to predict several tokens, beside next-token models of their size.

As Gloeckle et al. (2404.19737): n heads of one layer each on a common trunk, with one output layer;
head 1 says the next byte, and the others draft. They are byte-level models of Python's help. Along
the text that head 1 writes greedily, drafts are accepted as in decoding (`train.objective.walk`),
which gives the acceptance of each head and tokens a pass.

    python benchmarks/multi_token.py --json benchmarks/results/multi_token.json
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from _bytes import VOCAB, bits_per_byte, config, cross_entropy, fit, pieces
from _common import write
from torch import Tensor, nn
from transformers import LlamaModel

from paceline.economics import stats
from paceline.economics.stats import AcceptanceCounts
from paceline.train.objective import walk

PROMPT, ANSWER = 48, 96


class MultiToken(nn.Module):
    """A trunk and n heads.

    Args:
        width: of the states.
        layers: of the trunk.
        heads: n; each is a layer.
    """

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.trunk = LlamaModel(config(width, layers))
        self.heads = nn.ModuleList(LlamaModel(config(width, 1)) for _ in range(heads))
        for head in self.heads:
            head.embed_tokens = None  # a head reads states
        self.output = nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """The logits `[B, T, V]` of each head."""
        state = self.trunk(tokens, use_cache=False).last_hidden_state
        found: list[Any] = [head(inputs_embeds=state, use_cache=False) for head in self.heads]
        return [self.output(one.last_hidden_state) for one in found]


def main() -> None:
    """Train, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3, help="of the trunk")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start, rows = time.perf_counter(), []
    text, held_out = pieces()
    for heads in options.heads:
        model = learned(MultiToken, options, options.layers, heads, text)
        # The same number of layers, all before one head.
        plain = learned(MultiToken, options, options.layers + heads - 1, 1, text)
        counts = replayed(model, held_out[: options.prompts, :PROMPT])
        row = {
            "heads": heads,
            "parameters": sum(one.numel() for one in model.parameters()),
            "parameters_next_token": sum(one.numel() for one in plain.parameters()),
            "tokens_per_pass": stats.mean_acceptance_length(counts),
            "acceptance_if_tested": stats.conditional_acceptance_rate_per_position(counts),
            "bits_per_byte": bits_per_byte(lambda x, m=model: m(x)[0], held_out),
            "bits_per_byte_next_token": bits_per_byte(lambda x, m=plain: m(x)[0], held_out),
            "acceptance": counts.to_json(),
        }
        rows.append(row)
        rates = " ".join(f"{rate:.2f}" for rate in row["acceptance_if_tested"] or ())
        sys.stdout.write(
            f"{heads} heads: {row['tokens_per_pass']:.2f} tokens a pass, acceptance {rates}, "
            f"{row['bits_per_byte']:.3f} bits per byte ({row['bits_per_byte_next_token']:.3f})\n"
        )
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    seconds = time.perf_counter() - start
    write(options.json, {"settings": settings, "seconds": seconds, "rows": rows})


def learned(kind: Any, options: argparse.Namespace, layers: int, heads: int, text: Tensor) -> Any:
    """A model that has learned a text, with the mean of the losses of its heads."""
    torch.manual_seed(1)
    model = kind(options.width, layers, heads)

    def loss(x: Tensor) -> Tensor:
        # At byte i head n (from 1) predicts byte i + n.
        pairs = enumerate(model(x[:, :-1]))
        losses = [cross_entropy(said[:, : x.shape[1] - 1 - n], x[:, 1 + n :]) for n, said in pairs]
        return torch.stack(losses).mean()

    fit(model.parameters(), text, loss, steps=options.steps, rate=2e-3, seed=1)
    return model.eval()


@torch.no_grad()
def replayed(model: Any, prompts: Tensor) -> AcceptanceCounts:
    """The rounds of drafts by the other heads along what the first writes greedily."""
    tokens = prompts
    for _ in range(ANSWER):
        tokens = torch.cat([tokens, model(tokens)[0][:, -1:].argmax(dim=-1)], dim=1)
    said = torch.stack([logits.argmax(dim=-1) for logits in model(tokens[:, :-1])[1:]], dim=-1)
    counts = AcceptanceCounts()
    for text, drafts in zip(tokens, said, strict=True):
        counts = walk(drafts, text, prompts.shape[1], counts)
    return counts


if __name__ == "__main__":
    main()
