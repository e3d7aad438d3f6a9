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
    """What was found out about a model.

    Args:
        model: it, without what torch.compile wraps it in.
        mark: its fingerprint; None where it has foreign code, which is looked at in every call.
        reason: why the lean decoder does not take it; None where it does.
        row_costs: of its products, see `kernels.packing.row_costs`.
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
    """Look at a model, or remember what was found out when nothing of it has changed since."""
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

    The lean decoder where the model is what its class makes of its configuration and the class is
    one that it knows, else the model's own modules. What was found out about a model is kept as
    long as nothing of it changes but the numbers of its weights.

    Args:
        model: a causal language model of transformers.
        look: what `look_at` found just now.

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
    """A `Look` without the model, which nobody is to keep alive."""

    mark: Fingerprint
    reason: str | None
    row_costs: Mapping[int, float]


_KNOWN: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()

_MADE: WeakKeyDictionary[nn.Module, tuple[Fingerprint, HFDecoder]] = WeakKeyDictionary()
"""Decoders that run modules: to copy those takes as long as a pass or more."""


def _find_out(model: nn.Module, mark: Fingerprint) -> _Known:
    if reason := not_lean(model):
        return _Known(mark, reason, {})
    decoder: DenseDecoder = lean_decoder(model)
    products = (layer.gate_up for layer in decoder.layers)
    costs = row_costs(products, decoder.architecture.hidden_size, decoder.dtype)
    return _Known(mark, None, costs)
