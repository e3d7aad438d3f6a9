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
from paceline.targets.hf.fingerprint import Fingerprint, fingerprint, foreign_code
from paceline.targets.hf.lean import lean_decoder, not_lean


class Look(NamedTuple):
    """What is known about a model.

    Args:
        model: the model, without the wrapper of torch.compile.
        mark: its fingerprint; None if it holds foreign code, which is inspected in every call.
        reason: why the lean decoder does not take it; None if it does.
        row_costs: the time of its products by rows, see `kernels.packing.row_costs`.
    """

    model: nn.Module
    mark: Fingerprint | None
    reason: str | None
    row_costs: Mapping[int, float]

    @property
    def is_lean(self) -> bool:
        """Whether the lean decoder takes the model."""
        return self.reason is None


def look_at(model: nn.Module) -> Look:
    """Inspect a model, or return what is known if nothing of it has changed since."""
    model = getattr(model, "_orig_mod", model)
    mark = fingerprint(model)
    if mark is None:
        return Look(model, None, foreign_code(model) or "it holds foreign code", {})
    known = _KNOWN.get(model)
    if known is None or known.mark != mark:
        known = _KNOWN[model] = _find_out(model, mark)
    return Look(model, known.mark, known.reason, known.row_costs)


def decoder_of(model: nn.Module, look: Look | None = None) -> Decoder:
    """A decoder over the model's own weights, as the model is now; the model stays as it is.

    It is the lean decoder if that knows the model's class and the model is exactly what its class
    makes of its configuration. Otherwise it runs the model's own modules. What was found out about
    a model is cached until something other than the values of its weights changes.

    Args:
        model: a causal language model of transformers.
        look: what `look_at` has just returned.

    Raises:
        InvalidInput, UnsupportedModel: see `decoder.HFDecoder`.
    """
    look = look_at(model) if look is None else look
    model = look.model
    if look.is_lean:
        return lean_decoder(model, row_costs=look.row_costs)
    if look.mark is None:
        return HFDecoder(model)
    made = _MADE.get(model)
    if made is None or made[0] is not look.mark or not made[1].is_current(model):
        made = _MADE[model] = look.mark, HFDecoder(model)
    return made[1]


class _Known(NamedTuple):
    """A `Look` without the model, so that the cache does not keep it alive."""

    mark: Fingerprint
    reason: str | None
    row_costs: Mapping[int, float]


_KNOWN: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()

_MADE: WeakKeyDictionary[nn.Module, tuple[Fingerprint, HFDecoder]] = WeakKeyDictionary()
"""Decoders that run modules, cached because copying modules takes as long as a pass or more."""


def _find_out(model: nn.Module, mark: Fingerprint) -> _Known:
    if reason := not_lean(model):
        return _Known(mark, reason, {})
    decoder: DenseDecoder = lean_decoder(model)
    products = (layer.gate_up for layer in decoder.layers)
    costs = row_costs(products, decoder.architecture.hidden_size, decoder.dtype)
    return _Known(mark, None, costs)
