"""EAGLE-3 and P-EAGLE checkpoints against the package that defines their format.

`speculators` is no part of the development environment, since it asks for another transformers; see
tests/requirements-oracles.txt. `test_eagle3.py` holds the same heads against the equations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.view import TargetView
from paceline.models.heads import load_head
from tests.models.heads.oracles import layer_config, states_of
from tests.tiny_heads import TARGET, Alone, random_hidden, random_tokens, randomise_weights

speculators = pytest.importorskip(
    "speculators",
    reason="needs the packages of tests/requirements-oracles.txt",
    exc_type=ImportError,
)

# It was written for an older transformers.
pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*deprecated:FutureWarning")

FLAGS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_output": True},
    {"fc_norm": True, "norm_output": True, "norm_before_residual": True},
]
STEPS, LENGTH = 4, 9


def made_by_speculators(
    algorithm: str, folder: Path, layers: Any, draft_vocab_size: int, **flags: Any
) -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    kind: dict[str, Any] = {
        "eagle3": (speculators.Eagle3SpeculatorConfig, speculators.Eagle3DraftModel),
        "peagle": (speculators.PEagleSpeculatorConfig, speculators.PEagleDraftModel),
    }
    config_class, model_class = kind[algorithm]
    config = config_class(
        transformer_layer_config=layers,
        draft_vocab_size=draft_vocab_size,
        eagle_aux_hidden_state_layer_ids=[1, 2, 4],
        speculators_config=SpeculatorsConfig(
            algorithm=algorithm,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    model = model_class(config).eval()
    randomise_weights(model)
    if draft_vocab_size != TARGET.vocab_size:
        ids = torch.arange(draft_vocab_size) * 2
        known = torch.zeros(TARGET.vocab_size, dtype=torch.bool)
        known[ids] = True
        model.load_vocab_mappings(known, ids - torch.arange(draft_vocab_size))
    model.save_pretrained(folder)
    return model


def own_logits(model: Any, states: Tensor, tokens: Tensor) -> list[Tensor]:
    """The logits `[n, Vh]` of each step of the model's own forward."""
    found: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: found.append(output))
    with torch.no_grad():
        model(
            hidden_states=states[None],
            input_ids=tokens[None],
            document_ids=torch.zeros(1, len(tokens), dtype=torch.long),
            ttt_steps=STEPS,
        )
    hook.remove()
    return [logits[0] for logits in found]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(flags) or "plain")
@pytest.mark.parametrize("draft_vocab_size", [TARGET.vocab_size, 24])
def test_eagle3_is_what_the_package_computes_over_four_steps(
    kind: str, flags: dict[str, Any], draft_vocab_size: int, tmp_path: Path
) -> None:
    model = made_by_speculators("eagle3", tmp_path, layer_config(kind), draft_vocab_size, **flags)
    hidden, tokens = random_hidden(LENGTH), random_tokens(LENGTH)
    expected = own_logits(model, states_of(hidden, (1, 2, 4)), tokens)
    head = load_head(tmp_path, TARGET, dtype=torch.float32)
    with torch.inference_mode():
        for last in range(LENGTH - STEPS):
            state = Alone(head.open(TargetView(TARGET), 32))
            state.observe(hidden.rows(slice(0, last + 1)), tokens[: last + 1].tolist())
            found = [state.start(STEPS)]
            found += [state.follow([0], [int(tokens[last + n])]) for n in range(1, STEPS)]
            for step in range(STEPS):
                torch.testing.assert_close(
                    found[step][0], expected[step][last], atol=1e-5, rtol=1e-5
                )


@pytest.mark.parametrize("layers", [1, 3])
def test_peagle_is_what_the_package_computes(layers: int, tmp_path: Path) -> None:
    config = layer_config("llama", num_hidden_layers=layers)
    model = made_by_speculators("peagle", tmp_path, config, 24, mask_token_id=5)
    hidden, tokens = random_hidden(LENGTH), random_tokens(LENGTH)
    found: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: found.append(output))
    torch.manual_seed(0)  # for the rows that it chooses
    with torch.no_grad():
        model(
            hidden_states=states_of(hidden, (1, 2, 4))[None],
            input_ids=tokens[None],
            document_ids=torch.zeros(1, LENGTH, dtype=torch.long),
            verifier_last_hidden_states=torch.zeros(1, LENGTH, TARGET.hidden_size),
            loss_mask=torch.ones(1, LENGTH),
            num_depths=STEPS,
            down_sample_ratio=1.0,
            # Its own losses need a compiler for GPUs.
            loss_config={"none": (lambda logits, targets: logits.sum(-1), 1.0)},
        )
    hook.remove()
    anchors, depths = _rows(LENGTH)
    head = load_head(tmp_path, TARGET, dtype=torch.float32)
    compared = 0
    with torch.inference_mode():
        for last in range(LENGTH):
            state = Alone(head.open(TargetView(TARGET), 32))
            state.observe(hidden.rows(slice(0, last + 1)), tokens[: last + 1].tolist())
            rows = [state.start(STEPS)]
            rows += [state.follow([0], [7]) for _ in range(STEPS - 1)]
            for depth in range(STEPS):
                at = [
                    row
                    for row, (anchor, level) in enumerate(zip(anchors, depths, strict=True))
                    if anchor == last and level == depth
                ]
                for row in at:
                    compared += 1
                    torch.testing.assert_close(
                        rows[depth][0], found[0][0, row], atol=1e-5, rtol=1e-5
                    )
    assert compared == sum(anchor >= 0 for anchor in anchors) > 2 * LENGTH


def _rows(length: int) -> tuple[list[int], list[int]]:
    from speculators.models.peagle.data import generate_cod_sample_indices

    torch.manual_seed(0)
    anchors, depths = generate_cod_sample_indices(
        length, torch.ones(1, length), num_depths=STEPS, down_sample_ratio=1.0
    )
    return anchors.tolist(), depths.tolist()


def test_the_view_has_what_a_checkpoint_leaves_out(tmp_path: Path) -> None:
    """A head without an embedding takes the target's."""
    from safetensors.torch import load_file, save_file

    made_by_speculators("eagle3", tmp_path, layer_config("llama"), 24)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    embedding = weights.pop("embed_tokens.weight")
    whole = load_head(tmp_path, TARGET, dtype=torch.float32)
    hidden, tokens = random_hidden(4), [3, 9, 2, 30]
    with torch.inference_mode():
        state = Alone(whole.open(TargetView(TARGET), 8))
        state.observe(hidden, tokens)
        expected = state.start(1)
        save_file(weights, path)
        bare = load_head(tmp_path, TARGET, dtype=torch.float32)
        view = TargetView(TARGET, embed=lambda tokens: embedding[tokens])
        state = Alone(bare.open(view, 8))
        state.observe(hidden, tokens)
        assert torch.equal(state.start(1), expected)
