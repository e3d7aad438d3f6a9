"""What a plug-in may declare about itself beyond its protocol, and the defaults.

A trait is an attribute of the plug-in's class, as in `needs_draft_model: ClassVar[bool] = True`, or
a property if it depends on the settings. A plug-in that declares nothing has the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import ContractViolation

if TYPE_CHECKING:
    from paceline.core.drafts import Scheme


class DraftKinds(NamedTuple):
    """The kinds of drafts that a drafter makes.

    Args:
        schemes: every scheme that a draft with tokens may have; empty if the drafter does not say.
        draws: whether tokens may be drawn at random, so that `Draft.probs` holds distributions.

    Example:
        >>> from paceline.core.drafts import Scheme
        >>> DraftKinds(frozenset({Scheme.IID}), draws=True).draws
        True
    """

    schemes: frozenset[Scheme] = frozenset()
    draws: bool = False


_UNDECLARED = DraftKinds()


@dataclass(frozen=True, slots=True)
class Traits:
    """What a plug-in declares; read it with `traits_of`.

    Args:
        needs_draft_model: for drafters: it drafts with a model of its own, a `protocols.Target`,
            which is its setting `model`. It can then be given by name together with a draft model.
        needs_draft_head: for drafters: it drafts with a head that reads the target's hidden states,
            which is its setting `head`. It can then be given by name together with a draft head.
        translates: for drafters with a draft model: that model may have another tokenizer. The
            drafter is given both tokenizers as settings: `tokenizer` (the target's) and
            `draft_tokenizer`.
        combines: for drafters: it combines others, which are its setting `drafters`. It can then be
            given by name together with their names.
        names: for drafters that combine others: their names, which a controller may choose from.
        default_verifier: for drafters: the rule that verifies its drafts if the user names none. A
            tree drafter names a rule that takes trees.
        drafts: for drafters: the kinds of drafts that it makes. A rule that does not take all of
            them is refused before the first token; if none are declared, each draft is checked as
            it comes.
        greedy_drafts: for drafters: the same when the target's temperature is 0, if it differs.
        looks_ahead: for verifiers: it asks for distributions after draft tokens that it may still
            reject. Logits processors that may be stateful are refused with it.
        follows_load: for controllers: its lengths follow what a pass with all its neighbours takes,
            so that of several such each may expect the others to choose as it does itself.
        num_cached_layers: for draft heads: the layers of its own that keep keys and values of the
            text, for the memory that a request takes.
        uses_clock: for controllers: its draft lengths depend on timings, so they differ from run to
            run.

    Example:
        >>> Traits().default_verifier
        'token'
    """

    needs_draft_model: bool = False
    needs_draft_head: bool = False
    translates: bool = False
    combines: bool = False
    names: tuple[str, ...] = ()
    default_verifier: str = "token"
    drafts: DraftKinds = _UNDECLARED
    greedy_drafts: DraftKinds = _UNDECLARED
    looks_ahead: bool = False
    follows_load: bool = False
    num_cached_layers: int = 0
    uses_clock: bool = False

    def drafts_where(self, *, is_greedy: bool) -> DraftKinds:
        """What is declared of drafts for a target that samples, or is greedy."""
        return self.greedy_drafts if is_greedy and self.greedy_drafts.schemes else self.drafts


def models_of(drafter: Any) -> list[Any]:
    """The models, `protocols.Target`s, that a drafter drafts with, those of its parts included."""
    traits = traits_of(drafter)
    if traits.combines:
        return [model for part in drafter.drafters for model in models_of(part)]
    return [drafter.model] if traits.needs_draft_model else []


def traits_of(plugin: Any) -> Traits:
    """The traits of a plug-in, or of its class.

    A trait that the class computes from its settings, by a property, has its default until there is
    an instance.

    Raises:
        ContractViolation: a trait has the wrong type.

    Example:
        >>> class Branching:
        ...     default_verifier = "tree"
        >>> traits_of(Branching).default_verifier, traits_of(Branching()).combines
        ('tree', False)
    """
    declared: dict[str, Any] = {}
    for trait in fields(Traits):
        value = getattr(plugin, trait.name, trait.default)
        if isinstance(plugin, type) and hasattr(value, "__get__"):
            continue
        if not isinstance(value, type(trait.default)):
            name = getattr(plugin, "name", plugin)
            raise ContractViolation(
                f"plug-in {name!r:.80} declares {trait.name} as {value!r:.80}; it must be of type "
                f"{type(trait.default).__name__}"
            )
        declared[trait.name] = value
    return Traits(**declared)
