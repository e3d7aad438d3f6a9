"""The options of a call: their static types, and the one check of what came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from paceline.checks import token_id_set
from paceline.errors import InvalidInput, UnknownName
from paceline.generate.option_table import TABLE
from paceline.generate.settings import with_settings

if TYPE_CHECKING:
    from paceline.core.protocols import Controller, Drafter, Verifier
    from paceline.core.target import TargetInfo
    from paceline.generate.api import LanguageModel
    from paceline.generate.drafts import HeadTokens
    from paceline.kernels.packing import Storage
    from paceline.sampling.warp import Processor


class Options(TypedDict, total=False):
    """What `generate` and `stream` take, all by name; `option_table.TABLE` says what each means.

    Attributes:
        drafter: a registered name, or a drafter. Where left out "ngram", or with a draft model the
            tree of one path with leaves where draft lengths are left to "auto" and the target and
            the rule take trees, else "model". Several names, in a list or as in "ngram,model",
            take turns.
        drafter_options: settings of a drafter given by name.
        draft_model: for drafters that need one: a loaded model, one of `transformers`, or the name
            or path of one, which is loaded once, as cheap as pays on this machine.
        draft_storage, draft_head_tokens: how one given by name or path is loaded instead: see
            `load`; "all" leaves its head whole.
        settings: a file that `paceline recommend` wrote, or what is in one: how to draft, in place
            of the options that say it one by one.
        controller: a registered name, or a controller: how far to draft. Where left out "auto",
            which drafts as far as it pays, or with a number of draft tokens "fixed".
        controller_options: settings of a controller given by name.
        num_draft_tokens: the most draft tokens a round; "auto", as None, leaves it to the
            controller.
        verify: a registered rule, or a rule. Where left out the one that suits the drafter:
            "token", or for a drafter of trees the one that it names. Where draft lengths follow
            the clock, as with "auto", and a seed is given to sample with, it is "coupling", so
            that the same seed gives the same text.
        verify_options: settings of a rule given by name.
        tools: the tools that the model may call, for the chat template.
        chat_template_kwargs: values for the chat template, as in `{"enable_thinking": False}`.
        continue_final_message: continue the last message of a chat.
        max_tokens: the longest answer; 256 where left out, None goes on to the context's end.
        min_tokens: before this length the answer cannot end.
        stop: a text, or several, that end the answer and are not part of it; None is none.
        stop_token_ids: tokens that end the answer, besides the model's own.
        ignore_eos: go on when the model says that the answer ends.
        logprobs: report log-probabilities, and those of this many of the most probable tokens.
        processors: functions from token ids so far and logits to logits.
        draft_processors: those of them that may run on draft logits too, having no state.
        seed: the same seed, prompt and options give the same answer; None takes a fresh one. (Not
            where you name a rule that does not couple beside draft lengths that follow the clock.)
        temperature and the rest: see `core.sampling.SamplingParams`. A repetition penalty, top-k,
            top-p or min-p that is left out is that of the model's generation config, where it has
            one; `result.sampling` names what held.
    """

    drafter: str | Sequence[str] | Drafter | None
    drafter_options: Mapping[str, Any] | None
    draft_model: LanguageModel | str | Path | None
    draft_storage: Storage | None
    draft_head_tokens: HeadTokens
    settings: str | Path | Mapping[str, Any] | None
    controller: str | Controller | None
    controller_options: Mapping[str, Any] | None
    num_draft_tokens: int | Literal["auto"] | None
    verify: str | Verifier | None
    verify_options: Mapping[str, Any] | None
    tools: Sequence[Any] | None
    chat_template_kwargs: Mapping[str, Any] | None
    continue_final_message: bool
    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str] | None
    stop_token_ids: Iterable[int] | None
    ignore_eos: bool
    logprobs: int | None
    processors: Sequence[Processor]
    draft_processors: Sequence[Processor]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Iterable[int] | None
    banned_token_ids: Iterable[int]
    seed: int | None


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of the Python door, in the one form that the parts take.

    What was left out has its default.

    Raises:
        UnknownName: an option that there is not.
        InvalidInput: a value that cannot be used.

    Example:
        >>> checked({"stop": "END"})["stop"], checked({})["max_tokens"]
        (['END'], 256)
    """
    known = {name: option for name, option in TABLE.items() if "python" in option.doors}
    for name in given:
        if name not in known:
            raise UnknownName.among("option", name, known)
    given = with_settings(given)
    return {
        name: option.check(name, given.get(name, option.default)) for name, option in known.items()
    }


def stop_token_ids(given: Any, target: TargetInfo) -> frozenset[int]:
    """The tokens that end an answer, as the user named them; None is none."""
    ids = token_id_set("stop_token_ids", () if given is None else given)
    if outside := [token for token in ids if not 0 <= token < target.vocab_size]:
        raise InvalidInput(
            f"stop_token_ids take ids from 0 to {target.vocab_size - 1}; got {outside[0]}"
        )
    return ids
