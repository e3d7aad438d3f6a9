"""What is captured is what the model's own pass gives, whatever shares its passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paceline
from paceline.core.hidden import Hidden
from paceline.errors import InvalidInput
from paceline.train.answers import Answering, seed_of
from paceline.train.capture import capture
from paceline.train.prompts import Prompt
from tests import tiny_models

HIDDEN = Hidden((0, 1, 2), final=True)
PROMPTS = [
    Prompt(str(seed), tiny_models.tokens_of(length, seed)) for seed, length in enumerate((1, 9, 30))
]


def own_states(model: Any, tokens: torch.Tensor) -> dict[Any, torch.Tensor]:
    """What enters the layers, leaves the last one and the norm, by hooks on the model itself."""
    found: dict[Any, torch.Tensor] = {}
    layers = model.model.layers

    def entering(number: int) -> Any:
        return lambda _, args, options: found.update(
            {number: (args[0] if args else options["hidden_states"])[0]}
        )

    def leaving(_: Any, __: Any, output: Any) -> None:
        found[len(layers)] = (output if isinstance(output, torch.Tensor) else output[0])[0]

    hooks = [
        layer.register_forward_pre_hook(entering(number), with_kwargs=True)
        for number, layer in enumerate(layers)
    ]
    hooks.append(layers[-1].register_forward_hook(leaving))
    hooks.append(
        model.model.norm.register_forward_hook(lambda _, __, out: found.update({"final": out[0]}))
    )
    with torch.no_grad():
        model(tokens[None].long(), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_captured_states_are_those_of_the_model(family: str, temperature: float) -> None:
    own = tiny_models.tiny(family)
    model = paceline.load(own)
    how = Answering({"temperature": temperature}, max_tokens=12, batch=2, seed=3)
    counts: list[int] = []
    found = capture(
        model.target,
        how.requests(model, PROMPTS, 0),
        HIDDEN,
        batch=2,
        dtype=torch.float32,
        told=counts.append,
    )
    assert [one.num_prompt_tokens for one in found] == [1, 9, 30]
    assert sum(counts) == sum(one.num_answer_tokens for one in found) == 36
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert tuple(one.tokens[: one.num_prompt_tokens].tolist()) == prompt.tokens
        expected = own_states(own, one.tokens)
        assert one.hidden.final is not None
        assert one.hidden.num_rows == len(one.tokens) - 1
        torch.testing.assert_close(one.hidden.final, expected["final"][:-1], atol=1e-4, rtol=1e-4)
        for layer in HIDDEN.layers:
            torch.testing.assert_close(
                one.hidden.layers[layer], expected[layer][:-1], atol=1e-4, rtol=1e-4
            )


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_are_those_of_generating(temperature: float) -> None:
    model = paceline.load(tiny_models.tiny("llama"))
    how = Answering({"temperature": temperature}, max_tokens=9, batch=3, seed=5)
    requests = how.requests(model, PROMPTS, 4)
    found = capture(model.target, requests, HIDDEN, batch=3)
    for number, (prompt, one) in enumerate(zip(PROMPTS, found, strict=True)):
        alone = model.generate(
            prompt.tokens,
            drafter="none",
            verify="token",
            temperature=temperature,
            max_tokens=9,
            seed=seed_of(5, 4 + number),
        )
        assert tuple(one.tokens[one.num_prompt_tokens :].tolist()) == alone.token_ids


def test_answers_are_kept_as_far_as_they_got() -> None:
    model = paceline.load(tiny_models.tiny("llama"))
    how = Answering({"temperature": 0.0}, max_tokens=20, batch=3, seed=0)
    asked = iter(range(100))
    found = capture(
        model.target,
        how.requests(model, PROMPTS, 0),
        HIDDEN,
        batch=3,
        ends=lambda: next(asked) >= 7,
    )
    assert all(2 <= one.num_answer_tokens < 20 for one in found)
    assert all(one.hidden.num_rows == len(one.tokens) - 1 for one in found)


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    model = paceline.load(tiny_models.tiny("llama"))
    how = Answering({}, max_tokens=4, batch=1, seed=0)
    with pytest.raises(InvalidInput, match="the prompt has 200 tokens"):
        how.requests(model, [Prompt("x", tiny_models.tokens_of(200))], 0)
