"""Hidden states, the embedding and the output head of a model of transformers.

Hooks on the shadow's modules capture the input of each layer, the output of the last layer and the
output of the final norm. So these are what the model computes, to the bit. Transformers'
`output_hidden_states` lacks the output of the last layer: its last entry is the state after the
final norm.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.target import Need


@dataclass(slots=True, eq=False)
class Taken:
    """The states that passes have captured of those `asked` for; `order` is that of the layers."""

    asked: Hidden
    layers: dict[int, Tensor] = field(default_factory=dict)
    final: Tensor | None = None
    order: list[int] = field(default_factory=list)

    def states(self, device: torch.device) -> HiddenStates:
        """All states that were asked for, `[rows, hidden]` each, on one device."""
        layers = {layer: self.layers[layer].to(device) for layer in self.asked.layers}
        return HiddenStates(layers, None if self.final is None else self.final.to(device))


_TAKEN: ContextVar[Taken | None] = ContextVar("paceline_hidden_states", default=None)


class Taps:
    """The places in a shadow where hidden states can be captured.

    Args:
        model: the shadow.
        layers: the name of the list of its decoder layers, see `layers_of`.
    """

    def __init__(self, model: nn.Module, layers: str) -> None:
        found = model.get_submodule(layers)
        assert isinstance(found, nn.ModuleList)
        self._layers, self._body = list(found), body_of(causal_of(model))
        self._hooks: dict[int, RemovableHandle] = {}
        self._lock = Lock()

    @property
    def num_layers(self) -> int:
        """The number of decoder layers."""
        return len(self._layers)

    @contextmanager
    def taking(self, asked: Hidden) -> Iterator[Taken]:
        """Capture what is asked for in the passes inside, in this thread only."""
        self._hook(asked)
        token = _TAKEN.set(taken := Taken(asked))
        try:
            yield taken
        finally:
            _TAKEN.reset(token)

    def remove(self) -> None:
        """Remove the hooks."""
        with self._lock:
            while self._hooks:
                self._hooks.popitem()[1].remove()

    def _hook(self, asked: Hidden) -> None:
        """Add the hooks that are missing; a model whose states are never requested has none."""
        last = len(self._layers)
        places = {*asked.layers, *([last + 1] if asked.final else [])}
        with self._lock:
            for place in places - self._hooks.keys():
                if place < last:
                    hook = self._layers[place].register_forward_pre_hook(
                        _entering(place), with_kwargs=True
                    )
                elif place == last:
                    hook = self._layers[-1].register_forward_hook(_leaving(last))
                else:
                    hook = self._body.register_forward_hook(_final)
                self._hooks[place] = hook


def _entering(layer: int) -> Any:
    def hook(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        _take(layer, args[0] if args else options.get("hidden_states"))

    return hook


def _leaving(layer: int) -> Any:
    def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        _take(layer, output if isinstance(output, Tensor) else output[0])

    return hook


def _take(layer: int, states: Any) -> None:
    taken = _TAKEN.get()
    if taken is not None and layer in taken.asked.layers and isinstance(states, Tensor):
        # A copy: some layers add to their input in place.
        taken.layers[layer] = states[0].clone()
        taken.order.append(layer)


def _final(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
    taken = _TAKEN.get()
    if taken is not None and taken.asked.final and isinstance(output[0], Tensor):
        taken.final = output[0][0].clone()


def layers_of(model: nn.Module, attended: Sequence[nn.Module]) -> str | None:
    """The name of the list of decoder layers: the one that holds every module that attended.

    None if there is no such list.
    """
    names = {id(module): name for name, module in model.named_modules()}
    lists = set()
    for module in attended:
        path = names.get(id(module), "").split(".")
        parents = [".".join(path[:end]) for end in range(1, len(path))]
        lists.add(
            next((p for p in parents if isinstance(model.get_submodule(p), nn.ModuleList)), None)
        )
    return lists.pop() if len(lists) == 1 else None


def offer(model: nn.Module, taken: Taken, logits: Tensor) -> frozenset[Need | Hidden]:
    """What a model can give to drafters, learnt from a pass over two rows that captured everything.

    Hidden states, if the pass went through each layer once and in order; the embedding and the
    head, if the head computes the `logits` `[.., V]` of the last rows from their states.
    """
    rows = [*taken.layers.values(), *([] if taken.final is None else [taken.final])]
    in_order = taken.order == list(taken.asked.layers) and taken.final is not None
    if not in_order or any(states.dim() != 2 or len(states) != 2 for states in rows):
        return frozenset()
    assert taken.final is not None
    try:
        found = Head(model)(taken.final[-len(logits) :])
    except Exception:  # noqa: BLE001 - the model's own code, run in a way that it may not support
        return frozenset({taken.asked})
    if not torch.allclose(found.float(), logits.float(), rtol=1e-2, atol=1e-2):
        return frozenset({taken.asked})
    return frozenset({taken.asked, Need.EMBEDDING, Need.HEAD})


def causal_of(model: nn.Module) -> Any:
    """The part of a model that has the head, without the adapters that may wrap it."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module.get_output_embeddings() is not None:
            return module
    return model


def body_of(causal: Any) -> Any:
    """The part that has the layers and the final norm; its output goes into the head."""
    decoder = causal.get_decoder()
    return causal.base_model if decoder is causal else decoder


class Head:
    """From states after the final norm to logits, by the model's own code, scaling included.

    The model runs with a part that returns its input in place of the layers.
    """

    def __init__(self, model: nn.Module) -> None:
        causal = causal_of(model)
        body = body_of(causal)
        path = next(name for name, module in causal.named_modules() if module is body)
        self._model = _with(causal, path.split("."), _Body())

    @torch.inference_mode()
    def __call__(self, states: Tensor) -> Tensor:
        """The logits `[n, V]` of states `[n, hidden]`."""
        logits: Tensor = self._model(inputs_embeds=states[None], use_cache=False).logits[0]
        return logits


def _with(module: nn.Module, path: Sequence[str], part: nn.Module) -> nn.Module:
    """A copy of a module with another part at a path inside; all other parts are shared."""
    if not path:
        return part
    changed = copy.copy(module)
    inner = changed._modules[path[0]]
    assert inner is not None
    changed._modules = {**changed._modules, path[0]: _with(inner, path[1:], part)}
    return changed


class _Body(nn.Module):
    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        """Return the input, in place of the layers."""
        return _Output((inputs_embeds,))


class _Output(tuple[Tensor, ...]):
    """The output of a base model that holds only states, whatever its class."""

    @property
    def last_hidden_state(self) -> Tensor:
        """`[1, n, hidden]`."""
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None
