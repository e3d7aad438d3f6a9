"""The fastest decoder that computes what a model of transformers computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from paceline.kernels.packing import row_costs
from paceline.targets.decoder import Decoder
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.hf.decoder import HFDecoder
from paceline.targets.hf.fingerprint import Fingerprint, fingerprint
from paceline.targets.hf.lean import lean_decoder, not_lean


def decoder_of(model: nn.Module) -> Decoder:
    """A decoder over the model's own weights, as the model is now; the model stays as it is.

    The lean decoder where the model is what its class makes of its configuration and the class is
    one that it knows, else the model's own modules. What was found out about a model is kept as
    long as nothing of it changes but the numbers of its weights.

    Args:
        model: a causal language model of transformers.

    Raises:
        InvalidInput, UnsupportedModel: see `decoder.HFDecoder`.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    known = _known_of(model)
    if known is None:
        return HFDecoder(model)
    if known.reason is None:
        return lean_decoder(model, row_costs=known.row_costs)
    made = _MADE.get(model)
    if made is None or made[0] is not known or not made[1].is_current(model):
        made = _MADE[model] = known, HFDecoder(model)
    return made[1]


def is_lean(model: nn.Module) -> bool:
    """Whether `decoder_of` takes the lean decoder."""
    known = _known_of(getattr(model, "_orig_mod", model))
    return known is not None and known.reason is None


def _known_of(model: nn.Module) -> _Known | None:
    """What is known of a model, found out now if need be; None for one with foreign code."""
    mark, known = fingerprint(model), _KNOWN.get(model)
    if mark is None:
        return None
    if known is None or known.mark != mark:
        known = _KNOWN[model] = _look_at(model, mark)
    return known


class _Known(NamedTuple):
    """What was found out about a model.

    Args:
        mark: its fingerprint then.
        reason: why the lean decoder does not take it; None where it does.
        row_costs: of its products, see `kernels.packing.row_costs`.
    """

    mark: Fingerprint
    reason: str | None
    row_costs: Mapping[int, float]


_KNOWN: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()

_MADE: WeakKeyDictionary[nn.Module, tuple[_Known, HFDecoder]] = WeakKeyDictionary()
"""Decoders that run modules: to copy those takes as long as a pass or more."""


def _look_at(model: nn.Module, mark: Fingerprint) -> _Known:
    if reason := not_lean(model):
        return _Known(mark, reason, {})
    decoder: DenseDecoder = lean_decoder(model)
    products = (layer.gate_up for layer in decoder.layers)
    costs = row_costs(products, decoder.architecture.hidden_size, decoder.dtype)
    return _Known(mark, None, costs)
