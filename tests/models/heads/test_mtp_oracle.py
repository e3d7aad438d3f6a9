"""MTP checkpoints of the speculators package against its own layer, step by step.

Its forward trains: at each step all rows see one another's output of the step before. What is
served is the layer over final rows and the drafted ones after them: that is computed with it here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.models.heads import load_head
from tests.models.heads.oracles import layer_config
from tests.models.heads.test_eagle3 import DRAFTED, TOKENS
from tests.tiny_heads import (
    TARGET,
    VOCAB,
    WIDTH,
    chain_logits,
    random_hidden,
    randomise_weights,
    view_of,
)

speculators = pytest.importorskip(
    "speculators",
    reason="needs the packages of tests/requirements-oracles.txt",
    exc_type=ImportError,
)

# It was written for an older transformers.
pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*deprecated:FutureWarning")


def own_logits(model: Any, states: Tensor, tokens: list[int], drafted: list[int]) -> Tensor:
    """The logits after the final tokens and each drafted one."""
    features, given, found = states, [*tokens], []
    for step in range(len(drafted) + 1):
        positions = torch.arange(len(given))[None]
        mask = torch.full((len(given),) * 2, -torch.inf).triu(1)[None, None]
        out = model.mtp_layers[0](
            hidden_states=features[None],
            token_embeddings=model.embed_tokens(torch.tensor(given))[None],
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=model.rotary_emb(features[None], positions),
        )
        found.append(model.lm_head(out)[0, -1])
        if step < len(drafted):
            given.append(drafted[step])
            features = torch.cat([features, out[0, -1:]])
    return torch.stack(found)


def test_mtp_is_what_the_package_computes_over_four_steps(tmp_path: Path) -> None:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    layers = layer_config("qwen3")
    config = speculators.MTPSpeculatorConfig(
        transformer_layer_config=layers,
        speculators_config=SpeculatorsConfig(
            algorithm="mtp",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
    )
    model = speculators.MTPDraftModel(config).eval()
    randomise_weights(model)
    model.save_pretrained(tmp_path)
    head = load_head(tmp_path, TARGET, dtype=torch.float32)
    view, hidden = (
        view_of(model.embed_tokens.weight, model.lm_head.weight),
        random_hidden(len(TOKENS)),
    )
    assert view.embed is not None
    assert hidden.final is not None
    assert model.embed_tokens.weight.shape == (VOCAB, WIDTH)
    with torch.no_grad():
        expected = own_logits(model, hidden.final, TOKENS, DRAFTED)
        found = chain_logits(head, view, hidden, TOKENS, DRAFTED)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    # The first step of its own forward, which has no step before.
    with torch.no_grad():
        (first, *_), _, _ = model(
            input_ids=torch.tensor([[1, *TOKENS, 0, 0, 0]]),
            hidden_states=torch.cat([hidden.final, torch.zeros(4, WIDTH)])[None],
        )
    torch.testing.assert_close(found[0], first[0, len(TOKENS) - 1], atol=1e-5, rtol=1e-5)
