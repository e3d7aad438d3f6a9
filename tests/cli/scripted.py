"""A model that answers by a script, for what real ones do too seldom to test."""

from dataclasses import dataclass, field

from paceline.economics.stats import AcceptanceCounts
from paceline.engine.metrics import Metrics
from paceline.generate.api import Chunk, Generation, Piece


class Tokenizer:
    chat_template = None

    def decode(self, tokens):
        return "".join(chr(token) for token in tokens)


@dataclass
class Scripted:
    """Answers `plain` to the drafter `none`, and `speculative` to others.

    Args:
        plain, speculative: the answers; token ids are code points.
        seconds: what each answer takes, by drafter, one after the other.
        gap: between the two best log-probabilities everywhere.
    """

    plain: str
    speculative: str
    seconds: dict = field(default_factory=lambda: {"none": [2.0], "ngram": [1.0]})
    gap: float = 0.5
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    calls: list = field(default_factory=list)

    def stream(self, prompt, **options):
        for token in self._answer(options):
            yield Chunk((Piece(chr(token), token, drafted=options["drafter"] == "ngram"),))
        yield self._generation(options, 1.0)

    def generate(self, prompt, **options):
        self.calls.append(options["drafter"])
        times = self.seconds[options["drafter"]]
        count = self.calls.count(options["drafter"]) - 1
        return self._generation(options, times[count % len(times)])

    def _answer(self, options):
        text = self.plain if options["drafter"] == "none" else self.speculative
        return tuple(map(ord, text))[: options["max_tokens"]]

    def _generation(self, options, seconds):
        tokens, drafts = self._answer(options), options["drafter"] == "ngram"
        rounds = [(4, 1)] * (len(tokens) // 2) if drafts else [(0, 0)] * len(tokens)
        counts = AcceptanceCounts.from_rounds(rounds)
        return Generation(
            text=self.tokenizer.decode(tokens),
            token_ids=tokens,
            finish_reason="length",
            num_prompt_tokens=3,
            seed=0,
            drafter=options["drafter"],
            verifier="token",
            exact=True,
            promise="law, path",
            metrics=Metrics(counts=counts, num_draft_tokens=counts.num_draft_tokens),
            decode_seconds=seconds,
            top_logprobs=tuple(((token, -1.0), (0, -1.0 - self.gap)) for token in tokens)
            if options.get("logprobs")
            else None,
        )
