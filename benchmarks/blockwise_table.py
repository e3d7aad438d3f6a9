"""Blockwise decoding on a model trained here: mean block by block size and by how it was trained.

The columns of Stern et al. (1811.03115), table 1, in kind, for byte-level models of Python's help:

- regular: the model learned the text, stays as it is, and heads are added to it;
- distilled: the model learned what another model, the teacher, wrote after pieces of the text;
- fine-tuned: as regular, but the model goes on learning together with its heads;
- both.

The mean block is tokens a pass of greedy decoding by Paceline's own drafter, whose text is held to
that of plain decoding; bits per byte on held-out text say what the model has lost.

    python benchmarks/blockwise_table.py --json benchmarks/results/blockwise_table.json
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _bytes import LENGTH, VOCAB, bits_per_byte, config, cross_entropy, fit, pieces, written
from _common import write
from torch import Tensor, nn
from transformers import LlamaForCausalLM

import paceline
from paceline.economics import stats
from paceline.economics.stats import AcceptanceCounts
from paceline.models.heads import load_head
from paceline.models.heads.blockwise import Weights, save_blockwise
from paceline.train.blockwise import BlockwiseHeads

PROMPT, ANSWER = 48, 96
COLUMNS = ("regular", "distilled", "fine-tuned", "both")


def main() -> None:
    """Train, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 4, 6, 8])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500, help="of a model; of its heads, half")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start, rows = time.perf_counter(), []
    text, held_out = pieces()
    base = trained(options, text, seed=1)
    teacher = trained(options, text, seed=2)
    taught = written(teacher, text[: 2 * options.steps, :32], LENGTH + 1 - 32)
    distilled = trained(options, taught, seed=1)
    starts = {"regular": (base, text), "distilled": (distilled, taught)}
    starts |= {"fine-tuned": starts["regular"], "both": starts["distilled"]}
    for block in options.blocks:
        for column in COLUMNS:
            begun, learned = starts[column]
            model = copy.deepcopy(begun)
            heads = with_heads(
                model, learned, block - 1, options.steps // 2, frozen=column in COLUMNS[:2]
            )
            counts = decoded(model, heads, held_out[: options.prompts, :PROMPT])
            row = {
                "block_size": block,
                "column": column,
                "mean_block": stats.mean_acceptance_length(counts),
                "bits_per_byte": bits_per_byte(lambda x, m=model: m(x).logits, held_out),
                "acceptance": counts.to_json(),
            }
            rows.append(row)
            told = f"{block}  {column:10}  {row['mean_block']:.2f}  {row['bits_per_byte']:.3f}\n"
            sys.stdout.write(told)
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    seconds = time.perf_counter() - start
    write(options.json, {"settings": settings, "seconds": seconds, "rows": rows})


def trained(options: argparse.Namespace, text: Tensor, seed: int) -> Any:
    """A model that has learned a text."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config(options.width, options.layers))
    fit(
        model.parameters(),
        text,
        lambda x: cross_entropy(model(x[:, :-1]).logits, x[:, 1:]),
        steps=options.steps,
        rate=2e-3,
        seed=seed,
    )
    return model


def with_heads(model: Any, text: Tensor, num_heads: int, steps: int, *, frozen: bool) -> Any:
    """Heads for a model; it learns with them unless it is frozen."""
    rows = model.lm_head.weight
    heads = BlockwiseHeads(rows.detach(), num_heads, rows.shape[1], shared=True)

    def loss(x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not frozen):
            final = model.model(x[:, :-1]).last_hidden_state
        parts = [cross_entropy(final @ rows.T, x[:, 1:])] if not frozen else []
        for head, state in enumerate(heads.states(final, x)):
            # The state of byte i is about byte i + 2 + head.
            logits = state[:, : -1 - head] @ (rows.detach() if frozen else rows).T
            parts.append(cross_entropy(logits, x[:, 2 + head :]))
        return torch.stack(parts).mean()

    learning: list[nn.Parameter] = [*heads.parameters()]
    if not frozen:
        learning += model.parameters()
    fit(learning, text, loss, steps=steps, rate=1e-3)
    return heads


def decoded(model: Any, heads: BlockwiseHeads, prompts: Tensor) -> AcceptanceCounts:
    """The rounds of greedy decoding after some prompts.

    Raises:
        AssertionError: the text is not that of plain decoding.
    """
    counts = AcceptanceCounts()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        weights = Weights(
            (heads.hidden.weight, heads.hidden.bias), (heads.output.weight, heads.output.bias)
        )
        save_blockwise(weights, Path(folder), base_model="bytes", vocab_size=VOCAB)
        target = paceline.load(copy.deepcopy(model).eval())
        head = load_head(folder, target.target.info, dtype=torch.float32)
        drafter = target.drafter(
            drafter="blockwise", draft_head=head, drafter_options={"shape": "chain"}
        )
        how: dict[str, Any] = {"max_tokens": ANSWER, "temperature": 0.0}
        for prompt in prompts.tolist():
            found = target.generate(
                prompt, drafter=drafter, num_draft_tokens=heads.num_heads, **how
            )
            plain = target.generate(prompt, drafter="none", **how)
            assert found.token_ids == plain.token_ids
            counts += found.metrics.counts
    return counts


if __name__ == "__main__":
    main()
