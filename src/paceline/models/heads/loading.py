"""From a file or folder to a head: the formats that are known, and which of them it is.

A new format is one file beside this one, which defines a `HeadFormat`, and a line in `FORMATS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline.core.target import TargetInfo
from paceline.drafting.heads.contract import Head
from paceline.errors import InvalidInput, ModelError, PacelineError
from paceline.kernels.packing import Storage
from paceline.models.heads import (
    blockwise,
    dflash,
    eagle,
    hydra,
    medusa,
    mlp_speculator,
    mtp,
    redrafter,
    speculators,
)
from paceline.models.heads.files import HeadFiles, open_files
from paceline.models.heads.format import HeadFormat, HeadOptions
from paceline.models.loading import check_storage
from paceline.models.reasons import one_line

FORMATS: tuple[HeadFormat, ...] = (
    medusa.FORMAT,
    blockwise.FORMAT,
    hydra.FORMAT,
    mlp_speculator.FORMAT,
    redrafter.FORMAT,
    speculators.FORMAT,
    dflash.FORMAT,
    eagle.FORMAT_3,
    eagle.FORMAT_1,
    mtp.FORMAT,
)
"""The formats, in the order in which they are tried: the first that recognises a file reads it."""

_SURPRISES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What settings of a kind that no reader foresees may lead to."""

DIALECTS = ("eagle", "vllm", "specforge", "speculators")
"""Who may have written a file; see `load_head`."""


def load_head(
    source: str | Path,
    target: TargetInfo | None = None,
    *,
    dtype: torch.dtype | None = None,
    storage: Storage = "auto",
    device: torch.device | str = "cpu",
    dialect: str | None = None,
    token_ids: Tensor | None = None,
    allow_pickle: bool = False,
) -> Head:
    """Load a draft head, whatever its format.

    Args:
        source: the folder or file of a head, or its hub name; `PATH@DIALECT` names its dialect.
        target: the info of the model that it is to draft for (`model.target.info`); its sizes are
            compared with the head's.
        dtype: of its weights and activations; None keeps that of the file, but float16 becomes what
            this machine multiplies.
        storage: how its products are stored: "auto", "plain", "packed", "int8" or "int4". Drafts
            are verified, so a head may be coarse.
        device: where it runs; best where the target's states are.
        dialect: who wrote a file whose settings mean different things to different programs:
            "eagle", "vllm", "specforge" or "speculators". A file that needs it is refused without.
        token_ids: propose these tokens only: the output rows of the others are left out. A head
            that has some of them only is cut to those that it has.
        allow_pickle: accept pickled weights.

    Returns:
        The head. `head.drafter` names the drafter that drafts with it.

    Raises:
        InvalidInput: there is no such file, a switch is needed, or it was made for another target.
        ModelError: it is damaged or incomplete, or of no known format.

    Example:
        >>> head = load_head("heads/medusa", model.target.info)  # doctest: +SKIP
        >>> head.drafter  # doctest: +SKIP
        'medusa'
    """
    check_storage(storage)
    return open_head(source, dialect=dialect, allow_pickle=allow_pickle).load(
        target, dtype=dtype, storage=storage, device=device, token_ids=token_ids
    )


@dataclass(frozen=True, slots=True, eq=False)
class HeadFile:
    """A head on disk, of a known kind; its weights are not read yet. Make it with `open_head`.

    Args:
        files: its files, open.
        format: what reads them.
        dialect: see `load_head`.
    """

    files: HeadFiles
    format: HeadFormat
    dialect: str | None

    @property
    def name(self) -> str:
        """See `Head.name`."""
        return self.files.name

    @property
    def drafter(self) -> str:
        """See `Head.drafter`."""
        return self.format.drafter(self.files)

    def load(
        self,
        target: TargetInfo | None = None,
        *,
        dtype: torch.dtype | None = None,
        storage: Storage = "auto",
        device: torch.device | str = "cpu",
        token_ids: Tensor | None = None,
    ) -> Head:
        """The head; see `load_head`. Can be called again, for another target or in another form."""
        options = HeadOptions(
            target=target,
            dtype=dtype,
            storage=storage,
            device=device,
            dialect=self.dialect,
            token_ids=token_ids,
        )
        try:
            return self.format.read(self.files.again(), options)
        except PacelineError as error:
            error.add_note(f"read as a {self.format.name} head")
            raise
        except _SURPRISES as error:
            raise ModelError(
                f"{self.files.path} cannot be read as a {self.format.name} head: its config.json "
                f"says something that no such head has ({one_line(error):.200}); get the files "
                "again, or those of another version"
            ) from error


def open_head(
    source: str | Path, *, dialect: str | None = None, allow_pickle: bool = False
) -> HeadFile:
    """Open the files of a head and find out what kind it is; see `load_head`.

    Raises:
        InvalidInput: there is no such file, or a switch is needed.
        ModelError: it is damaged, or of no known format.
    """
    source, dialect = _named_dialect(source, dialect)
    files = open_files(source, allow_pickle=allow_pickle)
    found = next((one for one in FORMATS if one.recognises(files)), None)
    if found is None:
        kinds = ", ".join(one.name for one in FORMATS)
        keys = ", ".join(sorted(files.keys)[:3])
        raise ModelError(
            f"{files.path} is of no format of heads that Paceline reads ({kinds}); its tensors "
            f"are {keys}, ..."
        )
    if dialect is not None and not found.has_dialects:
        raise InvalidInput(
            f"{files.path} is a file of the format {found.name}, which has no dialects; leave "
            f"{dialect!r} out"
        )
    return HeadFile(files, found, dialect)


def _named_dialect(source: str | Path, dialect: str | None) -> tuple[str | Path, str | None]:
    """The source and the dialect that stands after it, as in "heads/eagle3@specforge"."""
    path, at, named = str(source).rpartition("@")
    if not at or named not in DIALECTS or Path(source).exists():
        return source, dialect
    if dialect not in (None, named):
        raise InvalidInput(f"{source} names another dialect than {dialect!r}; leave one out")
    return path, named
