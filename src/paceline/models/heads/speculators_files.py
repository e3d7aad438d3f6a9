"""Heads of the speculators format as files: MTP modules and DFlash heads that were trained here.

EAGLE-3 heads are written by `speculators.save_eagle3`. What is common to all is `write_head`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.models.heads.files import write_files

VERSION = "0.9.0"
"""The version of the format that is written."""


def write_head(
    folder: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    layers: Any,
    *,
    verifier: str,
    architectures: list[str],
    num_draft_tokens: int,
    own: Mapping[str, Any],
) -> list[Path]:
    """Write `model.safetensors` and `config.json` of a head.

    Args:
        folder: made if it is not there.
        kind: `speculators_model_type`.
        tensors: by the names of the format.
        layers: the `transformers` configuration of the draft's layers.
        verifier: the name or folder of the target.
        architectures: the target's, as in its config.json.
        num_draft_tokens: the draft length that the file proposes.
        own: the settings of this kind.

    Returns:
        The files.

    Raises:
        InvalidInput: the folder cannot be written to.
    """
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": num_draft_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    config = {
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier, "architectures": architectures},
        },
        "transformer_layer_config": plain(layers),
        "tie_word_embeddings": False,
        **own,
    }
    return write_files(folder, "model.safetensors", tensors, config)


def plain(config: Any) -> dict[str, Any]:
    """A configuration as JSON, with its kind."""
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    return {**found, "model_type": config.model_type}


def cut_vocabulary(token_ids: Tensor | None, vocab_size: int) -> dict[str, Tensor]:
    """`d2t` and `t2d` of a cut vocabulary; nothing where all tokens are there."""
    if token_ids is None or len(token_ids) == vocab_size:
        return {}
    ids = token_ids.to(torch.int64)
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known}


def save_mtp(
    folder: Path,
    layers: Any,
    weights: Mapping[str, Tensor],
    *,
    verifier: str,
    architectures: list[str],
    num_draft_tokens: int,
) -> list[Path]:
    """Write an MTP module, which shares the target's embedding and output head.

    Args:
        weights: by the names of the format, `mtp_layers.0.*`.

    For the others see `write_head`.
    """
    own = {"architectures": ["MTPSpeculator"], "num_speculative_steps": num_draft_tokens}
    return write_head(
        folder,
        "mtp",
        weights,
        layers,
        verifier=verifier,
        architectures=architectures,
        num_draft_tokens=num_draft_tokens,
        own=own,
    )


def save_dflash(
    folder: Path,
    layers: Any,
    weights: Mapping[str, Tensor],
    *,
    taps: tuple[int, ...],
    block_size: int,
    mask_token: int,
    verifier: str,
    architectures: list[str],
    token_ids: Tensor | None = None,
) -> list[Path]:
    """Write a DFlash head.

    Args:
        weights: by the names of the format, without those of the vocabulary; `lm_head.weight` where
            that is cut.
        taps: the target's layers that it reads, as in `core.hidden`.
        block_size: the rows of a block; it drafts one token less.
        mask_token: what stands for tokens that are not known yet.
        token_ids: `[Vh]`, the target's id of each output, rising; None for all tokens.

    For the others see `write_head`.
    """
    size = layers.vocab_size
    return write_head(
        folder,
        "dflash",
        {**weights, **cut_vocabulary(token_ids, size)},
        layers,
        verifier=verifier,
        architectures=architectures,
        num_draft_tokens=block_size - 1,
        own={
            "architectures": ["DFlashSpeculator"],
            "block_size": block_size,
            "aux_hidden_state_layer_ids": sorted(taps),
            "mask_token_id": mask_token,
            "draft_vocab_size": size if token_ids is None else len(token_ids),
            "sample_from_anchor": False,
        },
    )
