"""DFlash and DSpark checkpoints of the speculators package against its own forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.models.heads import load_head
from tests.models.heads.oracles import layer_config, states_of
from tests.models.heads.test_dflash import BLOCK, EMBEDDING, MASK, RANK, VIEW
from tests.models.heads.test_eagle3 import KEPT
from tests.tiny_heads import (
    TARGET,
    VOCAB,
    WIDTH,
    chain_logits,
    random_hidden,
    random_tokens,
    randomise_weights,
)

speculators = pytest.importorskip(
    "speculators",
    reason="needs the packages of tests/requirements-oracles.txt",
    exc_type=ImportError,
)

LENGTH = 12
LAYERS = [1, 2, 4]


def made_by_speculators(kind: str | None, folder: Path, draft_vocab_size: int) -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    name = "dflash" if kind is None else "dspark"
    layers = layer_config("qwen3", num_hidden_layers=2)
    given: dict[str, Any] = {
        "transformer_layer_config": layers,
        "draft_vocab_size": draft_vocab_size,
        "aux_hidden_state_layer_ids": LAYERS,
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "speculators_config": SpeculatorsConfig(
            algorithm=name,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=BLOCK - 1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
    }
    if kind is None:
        model = speculators.DFlashDraftModel(speculators.DFlashSpeculatorConfig(**given))
    else:
        given |= {"markov_head_type": kind, "markov_rank": RANK}
        model = speculators.DSparkDraftModel(speculators.DSparkSpeculatorConfig(**given))
    randomise_weights(model.eval())
    with torch.no_grad():
        model.embed_tokens.weight.copy_(EMBEDDING)
    if draft_vocab_size == VOCAB:
        assert VIEW.head is not None
        with torch.no_grad():  # what its files leave to the target
            model.lm_head.weight.copy_(VIEW.head(torch.eye(WIDTH)).T)
    else:
        known = torch.zeros(VOCAB, dtype=torch.bool)
        known[KEPT] = True
        model.load_vocab_mappings(known, KEPT - torch.arange(len(KEPT)))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("draft_vocab_size", [VOCAB, len(KEPT)])
@pytest.mark.parametrize("kind", [None, "vanilla", "gated", "rnn"])
def test_it_is_what_the_package_computes(
    kind: str | None, draft_vocab_size: int, tmp_path: Path
) -> None:
    model = made_by_speculators(kind, tmp_path, draft_vocab_size)
    hidden, ids = random_hidden(LENGTH), random_tokens(LENGTH)
    mask = torch.ones(1, LENGTH)
    torch.manual_seed(0)  # for the anchors that it chooses
    count = LENGTH - BLOCK
    with torch.no_grad():
        states, logits, _, _, places = model._backbone_forward(
            states_of(hidden, tuple(LAYERS))[None],
            ids[None],
            mask,
            torch.zeros(1, LENGTH, WIDTH),
            torch.zeros(1, LENGTH, dtype=torch.long),
            max_anchors=count,
        )
        logits = logits[0].view(count, BLOCK, -1)
        blocks = ids[places].view(count, BLOCK)
        if kind is not None:
            logits = logits + model.markov_head.block_bias(
                prev_token_ids=blocks, hidden_states=states[0].view(count, BLOCK, -1)
            )
    anchors = places.view(count, BLOCK)[:, 0].tolist()
    assert len({anchor for anchor in anchors if anchor > 0}) > 2
    head = load_head(tmp_path, TARGET, dtype=torch.float32)
    for number, anchor in enumerate(anchors):
        if anchor == 0:
            continue  # no pass has seen anything yet
        tokens = ids[1 : anchor + 1].tolist()
        first = 0 if kind is not None else 1
        drafted = blocks[number, 1 : BLOCK - first].tolist()
        found = chain_logits(head, VIEW, hidden.rows(slice(0, anchor)), tokens, drafted)
        torch.testing.assert_close(found, logits[number, first:], atol=1e-5, rtol=1e-5)
