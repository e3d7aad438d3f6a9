"""Paceline's attention function, registered with transformers' attention interface.

Two implementations are registered. Under `RUN` the new keys and values go into Paceline's caches
and the rows attend there; no mask is built. Under `TRACE` nothing is computed: the arguments of
each call show how a layer attends, and a way that `attend` cannot compute exactly is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.masking_utils import causal_mask_function

from paceline.errors import UnsupportedModel
from paceline.targets.attention import Pass, attend

RUN, TRACE = "paceline", "paceline_trace"
"""The names of our attention implementations in a model's config."""

_SERVED = frozenset({"sliding_window", "softcap", "s_aux"})
"""Options of an attention call that change what it computes, and that `attend` supports."""

_IDLE = frozenset({"position_ids", "logits_to_keep"})
"""Options that change nothing. Positions are in queries and keys already, and attention does not
depend on which logits are wanted; some models pass on every option that they are called with."""


def set_attention(model: nn.Module, name: str) -> None:
    """Choose the attention implementation of every part of `model`."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig):
            config._attn_implementation = name


@contextmanager
def attending(state: Tracing | Running) -> Iterator[None]:
    """Let `state` compute the attention of the passes inside, in this thread only."""
    token = _STATE.set(state)
    try:
        yield
    finally:
        _STATE.reset(token)


class Call(NamedTuple):
    """One attention call; query `[1, heads, N, head_dim]`, key and value alike."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    scale: float
    options: dict[str, Any]


@dataclass(slots=True, eq=False)
class Running:
    """A real pass. The n-th attention call belongs to layer n and has the n-th window.

    Counting the calls needs no attribute of the modules, and gives layers that share a module
    separate caches.
    """

    batch: Pass
    windows: tuple[int | None, ...]
    calls: int = 0

    def attend(self, call: Call) -> Tensor:
        """`[1, N, heads, head_dim]`."""
        layer, self.calls = self.calls, self.calls + 1
        return attend(
            layer,
            call.query[0],
            call.key[0],
            call.value[0],
            self.batch,
            scale=call.scale,
            window=self.windows[layer] if layer < len(self.windows) else None,
            softcap=call.options.get("softcap"),
            sinks=call.options.get("s_aux"),
        )[None].contiguous()  # as transformers returns it; some models take a view of it


@dataclass(slots=True, eq=False)
class Tracing:
    """A pass that only records how each layer attends.

    Args:
        name: the name of the model, for messages.
        windows: the window of each attention call so far.
        limit: the length up to which chunked attention makes no difference.
        attended: the modules that have called attention so far.
    """

    name: str
    windows: list[int | None] = field(default_factory=list)
    limit: int | None = None
    attended: list[nn.Module] = field(default_factory=list)

    def attend(self, call: Call) -> Tensor:
        """Zeros, `[1, N, heads, head_dim]`.

        Raises:
            UnsupportedModel: the layer attends in a way that `attend` does not support.
        """
        if call.query.shape[2] != call.key.shape[2] or call.query.shape[0] != 1:
            self._refuse("attends to keys that are not those of the new tokens (such as a prefix)")
        for name, value in call.options.items():
            if value is not None and value is not False and name not in _SERVED | _IDLE:
                self._refuse(f"calls attention with {name}, which Paceline does not know")
        pattern = call.mask
        if pattern is None:
            if not getattr(call.module, "is_causal", True):
                self._refuse("attends to later tokens")
            pattern = Pattern(call.options.get("sliding_window"))
        if not isinstance(pattern, Pattern):
            self._refuse("builds its own attention masks or position biases")
        if not pattern.known:
            self._refuse("masks attention in a way that Paceline does not know")
        self.windows.append(pattern.window)
        self.attended.append(call.module)
        self.limit = min((n for n in (self.limit, pattern.limit) if n is not None), default=None)
        _, heads, rows, _ = call.query.shape
        return call.query.new_zeros(1, rows, heads, call.value.shape[-1])

    def _refuse(self, what: str) -> None:
        raise UnsupportedModel(f"{self.name} cannot be decoded exactly: it {what}")


_STATE: ContextVar[Tracing | Running] = ContextVar("paceline_attention")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which earlier positions a row sees.

    `window` counts back from the row, itself included; `limit` is the length up to which the
    pattern is causal without a window; `known` is False for any other.
    """

    window: int | None = None
    limit: int | None = None
    known: bool = True


def pattern_of(mask: Callable[..., Any], size: int | None, device: torch.device) -> Pattern:
    """The pattern of a mask function of transformers, found by calling it where patterns differ.

    Args:
        mask: from (batch, head, query position, key position) to whether the key is seen.
        size: the window or chunk size that belongs to it.
        device: the device of the function's tensors.
    """
    if mask is causal_mask_function:
        return Pattern()
    if size is None:
        return Pattern(known=False)
    near = torch.arange(-2, 3, device=device)
    edges = torch.cat([near + size * n for n in range(4)]).unique()
    places = edges[edges >= 0]
    query, key = places[:, None], places[None, :]
    seen = mask(0, 0, query, key)
    causal = key <= query
    if bool((seen == (causal & (key > query - size))).all()):
        return Pattern(window=size)
    if bool((seen == (causal & (key // size == query // size))).all()):
        return Pattern(limit=size)
    return Pattern(known=False)


def _mask(*, mask_function: Callable[..., Any], device: torch.device, **options: Any) -> Pattern:
    return pattern_of(mask_function, options.get("local_size"), device)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool = True,
    **options: Any,
) -> tuple[Tensor, None]:
    if dropout:
        options["dropout"] = dropout
    if not is_causal:
        options["is_causal=False"] = True
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = Call(module, query, key, value, attention_mask, scale, options)
    return _STATE.get().attend(call), None


AttentionInterface.register(RUN, _attention)
AttentionInterface.register(TRACE, _attention)
AttentionMaskInterface.register(TRACE, _mask)
