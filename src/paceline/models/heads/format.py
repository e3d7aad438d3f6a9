"""What a reader of heads is, and what it is told: one `HeadFormat` a format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.target import TargetInfo
from paceline.drafting.heads.contract import Head
from paceline.errors import InvalidInput
from paceline.kernels.linear import Linear, pad_rows
from paceline.kernels.packing import Storage, make_linear
from paceline.models.finding import native_dtype
from paceline.models.heads.files import HeadFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOptions:
    """How a head is to be loaded.

    Args:
        target: what is known of the model that it drafts for; None skips the comparison.
        dtype: of its activations and weights; None keeps that of the file, and takes what this
            machine multiplies in place of float16.
        storage: how its products are stored, see `kernels.packing.Storage`.
        device: where it runs.
        dialect: which numbering of layers the file has, for formats in which it cannot be seen;
            None leaves it to the file.
        token_ids: the only tokens that the head is to propose; None keeps all. See `kept_outputs`.
    """

    target: TargetInfo | None = None
    dtype: torch.dtype | None = None
    storage: Storage = "auto"
    device: torch.device | str = "cpu"
    dialect: str | None = None
    token_ids: Tensor | None = None

    def dtype_for(self, weight: Tensor) -> torch.dtype:
        """The dtype of a head whose file has this weight."""
        if self.dtype is not None:
            return self.dtype
        is_known = weight.dtype in (torch.float32, torch.float64, torch.bfloat16)
        return weight.dtype if is_known else native_dtype()


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """One format of heads.

    Args:
        name: for messages, as in "Medusa".
        drafter: from files of this format to the name of the drafter that drafts with the head.
        recognises: whether files are of this format: by keys of tensors and settings alone.
        read: makes the head.
        has_dialects: whether `HeadOptions.dialect` may mean something for a file of this format.

    `read` takes every tensor of the files, compares sizes with the target by `check_target`, and
    raises `ModelError` for damaged files and `InvalidInput` for a head of another target.
    """

    name: str
    drafter: Callable[[HeadFiles], str]
    recognises: Callable[[HeadFiles], bool]
    read: Callable[[HeadFiles, HeadOptions], Head]
    has_dialects: bool = False


def always(drafter: str) -> Callable[[HeadFiles], str]:
    """For formats all of whose heads have one drafter; see `HeadFormat.drafter`."""
    return lambda files: drafter


def check_target(
    files: HeadFiles,
    target: TargetInfo | None,
    *,
    hidden_size: int,
    vocab_size: int | None = None,
    num_layers: int | None = None,
) -> None:
    """Refuse a head that was made for a target of other sizes.

    Args:
        files: of the head.
        target: the target at hand; None is not compared.
        hidden_size: of the target that the head was made for.
        vocab_size: the same; None if the file does not say.
        num_layers: the least number of layers that it must have; None if the head reads none.

    Raises:
        InvalidInput: names every size that differs.
    """
    if target is None:
        return
    differing = [
        f"{what} {expected:,} (the target has {found:,})"
        for what, expected, found, fits in (
            ("hidden size", hidden_size, target.hidden_size, hidden_size == target.hidden_size),
            ("vocabulary", vocab_size, target.vocab_size, vocab_size == target.vocab_size),
            (
                "layers, at least",
                num_layers,
                target.num_layers,
                num_layers is not None and num_layers <= target.num_layers,
            ),
        )
        if expected is not None and found and not fits
    ]
    if differing:
        raise InvalidInput(
            f"{files.path} is a head for another target than {target.name}: "
            f"{', '.join(differing)}; give a head that was trained for {target.name}"
        )


class Kept(NamedTuple):
    """The outputs of a head that are kept: their places, and the target's ids of them."""

    places: Tensor | None
    token_ids: Tensor | None

    def of(self, rows: Tensor) -> Tensor:
        """The rows of a weight or bias that are kept."""
        return rows if self.places is None else rows[self.places]


def kept_outputs(files: HeadFiles, token_ids: Tensor | None, options: HeadOptions) -> Kept:
    """Which outputs of a head are kept under `HeadOptions.token_ids`.

    Args:
        files: of the head.
        token_ids: the target's id of each output, ascending; None if output i is token i.
        options: of the load.

    Raises:
        InvalidInput: none is left.
    """
    wanted = options.token_ids
    if wanted is None:
        return Kept(None, token_ids)
    wanted = wanted.unique()  # type: ignore[no-untyped-call]
    if token_ids is None:
        return Kept(wanted, wanted)
    places = torch.isin(token_ids, wanted).nonzero().flatten()
    if not len(places):
        raise InvalidInput(
            f"{files.path} proposes {len(token_ids):,} tokens, none of which is among the "
            f"{len(wanted):,} that it is to be cut to; leave draft_head_tokens out, or give more"
        )
    return Kept(places, token_ids[places])


class Product:
    """A linear layer of a head: x W^T + b for `[n, in]`, in any storage.

    Args:
        weight: `[out, in]`.
        bias: `[out]`, or None.
        options: dtype, storage and device.
        dtype: of the head.

    Example:
        >>> twice = Product(2 * torch.eye(2), None, HeadOptions(), torch.float32)
        >>> twice(torch.ones(1, 2))
        tensor([[2., 2.]])
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, options: HeadOptions, dtype: torch.dtype
    ) -> None:
        self.out_features, self.in_features = weight.shape
        with torch.inference_mode():
            own = weight.to(options.device, dtype)
            term = None if bias is None else bias.to(options.device, dtype)
            self._linear: Linear = make_linear(own, term, options.storage)

    @property
    def num_bytes(self) -> int:
        """The memory that it reads."""
        return self._linear.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self._linear(pad_rows(x, self._linear.least_rows))[: len(x)]
