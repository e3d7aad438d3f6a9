"""The exception tree. Every message says what was expected, what came and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PacelineError(Exception):
    """The base of every error that Paceline raises on purpose."""


class InvalidInput(PacelineError, ValueError):
    """An option, a prompt or a file that cannot be used as it is."""


class UnknownName(InvalidInput, LookupError):
    """A drafter, rule, controller or model that is not registered."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str]) -> UnknownName:
        """Build the error for `name`, naming the nearest of the `known` names.

        >>> print(UnknownName.among("drafter", "ngrm", ["model", "ngram"]))
        unknown drafter 'ngrm'; did you mean 'ngram'? Known: model, ngram
        """
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return cls(f"unknown {kind} {name!r}{hint} Known: {', '.join(names) or 'none'}")


class ContextOverflow(InvalidInput):
    """A prompt, or a prompt with its answer, that does not fit the context of the model."""


class NoTokenLeft(InvalidInput):
    """Sampling options that, at some place in the text, allow no token at all."""


class ModelError(PacelineError):
    """A model that cannot be loaded, or whose files are damaged."""


class UnsupportedModel(ModelError):
    """A model that Paceline cannot decode exactly, an encoder-decoder or a recurrent cache say."""


class MissingExtra(PacelineError, ImportError):
    """An optional dependency is missing; the message holds the install line."""

    @classmethod
    def needed(cls, extra: str, what: str) -> MissingExtra:
        """Build the error for something that an extra brings.

        >>> print(MissingExtra.needed("workbench", "plots"))
        plots need the extra 'workbench'; install it with: pip install 'paceline[workbench]'
        """
        return cls(
            f"{what} need the extra {extra!r}; install it with: pip install 'paceline[{extra}]'"
        )


class NoSpace(PacelineError):
    """No room is left on the disk for what is to be written; what is there already is kept."""


class EndpointError(PacelineError):
    """A server that cannot be reached, or does not answer as its interface says."""


class QueueFull(PacelineError):
    """As many requests wait as may. Nothing is wrong with this one: send it again later."""


class EngineStopped(PacelineError):
    """The engine has been stopped, or is being stopped: it takes and finishes nothing more."""


class ContractViolation(PacelineError, RuntimeError):
    """A plug-in broke its contract. The message names the plug-in and the rule."""
