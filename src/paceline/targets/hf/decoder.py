"""A decoder over a Hugging Face causal language model that the user already has.

The model's own code computes everything but attention: a shadow of it (`shadow.py`) runs with
Paceline's attention function (`interface.py`), which keeps keys and values in Paceline's caches.
No cache and no mask of transformers is used, and the model itself is not changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from paceline.core.hidden import Hidden
from paceline.core.target import Need, TargetInfo
from paceline.core.view import TargetView
from paceline.errors import InvalidInput, PacelineError, UnsupportedModel
from paceline.targets.attention import Pass
from paceline.targets.cached import CachedTarget
from paceline.targets.decoder import Output, mask_token_of
from paceline.targets.hf.fingerprint import Fingerprint, fingerprint, foreign_code
from paceline.targets.hf.hidden import Head, Taps, causal_of, layers_of, offer
from paceline.targets.hf.interface import RUN, TRACE, Running, Tracing, attending, set_attention
from paceline.targets.hf.probe import LEAK, TOLERANCE, distance, probe_target, probe_tokens
from paceline.targets.hf.products import share_products
from paceline.targets.hf.refusals import differs, leaks, not_numbers
from paceline.targets.hf.rounding import can_be_float32, in_float32, row_noise
from paceline.targets.hf.shadow import shadow_of
from paceline.targets.slot import Slot
from paceline.targets.state.kv import KeyValueCache


class HFDecoder:
    """A `targets.decoder.Decoder` over a causal language model of transformers.

    The model is left as it is: configuration, modules, weights, mode and gradients. Its weights
    are shared, so they take no more memory and changes of them are seen; changes of its modules
    after this call are not. Several threads may use one decoder.

    Models are refused by trying them (see `probe.py`), not by their names. `info.max_length` is
    the model's context, or less: where its attention changes with the length (chunks, rotary
    frequencies for long contexts), the length up to which it does not.

    Args:
        model: a `PreTrainedModel` that gives logits, in float32, bfloat16 or float16, with or
            without adapters, compiled or not, on one or more devices.
        probe: compare with the model's own logits. This is done once for a model and costs four
            short passes, or more if rounding hides the result; without it, two passes of two rows
            remain. A model with hooks or replaced functions is compared each time, because their
            behaviour may have changed.

    Raises:
        InvalidInput: not a model of transformers.
        UnsupportedModel: it cannot be decoded exactly; the message says why.
        ModelError: its logits are NaN or infinite.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=32)
        >>> config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
        >>> HFDecoder(LlamaForCausalLM(config)).info.vocab_size
        64
    """

    def __init__(self, model: nn.Module, *, probe: bool = True) -> None:
        config = getattr(model, "config", None)
        if not isinstance(config, PreTrainedConfig):
            raise InvalidInput(
                f"expected a model of transformers; got {type(model).__name__}. Load one with "
                "AutoModelForCausalLM.from_pretrained"
            )
        self._name = config.name_or_path or type(model).__name__
        if config.is_encoder_decoder:
            raise UnsupportedModel(
                f"{self._name} is an encoder-decoder model; these are not yet supported. "
                "Use a decoder-only model"
            )
        self._model: Any = shadow_of(model)
        self._accepts = _accepted(self._model.forward)
        self._always = {
            name: value
            for name, value in (("use_cache", False), ("return_dict", True))
            if self._accepts(name)
        }
        mark, known = fingerprint(model), _KNOWN.get(model, _UNKNOWN)
        if mark is None or known.mark != mark:
            known = _UNKNOWN
        must_probe = probe and not known.probed
        self._vocab_size: int = config.get_text_config(decoder=True).vocab_size
        tokens = probe_tokens(self._vocab_size, _start_token(config))
        one = probe_tokens(self._vocab_size)[0]
        with self._foreign_code(), torch.inference_mode():
            self.device = _device_of(self._model)
            truth = self._plain(tokens) if must_probe else None
            self._layout = known.layout or self._trace([[one[0], one[1]], [one[2], one[1]]])
        set_attention(self._model, RUN)
        share_products(self._model)
        limits = [n for n in (_context(config), self._layout.limit) if n is not None]
        self._taps = None if self._layout.layers is None else Taps(self._model, self._layout.layers)
        self._head = Head(self._model) if Need.HEAD in self._layout.gives else None
        self.info = TargetInfo(
            self._name,
            self._layout.vocab_size,
            min(limits, default=None),
            gives=self._layout.gives,
            num_weights=_layer_weights(self._model),
            hidden_size=_hidden_size(config),
            mask_token=mask_token_of(config),
        )
        if truth is not None:
            with self._foreign_code():
                self._probe(model, tokens, truth)
        if mark is not None:
            _KNOWN[model] = _Known(mark, self._layout, must_probe or known.probed)

    def is_current(self, model: nn.Module) -> bool:
        """Whether weights and buffers are still those of `model`, whose modules are unchanged."""
        ours, theirs = list(self._model.parameters()), list(model.parameters())
        if len(ours) != len(theirs) or any(a is not b for a, b in zip(ours, theirs, strict=True)):
            return False
        pairs = zip(self._model.buffers(), model.buffers(), strict=True)
        return all(a is b or torch.equal(a, b) for a, b in pairs)

    @property
    def num_bytes(self) -> int:
        """See `targets.decoder.Decoder.num_bytes`."""
        return sum(weight.nbytes for weight in self._model.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """The number format that it computes in."""
        found: torch.dtype = self._model.get_input_embeddings().weight.dtype
        return found

    def state(self, capacity: int) -> KeyValueCache:
        """See `targets.decoder.Decoder.state`."""
        return KeyValueCache(capacity)

    def run(self, batch: Pass) -> Output:
        """See `targets.decoder.Decoder.run`."""
        layout, running = self._layout, Running(batch, self._layout.windows)
        keep = {"logits_to_keep": batch.scored} if layout.keeps_rows else {}
        hidden = None
        if batch.hidden is None or self._taps is None:
            logits = self._forward(running, batch.tokens, batch.positions, **keep)
        else:
            with self._taps.taking(batch.hidden) as taken:
                logits = self._forward(running, batch.tokens, batch.positions, **keep)
            hidden = taken.states(self.device)
        if running.calls != len(layout.windows):
            raise UnsupportedModel(
                f"{self._name} called attention {running.calls} times in a pass and "
                f"{len(layout.windows)} times before; Paceline takes models whose every pass goes "
                "through the same layers"
            )
        return Output(logits if layout.keeps_rows else logits[batch.scored], hidden)

    def text_head(self) -> None:
        """See `targets.decoder.Decoder.text_head`: the head is whole."""

    def view(self, info: TargetInfo, slot: Slot) -> TargetView:
        """See `targets.decoder.Decoder.view`."""
        if self._head is None:
            return TargetView(info)
        return TargetView(info, embed=self._embed, head=self._head)

    @torch.inference_mode()
    def _embed(self, tokens: Tensor) -> Tensor:
        """See `view.TargetView.embed`."""
        embedded: Tensor = self._model.get_input_embeddings()(tokens)
        return embedded

    def _plain(self, tokens: list[list[int]], model: Any = None) -> Tensor:
        """The logits of `model` (the shadow) with its own attention, if it still has it."""
        run = self._model if model is None else model
        output = run(torch.tensor(tokens, device=self.device), **self._always)
        return self._logits_of(output)

    def _probe(self, model: nn.Module, tokens: list[list[int]], truth: Tensor) -> None:
        """Compare with the model's own logits `truth`, and raise where they differ.

        A difference that rounding in a coarse number format may explain is checked again: in
        float32, or, if the weights cannot be cast, with the rounding noise of this model.
        """
        if not truth.isfinite().any(-1).all() or truth.isnan().any():
            raise not_numbers(self._name, model)
        target, where = CachedTarget(self), str(truth.dtype).removeprefix("torch.")
        found = probe_target(target, tokens, truth, TOLERANCE[truth.dtype])
        if found is not None and truth.dtype in (torch.bfloat16, torch.float16):
            plain = shadow_of(model)
            exact = self._float32(plain, tokens) if can_be_float32(plain) else None
            if exact is not None:
                with in_float32(self._model):
                    found = probe_target(target, tokens, exact, TOLERANCE[torch.float32])
                where = "float32"
            else:
                with torch.inference_mode():
                    noise = row_noise(plain, lambda: self._plain(tokens, plain), truth, distance)
                found = probe_target(target, tokens, truth, noise.clamp(TOLERANCE[truth.dtype]))
        if found is not None:
            raise differs(self._name, found, where)

    def _float32(self, model: nn.Module, tokens: list[list[int]]) -> Tensor | None:
        """The logits of `model` in float32; None if its code insists on another format."""
        try:
            with in_float32(model), torch.inference_mode():
                logits = self._plain(tokens, model)
        except (RuntimeError, TypeError):
            return None
        return logits if logits.dtype is torch.float32 else None

    def _trace(self, tokens: list[list[int]]) -> _Layout:
        """Learn how each layer attends, and what the model gives.

        While attention returns zeros, a token cannot change the logits of the next one, unless
        layers of another kind pass information on.
        """
        set_attention(self._model, TRACE)
        rows = torch.arange(2, device=self.device)
        keep = {"logits_to_keep": rows[1:]} if self._accepts("logits_to_keep") else {}
        found = []
        layers: str | None = None
        taps, taken = None, None
        for pair in tokens:
            tracing, cause = Tracing(self._name), None
            try:
                with ExitStack() as stack:
                    if taps is not None:
                        taken = stack.enter_context(taps.taking(Hidden.all(taps.num_layers)))
                    logits = self._forward(
                        tracing, torch.tensor(pair, device=self.device), rows, **keep
                    )
            except (AttributeError, TypeError) as error:
                # The model's own attention code tries to compute with the placeholder for a mask.
                if tracing.windows:
                    raise
                cause = error
            if not tracing.windows:
                why = foreign_code(self._model) or (
                    "recurrent layers, sparse attention, or its own attention code"
                )
                raise UnsupportedModel(
                    f"{self._name} does not compute attention through the attention interface of "
                    f"transformers ({why}), so Paceline cannot keep its keys and values"
                ) from cause
            found.append(logits[-1])
            if taps is None and (layers := layers_of(self._model, tracing.attended)):
                taps = Taps(self._model, layers)
        if any(row.isnan().any() for row in found):
            raise not_numbers(self._name, self._model)
        if not distance(*found) <= LEAK[logits.dtype]:
            raise leaks(self._name, coupled=self._coupled(tokens, rows))
        keeps_rows = len(logits) < len(rows)
        if taps is not None:
            taps.remove()
        gives = frozenset() if taken is None else offer(self._model, taken, logits)
        return _Layout(
            tuple(tracing.windows),
            tracing.limit,
            logits.shape[-1],
            keeps_rows,
            layers if gives else None,
            gives,
        )

    def _coupled(self, tokens: list[list[int]], rows: Tensor) -> bool:
        """Whether tokens change the logits of earlier ones too, which no cached state can do."""
        one, other = tokens
        first, again, changed = (
            self._forward(Tracing(self._name), torch.tensor(pair[::-1], device=self.device), rows)[
                0
            ]
            for pair in (one, one, other)
        )
        # Logits that vary from pass to pass by themselves prove nothing about the other token.
        leak = LEAK[first.dtype]
        return distance(first, again) <= leak < distance(first, changed)

    def _forward(
        self, state: Tracing | Running, tokens: Tensor, positions: Tensor, **options: Any
    ) -> Tensor:
        """The logits `[rows, V]` of one pass, its attention done by `state`."""
        if self._accepts("position_ids"):
            options["position_ids"] = positions[None]
        with attending(state):
            output = self._model(tokens[None], **options, **self._always)
        return self._logits_of(output)[0]

    def _logits_of(self, output: Any) -> Tensor:
        logits = getattr(output, "logits", None)
        if logits is None or logits.dim() != 3 or logits.shape[-1] < self._vocab_size:
            raise UnsupportedModel(
                f"{self._name} does not give each token a row of {self._vocab_size} logits (it has "
                "no language-model head, or a different one); load it with AutoModelForCausalLM"
            )
        return logits

    @contextmanager
    def _foreign_code(self) -> Iterator[None]:
        """Turn an error that the model's code raises on plain input into `UnsupportedModel`."""
        try:
            yield
        except (PacelineError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise UnsupportedModel(
                f"{self._name} cannot be decoded with Paceline: its code raises "
                f"{type(error).__name__}: {error}"
            ) from error


class _Layout(NamedTuple):
    """What tracing learns of a model.

    `windows` holds one window per attention call, in order; `limit` is the length up to which
    chunks make no difference; `keeps_rows` says that the model can compute the logits of chosen
    rows; `layers` is the name of the list of decoder layers, and `gives` is what a drafter can get.
    """

    windows: tuple[int | None, ...]
    limit: int | None
    vocab_size: int
    keeps_rows: bool
    layers: str | None
    gives: frozenset[Need | Hidden]


class _Known(NamedTuple):
    """A layout, and the fingerprint of the model that was traced."""

    mark: Fingerprint
    layout: _Layout | None
    probed: bool


_UNKNOWN = _Known((), None, False)
_KNOWN: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()
"""The models seen so far, so that each is traced and probed once. The shadow is made anew each
time, because it has to have the current hooks and adapters."""


def _layer_weights(model: Any) -> int:
    """The number of weights without the embedding and the head, which prompt tokens skip."""
    outside = [model.get_input_embeddings(), causal_of(model).get_output_embeddings()]
    skipped = {id(weight) for part in outside if part is not None for weight in part.parameters()}
    return sum(weight.numel() for weight in model.parameters() if id(weight) not in skipped)


def _hidden_size(config: PreTrainedConfig) -> int:
    """The width of the hidden states; 0 where the model does not name it."""
    size = getattr(config.get_text_config(decoder=True), "hidden_size", None)
    return size if isinstance(size, int) else 0


def _start_token(config: PreTrainedConfig) -> int | None:
    """The token that texts begin with; None if the model names none."""
    token = getattr(config.get_text_config(decoder=True), "bos_token_id", None)
    return token if isinstance(token, int) else None


def _device_of(model: Any) -> torch.device:
    """The device that the model takes its tokens on."""
    device: torch.device = model.get_input_embeddings().weight.device
    return device


def _accepted(forward: Callable[..., Any]) -> Callable[[str], bool]:
    """A function that says whether `forward` takes an argument of a given name."""
    parameters = inspect.signature(forward).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return lambda name: takes_all or name in parameters


def _context(config: PreTrainedConfig) -> int | None:
    """The longest sequence, or the length from which rotary frequencies would change."""
    text = config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
    limits = [getattr(text, name, None) for name in names]
    rope = getattr(text, "rope_parameters", None) or {}
    # A model with layers of several kinds has one set of parameters per kind.
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    limits += [
        kind["original_max_position_embeddings"]
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    return min((n for n in limits if isinstance(n, int) and n > 0), default=None)
