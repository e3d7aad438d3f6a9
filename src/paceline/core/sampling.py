"""The user's sampling options: how tokens are drawn from the target's logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from paceline.checks import require_finite, require_int, token_biases, token_id_set
from paceline.errors import InvalidInput


class LogitBias(Mapping[int, float]):
    """An immutable bias by token id. Unlike a mapping proxy, it can be copied, pickled and hashed.

    Raises:
        InvalidInput: a bias is not a number, is NaN or +infinity; -infinity bans a token.
    """

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._bias = token_biases("logit_bias", bias)

    def __getitem__(self, token: int) -> float:
        return self._bias[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._bias)

    def __len__(self) -> int:
        return len(self._bias)

    def __hash__(self) -> int:
        return hash(frozenset(self._bias.items()))

    def __repr__(self) -> str:
        return repr(self._bias)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from the target's logits. The defaults are greedy decoding.

    The order is that of `transformers`: repetition penalty, presence and frequency penalties,
    logit bias, allowed and banned tokens, then temperature, top-k, top-p and min-p.

    Args:
        temperature: 0 takes the most probable token (a point mass); above 0 divides the logits.
        top_k: keep the k most probable tokens (and those that tie with the last); 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose mass reaches top_p.
        min_p: keep tokens of at least min_p times the probability of the most probable one.
        repetition_penalty: divides the positive, multiplies the negative logits of tokens that
            occur in the prompt or in the answer so far; 1 changes nothing.
        presence_penalty: subtracted from the logits of tokens in the answer so far.
        frequency_penalty: subtracted once for each occurrence of the token in the answer so far.
        logit_bias: added to the logits, by token id.
        allowed_token_ids: only these may be generated; None allows all.
        banned_token_ids: these are never generated.
        seed: the same seed gives the same text; None uses a fresh one.

    Raises:
        InvalidInput: a value is outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: frozenset[int] | None = None
    banned_token_ids: frozenset[int] = frozenset()
    seed: int | None = None

    def __post_init__(self) -> None:
        require_finite(self, "temperature", self.temperature, low=0.0)
        require_int("top_k", self.top_k, low=0)
        require_finite(self, "top_p", self.top_p, low=0.0, high=1.0)
        require_finite(self, "min_p", self.min_p, low=0.0, high=1.0)
        require_finite(self, "repetition_penalty", self.repetition_penalty, low=0.0)
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise InvalidInput(f"{name} must be above 0; it is 0")
        require_finite(self, "presence_penalty", self.presence_penalty)
        require_finite(self, "frequency_penalty", self.frequency_penalty)
        if self.seed is not None:
            require_int("seed", self.seed, low=0, high=2**64 - 1)
        object.__setattr__(self, "logit_bias", LogitBias(self.logit_bias))
        if self.allowed_token_ids is not None:
            allowed = token_id_set("allowed_token_ids", self.allowed_token_ids)
            object.__setattr__(self, "allowed_token_ids", allowed)
            if not self.allowed_token_ids:
                raise InvalidInput("allowed_token_ids is empty: no token could ever be generated")
        banned = token_id_set("banned_token_ids", self.banned_token_ids)
        object.__setattr__(self, "banned_token_ids", banned)

    @property
    def is_greedy(self) -> bool:
        """Whether every distribution is a point mass."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Whether the distribution depends on earlier tokens other than through the logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (
            1.0,
            0.0,
            0.0,
        )
