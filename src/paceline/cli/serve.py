"""`paceline serve`: a model behind the interface of OpenAI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from paceline.cli import options, terminal
from paceline.cli.calls import DEFAULT_MODEL, load_for, settled
from paceline.cli.options import option, switch
from paceline.errors import InvalidInput, MissingExtra

NETWORK, LIMITS = "Network", "Limits"

Host = Annotated[str, option("--host", panel=NETWORK, metavar="ADDRESS", about="Where to listen.")]
Port = Annotated[
    int,
    option(
        "--port",
        panel=NETWORK,
        metavar="N",
        min=0,
        max=65535,
        about="The port; 0 takes a free one.",
    ),
]
ApiKey = Annotated[
    str | None,
    option(
        "--api-key",
        panel=NETWORK,
        metavar="KEY",
        envvar="PACELINE_API_KEY",
        about="What clients must show. Better in the environment, where other users of the machine "
        "do not see it.",
    ),
]
Insecure = Annotated[
    bool,
    switch(
        "--insecure",
        panel=NETWORK,
        about="Listen to other machines without a key: anyone who can connect may ask.",
    ),
]
Name = Annotated[
    str | None,
    option(
        "--served-name",
        panel=NETWORK,
        metavar="NAME",
        about="What clients call the model. Default: the last part of --model.",
    ),
]
Grace = Annotated[
    float,
    option(
        "--grace",
        panel=NETWORK,
        metavar="SECONDS",
        min=0,
        about="How long answers may go on when the server is asked to end.",
    ),
]
LogPrompts = Annotated[
    bool,
    switch(
        "--log-prompts",
        panel=NETWORK,
        about="Log faults with their messages, which may quote a prompt.",
    ),
]
RequestMetrics = Annotated[
    bool,
    switch(
        "--request-metrics",
        panel=NETWORK,
        about="Tell with each answer how it was decoded: times, drafts, acceptance.",
    ),
]


def _limit(flag: str, about: str, low: int = 1) -> Any:
    return option(flag, panel=LIMITS, metavar="N", min=low, about=about)


MaxSequences = Annotated[int, _limit("--max-sequences", "Answers that are decoded at once.")]
MaxWaiting = Annotated[
    int, _limit("--max-waiting", "Answers that may wait; beyond, clients are told to retry.", 0)
]
Memory = Annotated[
    int | None,
    _limit(
        "--memory",
        "What the answers that are decoded may take beside the weights, in MiB; the others wait. "
        "Default: no limit.",
    ),
]
PrefixCache = Annotated[
    int,
    _limit(
        "--prefix-cache",
        "What is kept of prompts that were read, by each model, in MiB: a prompt that begins the "
        "same is not read again. 0 keeps nothing.",
        0,
    ),
]
MaxBody = Annotated[int, _limit("--max-body", "The size of a request, in KiB.")]
MaxPrompt = Annotated[
    int | None, _limit("--max-prompt-tokens", "The length of a prompt. Default: the context.")
]
MaxAnswer = Annotated[
    int | None, _limit("--max-answer-tokens", "The length of an answer. Default: the context.")
]
MaxAnswers = Annotated[
    int, _limit("--max-answers", "Answers to one request: n times the number of prompts.")
]
Timeout = Annotated[
    float,
    option(
        "--timeout",
        panel=LIMITS,
        metavar="SECONDS",
        min=0.001,
        about="The time for one request, waiting included.",
    ),
]


@options.takes(*options.LOADED, *options.DRAFTED, before="host")
def serve(
    shared: dict[str, Any],
    model: options.Model = DEFAULT_MODEL,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = None,
    insecure: Insecure = False,
    served_name: Name = None,
    grace: Grace = 30.0,
    request_metrics: RequestMetrics = False,
    log_prompts: LogPrompts = False,
    max_sequences: MaxSequences = 16,
    max_waiting: MaxWaiting = 64,
    memory: Memory = None,
    prefix_cache: PrefixCache = 256,
    max_body: MaxBody = 4096,
    max_prompt_tokens: MaxPrompt = None,
    max_answer_tokens: MaxAnswer = None,
    max_answers: MaxAnswers = 16,
    timeout: Timeout = 600.0,
) -> None:
    """Serve a model to any client of OpenAI's interface.

    Requests that come at the same time are decoded together, each as it would be alone. The options
    of drafting hold for requests that do not choose for themselves.
    """
    try:
        from paceline.server.app import make_app
        from paceline.server.running import OWN_NAMES, address_of, is_loopback, listen
        from paceline.server.running import serve as run
        from paceline.server.settings import Limits, Settings
    except ImportError as error:
        if (error.name or "").startswith("paceline"):
            raise
        raise MissingExtra.needed("serve", "servers") from error
    if api_key is not None and (not api_key or not api_key.isprintable() or " " in api_key):
        raise InvalidInput("--api-key must be a text without spaces; it is empty or holds some")
    if not is_loopback(host) and api_key is None and not insecure:
        raise InvalidInput(
            f"--host {host} lets other machines ask; give --api-key KEY, or --insecure to answer "
            "anyone who can connect"
        )
    loading = options.pop(shared, options.LOADED)
    request, form = settled(shared)
    listening = listen(host, port)
    with listening:
        target = load_for(request, form, model, loading)
        if target.tokenizer is None:
            raise InvalidInput(f"{target.name} has no tokenizer, and requests are texts")
        own = is_loopback(host) and api_key is None
        settings = Settings(
            name=served_name or Path(model).name,
            options=request,
            limits=Limits(
                body_bytes=max_body * 1024,
                prompt_tokens=max_prompt_tokens,
                answer_tokens=max_answer_tokens,
                answers=max_answers,
                seconds=timeout,
            ),
            api_key=api_key,
            hosts=OWN_NAMES if own else None,
            request_metrics=request_metrics,
            show_errors=log_prompts,
        )
        app = make_app(
            target,
            settings,
            max_sequences=max_sequences,
            max_waiting=max_waiting,
            memory=None if memory is None else memory << 20,
            prefix_bytes=prefix_cache << 20,
        )
        # A fault in how answers are drafted shows here, and not with the first request.
        target.prepare([[0]], **request)

        def ready() -> None:
            terminal.err().print(
                f"{settings.name} is served at {address_of(listening)}/v1 (load: /, fields: /docs; "
                "Ctrl-C ends)",
                soft_wrap=True,
            )

        run(app, listening, grace=grace, ready=ready)
