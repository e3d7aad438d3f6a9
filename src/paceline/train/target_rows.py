"""Rows of the target's output head and embedding, from a model of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel

STATES_AT_ONCE = 64
"""Unit vectors of one product with the head: their logits are over the whole vocabulary."""

TOLERANCE = 0.05
"""How far rounding in bfloat16 may move a logit, relative to the largest."""


def hidden_size(model: LanguageModel) -> int:
    """The width of the target's states.

    Raises:
        InvalidInput: the target does not give its embedding and output head.
    """
    with _view(model) as view:
        assert view.embed is not None
        return view.embed(torch.tensor([0])).shape[-1]


@torch.no_grad()
def embedding_rows(model: LanguageModel, ids: Tensor) -> Tensor:
    """The embeddings of some tokens, as they enter the first layer, `[n, hidden]`."""
    with _view(model) as view:
        assert view.embed is not None
        return view.embed(ids).clone()


@torch.no_grad()
def head_rows(model: LanguageModel, ids: Tensor | None) -> Tensor:
    """The rows of the output head that belong to some tokens, `[n, hidden]`; None is all of them.

    The head is run on unit vectors, which gives its columns to the bit however it is stored.

    Raises:
        InvalidInput: the head is more than a product: it caps its logits, say.
    """
    with _view(model) as view:
        assert view.embed is not None
        assert view.head is not None
        sample = view.embed(torch.tensor([0]))
        width, dtype, device = sample.shape[-1], sample.dtype, sample.device
        keep = slice(None) if ids is None else ids.to(device)
        columns = [
            view.head(unit.to(device, dtype))[:, keep].T.to("cpu", dtype)
            for unit in torch.eye(width).split(STATES_AT_ONCE)  # type: ignore[no-untyped-call]
        ]
        rows = torch.cat(columns, dim=1)
        random = torch.Generator().manual_seed(0)
        states = 20 * torch.randn(4, width, generator=random).to(dtype)
        own = view.head(states.to(device))[:, keep].float().cpu()
        product = states.float() @ rows.float().T
    if not bool((own - product).abs().max() <= TOLERANCE * own.abs().max()):
        raise InvalidInput(
            f"the output head of {model.name} is more than a product of its states with its rows "
            "(it caps its logits, or adds a bias), and heads that start from its rows cannot be "
            "trained for it"
        )
    return rows.clone()


@contextmanager
def _view(model: LanguageModel) -> Iterator[TargetView]:
    if missing := model.target.info.lacks({Need.EMBEDDING, Need.HEAD}):
        raise InvalidInput(
            f"{model.name} does not give its {' and '.join(missing)}, which training a head needs; "
            "use another model"
        )
    slot = model.target.open(1)
    try:
        yield model.target.view(slot)
    finally:
        model.target.close(slot)
