"""`paceline audit`: the proof that speculation did not change the output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli import audit_options as own
from paceline.cli import audit_view, options, terminal
from paceline.cli.calls import DEFAULT_MODEL, load_for, print_written, settled, uses_chat
from paceline.cli.counting import steps
from paceline.errors import InvalidInput
from paceline.workbench.report.files import Outputs
from paceline.workbench.workload import read_items, select

if TYPE_CHECKING:
    from paceline.workbench.audit import Audit, LocalSettings, NamedPrompt, RemoteSettings
    from paceline.workbench.workload import Item

DEFAULT_TEMPERATURE = 1.0
DEFAULT_MAX_TOKENS = 64
DEFAULT_SAMPLE_TOKENS = 8
DEFAULT_DETECT = 0.15
DEFAULT_POWER = 0.9
DEFAULT_FALSE_ALARM_RATE = 0.001

_LOCAL = (*options.LOADED, *options.DRAFTED, "raw")
_REMOTE = (
    "baseline_url", "baseline_model", "api", "concurrency", "timeout", "retries", "api_key_env",
    "tie_tolerance",
)  # fmt: skip
_PLAIN = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Neutral sampling options; they are not sent to servers."""


@options.takes(
    *options.LOADED,
    *options.DRAFTED,
    *options.DISTRIBUTION,
    before="raw",
    temperature=DEFAULT_TEMPERATURE,
)
def audit(
    shared: dict[str, Any],
    ctx: typer.Context,
    prompts: own.Prompts,
    limit: own.Limit = None,
    model: own.Model = None,
    raw: options.Raw = False,
    url: own.Url = None,
    baseline_url: own.BaselineUrl = None,
    baseline_model: own.BaselineModel = None,
    api: own.Api = "completions",
    concurrency: own.Concurrency = 4,
    timeout: own.Timeout = 120.0,
    retries: own.Retries = 3,
    api_key_env: own.ApiKeyEnv = None,
    tie_tolerance: own.TieTolerance = None,
    max_tokens: own.MaxTokens = DEFAULT_MAX_TOKENS,
    samples: own.Samples = None,
    sample_tokens: own.SampleTokens = DEFAULT_SAMPLE_TOKENS,
    detect: own.Detect = DEFAULT_DETECT,
    power: own.Power = DEFAULT_POWER,
    false_alarm_rate: own.FalseAlarmRate = DEFAULT_FALSE_ALARM_RATE,
    seed: own.Seed = 0,
    html: own.Html = None,
    markdown: own.Markdown = None,
    as_json: options.AsJson = False,
) -> None:
    """Prove that speculation did not change the output, or find where it did.

    Without --url it audits Paceline. With --url and --baseline-url it compares a server that
    speculates with the same server without speculation.

    The exit status is 0 for the verdicts pass and tie-limited, 1 for fault, 3 for inconclusive, and
    2 for invalid input.
    """
    _check_sides(ctx, url, baseline_url)
    outputs = Outputs({"--html": html, "--markdown": markdown})
    items = select(read_items(prompts), limit=limit)
    loading = options.pop(shared, options.LOADED)
    sampling = options.without_defaults(options.pop(shared, options.DISTRIBUTION))
    drafting, form = settled(shared)
    with terminal.progress("starting"):
        from paceline.core.sampling import SamplingParams
        from paceline.workbench.audit import LocalSettings, RemoteSettings, SamplingSettings

        SamplingParams(**sampling)
        sampled = SamplingSettings(
            samples, detect, power, false_alarm_rate, max_tokens=sample_tokens, seed=seed
        )
        sampled.num_samples(len(items))
    if url is not None:
        assert baseline_url is not None  # _check_sides
        found = _remote(
            (url, baseline_url),
            (model, baseline_model or model),
            items,
            RemoteSettings(
                max_tokens=max_tokens,
                options={
                    name: value for name, value in sampling.items() if _PLAIN.get(name) != value
                },
                sampling=sampled,
                concurrency=concurrency,
                tie_tolerance=tie_tolerance,
            ),
            {"api": api, "timeout": timeout, "retries": retries, "headers": _headers(api_key_env)},
        )
    else:
        request = {**sampling, **drafting}
        target = load_for(request, form, model or DEFAULT_MODEL, loading)
        local = LocalSettings(max_tokens=max_tokens, seed=seed, sampling=sampled)
        found = _local(target, items, request, local, raw=raw)
    _print_result(found, outputs, as_json=as_json)
    raise typer.Exit(found.verdict.exit_code)


def _check_sides(ctx: typer.Context, url: str | None, baseline_url: str | None) -> None:
    """Refuse options of the other kind of audit instead of silently ignoring them."""
    if (url is None) != (baseline_url is None):
        raise InvalidInput(
            "--url and --baseline-url go together: the server that speculates, and the same model "
            "served without"
        )
    strangers = _REMOTE if url is None else _LOCAL
    spelled = {one.name: max(one.opts, key=len) for one in ctx.command.params}
    for name in strangers:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            other = "goes with --url" if url is None else "is for audits without --url"
            raise InvalidInput(f"{spelled[name]} {other}; leave it out")


def _headers(api_key_env: str | None) -> dict[str, str]:
    if api_key_env is None:
        return {}
    key = os.environ.get(api_key_env)
    if not key:
        raise InvalidInput(f"--api-key-env: the environment variable {api_key_env} is not set")
    return {"Authorization": f"Bearer {key}"}


def _local(
    target: Any,
    items: list[Item],
    request: dict[str, Any],
    settings: LocalSettings,
    *,
    raw: bool,
) -> Audit:
    from paceline.workbench.audit import audit_model

    chat = uses_chat(target.tokenizer, raw=raw)
    named = [_named(item, chat=chat) for item in items]
    with steps() as step:
        return audit_model(target, named, request, settings, progress=step)


def _remote(
    urls: tuple[str, str],
    models: tuple[str | None, str | None],
    items: list[Item],
    settings: RemoteSettings,
    how: dict[str, Any],
) -> Audit:
    from paceline.workbench.audit import Endpoint, EndpointSettings, audit_endpoints

    with (
        Endpoint(urls[0], EndpointSettings(model=models[0], **how)) as candidate,
        Endpoint(urls[1], EndpointSettings(model=models[1], **how)) as baseline,
        steps() as step,
    ):
        return audit_endpoints(candidate, baseline, items, settings, progress=step)


def _named(item: Item, *, chat: bool) -> NamedPrompt:
    from paceline.workbench.audit import NamedPrompt

    return NamedPrompt(item.id, item.as_prompt(chat=chat))


def _print_result(found: Audit, outputs: Outputs, *, as_json: bool) -> None:
    from paceline.environment import environment
    from paceline.workbench.audit.report import report
    from paceline.workbench.report import to_html, to_markdown

    machine = environment()
    if as_json:
        terminal.print_json({**found.to_json(), "environment": machine})
    else:
        audit_view.show(found)
    written = outputs.write(
        {
            "--html": lambda: to_html(report(found, machine)),
            "--markdown": lambda: to_markdown(report(found, machine)),
        }
    )
    print_written(written)
