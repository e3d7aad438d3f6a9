"""`paceline audit`: the proof that speculation did not change the output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline import registry
from paceline.assembly import choose_drafter
from paceline.cli import audit_view, options, terminal, threads
from paceline.cli.inputs import drafter_settings
from paceline.errors import InvalidInput
from paceline.workload import read_items, select

if TYPE_CHECKING:
    from paceline.audit import NamedPrompt
    from paceline.workload import Item

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_NUM_DRAFT_TOKENS = 5
DEFAULT_MAX_TOKENS = 64
DEFAULT_SAMPLE_TOKENS = 8
DEFAULT_DETECT = 0.15
DEFAULT_POWER = 0.9
DEFAULT_FALSE_ALARM_RATE = 0.001

_WHAT, _HOW_MUCH = "What to audit", "How much"


def _option(*names: str, panel: str, about: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, help=about, **settings)


Prompts = Annotated[
    Path,
    _option(
        "--prompts",
        panel=_WHAT,
        metavar="FILE",
        about="Prompts: JSON lines with turns, prompt or messages, or plain text, one a line; - is "
        "standard input.",
    ),
]
Limit = Annotated[
    int | None,
    _option(
        "--limit",
        panel=_WHAT,
        metavar="N",
        min=1,
        about="So many of the prompts, the categories in turn; all where left out.",
    ),
]
MaxTokens = Annotated[
    int,
    _option(
        "--max-tokens",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="The longest greedy answer, in tokens.",
    ),
]
Samples = Annotated[
    int | None,
    _option(
        "--samples",
        "-n",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="Sampled answers to each prompt, on each side; left out, as many as --detect and "
        "--power ask for.",
    ),
]
Detect = Annotated[
    float,
    _option(
        "--detect",
        panel=_HOW_MUCH,
        metavar="X",
        about="The difference of two laws of a token that has to be seen, as total variation.",
    ),
]
Power = Annotated[
    float,
    _option("--power", panel=_HOW_MUCH, metavar="X", about="The probability of seeing it."),
]
FalseAlarmRate = Annotated[
    float,
    _option(
        "--false-alarm-rate",
        panel=_HOW_MUCH,
        metavar="X",
        about="That of the two-sample tests, all together.",
    ),
]
SampleTokens = Annotated[
    int,
    _option(
        "--sample-tokens",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="The longest sampled answer, in tokens.",
    ),
]
Seed = Annotated[
    int,
    _option("--seed", panel=_HOW_MUCH, metavar="N", min=0, about="Of everything that is drawn."),
]


def audit(
    prompts: Prompts,
    limit: Limit = None,
    model: options.Model = DEFAULT_MODEL,
    dtype: options.Dtype = "auto",
    storage: options.Storage = "auto",
    invariant: options.Invariant = False,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    drafter: options.Drafter = None,
    num_draft_tokens: options.NumDraftTokens = DEFAULT_NUM_DRAFT_TOKENS,
    verify: options.Verify = None,
    draft_model: options.DraftModel = None,
    draft_storage: options.DraftStorage = None,
    draft_head_tokens: options.DraftHeadTokens = None,
    drafter_option: options.DrafterOption = None,
    raw: options.Raw = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    samples: Samples = None,
    sample_tokens: SampleTokens = DEFAULT_SAMPLE_TOKENS,
    detect: Detect = DEFAULT_DETECT,
    power: Power = DEFAULT_POWER,
    false_alarm_rate: FalseAlarmRate = DEFAULT_FALSE_ALARM_RATE,
    seed: Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Prove that speculation did not change the output, or find where it did.

    The exit status is 0 for the verdicts pass and tie-limited, 1 for fault, 3 for inconclusive, and
    2 where the input cannot be used.
    """
    if draft_model is None and (draft_storage or draft_head_tokens):
        raise InvalidInput(
            "--draft-storage and --draft-head-tokens go with --draft-model; give one, or leave "
            "them out"
        )
    items = select(read_items(prompts), limit=limit)
    settings = drafter_settings((), {}, drafter_option or ())
    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }
    trust: dict[str, Any] = {
        "trust_remote_code": trust_remote_code,
        "allow_pickle": allow_pickle,
    }
    threads.give_way_where_busy()
    with terminal.progress(f"loading {model}") as tell:
        import paceline
        from paceline.audit import LocalSettings, SamplingSettings, audit_model
        from paceline.types import SamplingParams

        # Refuse what cannot work before a model is loaded, which takes seconds.
        SamplingParams(**sampling)
        if verify is not None:
            registry.find("verifier", verify)
        choose_drafter(drafter, settings, draft_model, option="--draft-model")
        sampled = SamplingSettings(
            samples, detect, power, false_alarm_rate, max_tokens=sample_tokens, seed=seed
        )
        sampled.num_samples(len(items))
        with terminal.transformers_is_quiet():
            target = paceline.load(
                model, dtype=dtype, storage=storage, invariant=invariant, progress=tell, **trust
            )
            draft = None
            if draft_model is not None:
                draft = paceline.load(
                    draft_model,
                    storage=draft_storage or "auto",
                    head_tokens=draft_head_tokens,
                    progress=tell,
                    **trust,
                )
    request: dict[str, Any] = {
        **sampling,
        "drafter": drafter,
        "drafter_options": settings,
        "num_draft_tokens": num_draft_tokens,
        "verify": verify,
    }
    if draft is not None:
        request["draft_model"] = draft
    chat = not raw and bool(getattr(target.tokenizer, "chat_template", None))
    with audit_view.progress() as tell_step:
        found = audit_model(
            target,
            [_named(item, chat=chat) for item in items],
            request,
            LocalSettings(max_tokens=max_tokens, seed=seed, sampling=sampled),
            progress=tell_step,
        )
    if as_json:
        terminal.print_json(found.to_json())
    else:
        audit_view.show(found)
    raise typer.Exit(found.verdict.exit_code)


def _named(item: Item, *, chat: bool) -> NamedPrompt:
    from paceline.audit import NamedPrompt

    return NamedPrompt(item.id, item.as_prompt(chat=chat))
