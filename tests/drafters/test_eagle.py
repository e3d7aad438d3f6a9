"""EAGLE heads on tiny models: the contract, greedy equality, the law of sampled answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from paceline.core.protocols import Target, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.view import TargetView
from paceline.drafters.eagle import EagleDrafter
from paceline.errors import InvalidInput
from paceline.models.heads import load_head
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.greedy import generated
from tests.models.heads import test_eagle as eagle1
from tests.models.heads import test_eagle3 as eagle3
from tests.rigged import run
from tests.tiny_models import build, lean_target, own_logits, tokens_of

PROMPT = tokens_of(6) * 2
COUNT = 12
WARM = SamplingParams(temperature=1.0)
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"shape": "chain"},
    "dynamic": {"max_nodes": 6, "top_k": 3},
    "static": {"shape": "static", "branching": [2, 2]},
}


@cache
def model() -> Any:
    return build("llama", num_hidden_layers=4)


@cache
def target(kind: str = "lean") -> CachedTarget:
    return lean_target(model()) if kind == "lean" else CachedTarget(HFDecoder(model()))


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Random heads of each generation for the tiny model."""
    folder = tmp_path_factory.mktemp("heads")
    parallel = eagle3.settings_of(mask_token=5, max_levels=3)
    folders = {
        "eagle1": eagle1.write(folder / "1", eagle1.eagle1_weights()),
        "eagle3": eagle3.write(folder / "3"),
        "peagle": eagle3.write(folder / "p", parallel),
    }
    info = target().info
    return {kind: load_head(path, info, dtype=torch.float32) for kind, path in folders.items()}


def rule(shape: str) -> Verifier:
    return TokenVerifier() if shape == "chain" else TreeVerifier()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param("eagle3", {"shape": "chain"}, marks=pytest.mark.slow),
        pytest.param("peagle", {"shape": "chain"}, marks=pytest.mark.slow),
        pytest.param("eagle1", {"shape": "static", "paths": [[0], [1]]}, marks=pytest.mark.slow),
    ],
)
def test_its_contract(kind: str, settings: dict[str, Any], heads: dict[str, Any]) -> None:
    """Every outcome of its noise on a tiny model: q is what drew, the output has the law of p.

    A quicker one stands in `test_heads.py`; what all kinds share is enumerated on scripted heads in
    `tests/drafting/heads`.
    """
    check_drafter(
        EagleDrafter(heads[kind], **settings),
        target=lean_target(build("llama", num_hidden_layers=4, max_position_embeddings=20)),
        params=SamplingParams(temperature=1.0, top_k=2),
        verifier=rule(settings["shape"]),
        num_draft_tokens=1 if kind == "eagle1" else 2,
        text_alone=True,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["eagle1", "eagle3", "peagle"])
@pytest.mark.parametrize("decoder", ["lean", "transformers"])
def test_greedy_answers_are_those_of_transformers(
    kind: str, shape: str, decoder: str, heads: dict[str, Any]
) -> None:
    drafter = EagleDrafter(heads[kind], **SHAPES[shape])
    found = run(target(decoder), PROMPT, drafter, k=3, max_tokens=COUNT, verifier=rule(shape))
    assert found.tokens == generated(model(), PROMPT, COUNT)


@pytest.mark.parametrize("shape", ["chain", "dynamic"])
def test_a_prompt_in_chunks_and_requests_beside_one_another(
    shape: str, heads: dict[str, Any]
) -> None:
    drafter = EagleDrafter(heads["eagle3"], **SHAPES[shape])
    options: dict[str, Any] = {"k": 3, "params": WARM, "max_tokens": 6, "verifier": rule(shape)}
    whole = run(target(), PROMPT, drafter, **options)
    assert run(target(), PROMPT, drafter, prefill_rows=5, **options).tokens == whole.tokens


def test_a_head_that_is_right_has_every_token_accepted(tmp_path: Path) -> None:
    """A target whose layers do nothing says what follows from the last token alone.

    So does a head that is the embedding of the token beside a state: were it the token before, or
    the state of another row, its drafts would be wrong.
    """
    still = build("llama", num_hidden_layers=4)
    with torch.no_grad():
        for name, parameter in still.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
        still.model.norm.weight.fill_(1.0)
    weights = {name: torch.zeros_like(x) for name, x in eagle1.eagle1_weights().items()}
    width = len(weights["fc.weight"])
    weights["fc.weight"] = torch.eye(width, 2 * width)
    weights["embed_tokens.weight"] = still.model.embed_tokens.weight.detach().clone()
    decoded = lean_target(still)
    head = load_head(eagle1.write(tmp_path, weights), decoded.info, dtype=torch.float32)
    drafter = EagleDrafter(head, shape="chain")
    found = run(decoded, PROMPT, drafter, k=3, max_tokens=COUNT)
    assert found.tokens == generated(still, PROMPT, COUNT)
    assert len(set(found.tokens)) > 2, "the answer repeats one token, and any head would be right"
    assert len(found.rounds) == COUNT // 4


@pytest.mark.statistical
def test_the_second_token_after_a_sampled_tree_has_the_law_of_the_model(
    heads: dict[str, Any],
) -> None:
    """n = 200 answers, seeds 0 to 199; the law from the model itself; false alarms: one in 1000."""
    drafter = EagleDrafter(heads["eagle3"], **SHAPES["dynamic"])
    law = torch.zeros(64, dtype=torch.float64)
    for token, chance in top4(PROMPT):
        for second, further in top4((*PROMPT, token)):
            law[second] += chance * further
    counts = torch.zeros_like(law)
    params = SamplingParams(temperature=0.7, top_k=4)
    options: dict[str, Any] = {"k": 2, "params": params, "max_tokens": 3}
    for seed in range(200):
        found = run(target(), PROMPT, drafter, verifier=TreeVerifier(), seed=seed, **options)
        counts[found.tokens[1]] += 1
    assert not counts[law == 0].any()
    rare = 200 * law < 5  # together they are one cell
    cells = [torch.cat([x[~rare], x[rare].sum()[None]]) for x in (counts, law)]
    assert len(cells[0]) > 5
    assert chisquare(cells[0], 200 * cells[1] / cells[1].sum()).pvalue > 1e-3


def top4(text: tuple[int, ...]) -> list[tuple[int, float]]:
    """The model's law of the next token at temperature 0.7 among its four best."""
    best = own_logits(model(), text)[-1].topk(4)
    return list(zip(best.indices.tolist(), (best.values / 0.7).softmax(0).tolist(), strict=True))


def test_a_target_that_does_not_give_its_states_is_refused(heads: dict[str, Any]) -> None:
    table: Target = TableTarget(torch.full((64,), 1 / 64))
    view: TargetView = table.view(table.open(8))
    with pytest.raises(InvalidInput, match="hidden states"):
        EagleDrafter(heads["eagle3"]).open(view, 8)
