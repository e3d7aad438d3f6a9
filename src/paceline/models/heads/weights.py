"""The weights of a head that has layers, as products, norms, layers and a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paceline.drafting.heads.vocabulary import check_token_ids
from paceline.errors import InvalidInput, ModelError, UnsupportedModel
from paceline.kernels.linear import Linear
from paceline.kernels.packing import make_linear
from paceline.models.heads.files import HeadFiles
from paceline.models.heads.format import HeadOptions, check_target, kept_outputs
from paceline.models.reasons import one_line
from paceline.targets.dense.architecture import Architecture, unsupported
from paceline.targets.dense.layer import Layer, LayerMath
from paceline.targets.dense.loading import prepare_kernels
from paceline.targets.dense.weights import WeightReader, packed
from paceline.targets.heads.network import Vocabulary


def target_head_is_whole(name: str) -> InvalidInput:
    """The error for a head that is to be cut and has no output rows."""
    return InvalidInput(
        f"{name} uses the target's own output head, which cannot be cut for it; leave "
        "draft_head_tokens out"
    )


_MOST = {"num_hidden_layers": 1000, "head_dim": 65536}
"""Settings by which things are made before any weight is looked at; more would fill the memory."""

Rename = Callable[[str], str | None]


def same(name: str) -> str:
    """For files that have the names under which the builder knows the tensors."""
    return name


def read_config(given: Any, name: str) -> Any:
    """The `transformers` configuration of a head's layers.

    Raises:
        ModelError: it is none.
        UnsupportedModel: layers of a kind that transformers does not know.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    if not isinstance(given, Mapping) or not isinstance(given.get("model_type"), str):
        raise ModelError(
            f"{name}: its configuration does not describe the layers: expected the settings of a "
            f"model with a model_type, as of a Llama; it is {given!r:.80}"
        )
    settings = {key: value for key, value in given.items() if key != "model_type"}
    for setting, most in _MOST.items():
        found = settings.get(setting)
        if found is None:
            continue
        if isinstance(found, bool) or not isinstance(found, int) or not 0 < found <= most:
            raise ModelError(
                f"{name}: {setting} must be a whole number from 1 to {most:,}; it is {found!r:.40}"
            )
    try:
        return AutoConfig.for_model(given["model_type"], **settings)
    except (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        kind = given["model_type"]
        raise UnsupportedModel(
            f"{name}: transformers cannot read the configuration of its layers, of kind {kind!r} "
            f"({one_line(error)})"
        ) from error


def layer_config(given: Any, name: str) -> Any:
    """The configuration of a head's layers, which the lean decoder knows.

    Raises:
        ModelError: it is none.
        UnsupportedModel: layers of a kind that is not known here.
    """
    config = read_config(given, name)
    if reason := unsupported(config):
        raise UnsupportedModel(f"{name}: its layers are of a kind that is not known here: {reason}")
    config.name_or_path = name
    return config


def layer_numbers(given: Any, name: str, shift: int = 0) -> tuple[int, ...] | None:
    """The numbers of layers in a configuration, plus `shift`; None where it names none.

    Raises:
        ModelError: they are no different whole numbers from 0.
    """
    if given is None:
        return None
    is_list = isinstance(given, list | tuple) and len(given) > 0
    if not is_list or not all(isinstance(n, int) and not isinstance(n, bool) for n in given):
        raise ModelError(f"{name}: the layers that it reads must be whole numbers; {given!r:.80}")
    numbers = tuple(sorted(number + shift for number in given))
    if numbers[0] < 0 or len(set(numbers)) < len(numbers):
        raise ModelError(f"{name}: the layers that it reads must differ, from 0 on; {given!r:.80}")
    return numbers


class HeadWeights:
    """The weights of a head by the names that its builder knows them under.

    Args:
        files: the head on disk.
        rename: from the name of a tensor of the files to that under which the builder knows it;
            None for tensors that are not the head's.
        config: the configuration of its layers, of which the vocabulary is the target's.
        options: how it is loaded.
    """

    def __init__(self, files: HeadFiles, rename: Rename, config: Any, options: HeadOptions) -> None:
        self.shape = Architecture.of(config)
        self._files, self._options, self._config = files, options, config
        self._weights = _Named(files, rename, options.device)
        self.dtype = options.dtype_for(self._weights["fc.weight"])
        self._reader = WeightReader(
            self._weights,
            self.shape,
            config.intermediate_size,
            self.dtype,
            partial(packed, options.storage),
        )

    @property
    def name(self) -> str:
        """For messages and reports."""
        return self._files.name

    def check_target(self, width: int, num_layers: int | None = None) -> None:
        """Refuse a target of other sizes; see `format.check_target`."""
        check_target(
            self._files,
            self._options.target,
            hidden_size=width,
            vocab_size=self._config.vocab_size,
            num_layers=num_layers,
        )

    def has(self, name: str) -> bool:
        """Whether there is such a weight."""
        return name in self._weights

    def vector(self, name: str, size: int) -> Tensor:
        """A weight of this many numbers."""
        return self._reader.vector(name, size)

    def check_mask(self, token: int) -> None:
        """Refuse a token for "not known yet" that has no embedding.

        Raises:
            ModelError: it is not among the head's tokens.
        """
        if not 0 <= token < self.vocab_size:
            raise ModelError(
                f"{self.name}: its mask_token_id is {token}, and its tokens are 0 to "
                f"{self.vocab_size - 1}; the config.json belongs to another head"
            )

    def matrix(self, name: str, rows: int, width: int) -> Tensor:
        """A weight whose rows are looked up."""
        return self._weights.take(name, (rows, width)).to(self.dtype)

    @property
    def is_cut(self) -> bool:
        """Whether the head is to be cut to some of its tokens."""
        return self._options.token_ids is not None

    @property
    def vocab_size(self) -> int:
        """The number of the target's tokens that the head was made for."""
        return int(self._config.vocab_size)

    def product(self, name: str, outputs: int, inputs: int) -> Linear:
        """A product, with its bias where there is one."""
        return self._reader.fused([name], outputs, inputs)

    def layer(self, at: str, *, inputs: int | None = None, input_norm: bool = True) -> Layer:
        """See `WeightReader.layer`."""
        return self._reader.layer(at, inputs=inputs, input_norm=input_norm)

    def math(self, *layers: Layer) -> LayerMath:
        """What the layers compute."""
        prepare_kernels(self.shape, self.dtype)
        least_rows = max(layer.qkv.least_rows for layer in layers)
        return LayerMath(self.shape, self.dtype, least_rows, self._options.device)

    def vocabulary(self) -> Vocabulary:
        """Embedding and output rows, where the files have them, and the tokens of the latter.

        Weights: `embed_tokens.weight`, `lm_head.weight`, `d2t` (what is added to the number of an
        output to give the target's id) and `t2d` (which ids have an output).

        Raises:
            ModelError: they contradict one another.
            InvalidInput: another vocabulary than the target's.
        """
        size, hidden, weights = self._config.vocab_size, self.shape.hidden_size, self._weights
        embedding = output = ids = None
        if "embed_tokens.weight" in weights:
            embedding = weights.take("embed_tokens.weight", (size, hidden))
        if "d2t" in weights:
            offsets = weights.take("d2t", (None,)).to(torch.int64)
            places = torch.arange(len(offsets)) + offsets
            ids = check_token_ids(self.name, places, size)
            if bool((ids[1:] < ids[:-1]).any()):
                raise ModelError(
                    f"{self.name}: the token ids of its outputs (d2t) do not rise; the file is "
                    "damaged"
                )
        if "t2d" in weights:
            known = weights.take("t2d", (size,)).to(torch.bool)
            found = torch.arange(size) if ids is None else ids
            if not torch.equal(known.nonzero().flatten(), found):
                raise ModelError(
                    f"{self.name}: its d2t and t2d name different tokens; the files do not belong "
                    "together"
                )
        if "lm_head.weight" in weights:
            rows = weights.take("lm_head.weight", (size if ids is None else len(ids), hidden))
            kept = kept_outputs(self._files, ids, self._options)
            output, ids = (
                make_linear(kept.of(rows).to(self.dtype), None, self._options.storage),
                kept.token_ids,
            )
        elif self._options.token_ids is not None:
            raise target_head_is_whole(self.name)
        elif (target := self._options.target) and target.hidden_size not in (0, hidden):
            raise InvalidInput(
                f"{self.name} has no output rows of its own, and states of width {hidden}; those "
                f"of {target.name} take {target.hidden_size}. It was made for another target"
            )
        return Vocabulary(embedding, output, ids)

    def finish(self, kind: str) -> None:
        """Refuse weights that were not read."""
        self._files.refuse_leftovers(kind)


class _Named(Mapping[str, Tensor]):
    """The tensors of files by other names, on a device; each is taken when it is asked for."""

    def __init__(self, files: HeadFiles, rename: Rename, device: torch.device | str) -> None:
        self._files, self._device = files, device
        renamed = {key: rename(key) for key in files.keys}
        self._names = {name: key for key, name in renamed.items() if name is not None}
        files.leave(*(key for key, name in renamed.items() if name is None))

    def take(self, name: str, shape: tuple[int | None, ...] | None = None) -> Tensor:
        """See `HeadFiles.take`."""
        key = self._names.get(name, name)
        return self._files.take(key, shape, why="its configuration").to(self._device)

    def __getitem__(self, name: str) -> Tensor:
        return self.take(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
