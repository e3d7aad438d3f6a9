"""What cannot be served is refused, with advice; every option of `generate` has been judged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import CompileConfig, GenerationConfig, LogitsProcessor

from paceline.errors import ContextOverflow, InvalidInput, UnsupportedModel
from paceline.integrations.huggingface import speculate
from paceline.targets.cached import CachedTarget
from tests.integrations.huggingface.doors import REPETITIVE, ids, padded, same
from tests.tiny_models import FAMILIES, build, randomise, tiny, tokens_of

PROMPT = (5, 6, 7)

STREAMS = pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="transformers makes this cache before it calls us, on a GPU that is missing",
)


def call(model: Any = None, **options: Any) -> Any:
    options = {"input_ids": ids(PROMPT), "max_new_tokens": 3, **options}
    model = tiny("llama") if model is None else model
    return model.generate(**options, custom_generate=speculate())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "num_beams asks for beam search"),
        ({"num_beams": 2, "do_sample": True}, "num_beams asks for beam sample"),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.1},
            "num_beam_groups asks for group beam search",
        ),
        ({"num_beams": 2, "force_words_ids": [[9]]}, "asks for constrained beam search"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha asks for contrastive search"),
        ({"dola_layers": "high"}, "dola_layers asks for dola generation"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens.* asks for assisted"),
        ({"assistant_early_exit": 1}, "assistant_early_exit.* asks for assisted"),
        ({"assistant_model": tiny("gpt2")}, r"assistant_model.*speculate\(draft_model"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions=True"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
        ({"use_cache": False}, "pass use_cache=True"),
        pytest.param(
            {"cache_implementation": "offloaded"}, "'offloaded' is not supported", marks=STREAMS
        ),
        pytest.param(
            {"cache_implementation": "offloaded_static"},
            "'offloaded_static' is not supported",
            marks=STREAMS,
        ),
        ({"compile_config": CompileConfig()}, "does not compile"),
        ({"synced_gpus": True}, "synced_gpus.*devices of one process"),
        ({"inputs_embeds": torch.zeros(1, 3, 32)}, "inputs_embeds is not supported"),
        ({"position_ids": ids((4, 5, 6))}, "position_ids must count"),
        ({"attention_mask": ids((0, 0, 0))}, "row 0 of attention_mask is all padding"),
        ({"attention_mask": ids((1, 1, 0))}, "padding_side = 'left'"),
        ({"input_ids": ids((5, 64))}, "another tokenizer"),
        ({"input_ids": ids(PROMPT, PROMPT), "pad_token_id": None}, "needs pad_token_id"),
    ],
)
def test_what_cannot_be_served_is_refused_with_advice(
    options: dict[str, Any], message: str
) -> None:
    model = build("llama", pad_token_id=None) if "pad_token_id" in options else None
    with pytest.raises(InvalidInput, match=message):
        call(model, **options)


def test_a_rule_that_looks_ahead_takes_no_processor_that_may_keep_a_state() -> None:
    class Counting(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
            return scores

    options = {"input_ids": ids(PROMPT), "max_new_tokens": 3, "logits_processor": [Counting()]}
    model = tiny("llama")
    with pytest.raises(InvalidInput, match="'traversal' looks at draft tokens"):
        model.generate(**options, custom_generate=speculate(verify="traversal"))
    model.generate(**options, custom_generate=speculate(verify="tree"))


def test_embeddings_alone_are_refused() -> None:
    with pytest.raises(InvalidInput, match="inputs_embeds is not supported"):
        call(input_ids=None, inputs_embeds=torch.zeros(1, 3, 32))


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        # generate would want a package for it.
        ({"cache_implementation": "quantized"}, {}, "'quantized' is not supported"),
        # generate does not hand it on.
        ({}, {"synced_gpus": True}, "several processes"),
    ],
)
def test_what_does_not_come_through_generate_is_refused_too(
    config: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        speculate()(
            tiny("llama"),
            ids(PROMPT),
            transformers.LogitsProcessorList(),
            transformers.StoppingCriteriaList(),
            GenerationConfig(use_cache=True, **config),
            **options,
        )


def test_an_unusual_input_of_the_model_is_refused() -> None:
    model = tiny("gpt2")
    with pytest.raises(InvalidInput, match="token_type_ids is not supported"):
        call(model, token_type_ids=ids((0, 0, 0)))


def test_encoder_decoder_models_are_not_yet_supported() -> None:
    config = transformers.T5Config(
        vocab_size=64,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        call(model)


def test_a_prompt_beyond_the_context_is_refused() -> None:
    with pytest.raises(ContextOverflow, match="128"):
        call(input_ids=ids(tokens_of(128)))


def test_what_generate_itself_refuses_is_refused_all_the_same() -> None:
    for door in ({}, {"custom_generate": speculate()}):
        with pytest.raises(ValueError, match="max_new_tokens"):
            tiny("llama").generate(ids(PROMPT), max_new_tokens=0, **door)
        with pytest.raises(ValueError, match="max_length"):
            tiny("llama").generate(ids(PROMPT), max_length=2, **door)
    # In a config, and not as an argument, stop strings stay with generate, which looks for the
    # tokenizer among what it has dropped.
    with pytest.raises(ValueError, match="could not locate a tokenizer"):
        call(generation_config=GenerationConfig(stop_strings=["x"]), tokenizer=object())


def test_harmless_options_are_taken() -> None:
    everything = {
        "attention_mask": ids((1, 1, 1)),
        "position_ids": ids((0, 1, 2)),
        "logits_to_keep": 1,
        "use_cache": True,
        "num_beams": 1,
        "penalty_alpha": 0.0,
        "prefill_chunk_size": 2,
        "disable_compile": True,
        "output_attentions": True,  # without a dict nobody would see them
        "num_return_sequences": 1,
    }
    model = tiny("llama")
    plain = model.generate(ids(PROMPT), max_new_tokens=3)
    assert call(**everything).tolist() == plain.tolist()
    # A row is the tokens that the mask shows, wherever they are.
    same(
        model,
        input_ids=ids((5, 0, 6, 7), (0, 8, 0, 9)),
        attention_mask=ids((1, 0, 1, 1), (0, 1, 0, 1)),
        max_new_tokens=6,
        pad_token_id=0,
    )
    rows = padded((5,), (6, 7, 8))
    positions = ids((0, 0, 0), (0, 1, 2))
    same(model, **rows, position_ids=positions, max_new_tokens=3, pad_token_id=0)


def test_a_prompt_may_be_prefilled_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = CachedTarget._run

    def noting(self: Any, tokens: Any, *rest: Any) -> Tensor:
        sizes.append(len(tokens))
        return run(self, tokens, *rest)

    monkeypatch.setattr(CachedTarget, "_run", noting)
    prompt = tokens_of(12)
    same(
        tiny("llama"),
        {"drafter": "none"},
        input_ids=ids(prompt),
        max_new_tokens=2,
        prefill_chunk_size=5,
    )
    assert sizes[-5:] == [5, 5, 1, 1, 1]


JUDGED = {
    "served, by processors and criteria of transformers": """
        bad_words_ids begin_suppress_tokens encoder_no_repeat_ngram_size
        encoder_repetition_penalty eos_token_id epsilon_cutoff eta_cutoff
        exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id guidance_scale
        max_length max_new_tokens max_time min_length min_new_tokens min_p no_repeat_ngram_size
        remove_invalid_values renormalize_logits repetition_penalty sequence_bias suppress_tokens
        temperature top_h top_k top_p typical_p watermarking_config
    """,
    "served here": """
        do_sample num_return_sequences output_logits output_scores pad_token_id prefill_chunk_size
        return_dict_in_generate
    """,
    "refused here": """
        assistant_early_exit cache_config cache_implementation compile_config constraints
        dola_layers force_words_ids num_beam_groups num_beams output_attentions
        output_hidden_states penalty_alpha prompt_lookup_num_tokens use_cache use_mtp
    """,
    "dealt with by generate before it calls": """
        bos_token_id decoder_start_token_id continuous_batching_config stop_strings token_healing
        transformers_version _from_model_config
    """,
    "without effect unless a refused one is set, in generate too": """
        assistant_confidence_threshold assistant_ensemble_weight assistant_lookbehind
        disable_compile diversity_penalty early_stopping is_assistant length_penalty low_memory
        max_cache_len max_matching_ngram_size num_assistant_tokens num_assistant_tokens_schedule
        speculation_type target_lookbehind
    """,
}


def test_every_option_of_the_config_has_been_judged() -> None:
    """A new option of transformers fails here, so that nobody finds it ignored."""
    judged = [name for names in JUDGED.values() for name in names.split()]
    assert len(judged) == len(set(judged))
    assert set(judged) == set(vars(GenerationConfig()))


def test_what_is_put_round_a_model_is_noticed() -> None:
    """As `peft` does for prompt tuning, and, without changing anything, for other adapters."""
    model = build("llama")
    own = model.prepare_inputs_for_generation

    def as_before(input_ids: Any, **call: Any) -> Any:
        return own(input_ids, **call)

    model.prepare_inputs_for_generation = as_before
    prompt = ids(REPETITIVE)
    same(model, input_ids=prompt, max_new_tokens=6)

    def tuned(input_ids: Any, **call: Any) -> dict[str, Any]:
        found: dict[str, Any] = own(input_ids, **call)
        if call.get("is_first_iteration"):
            embeddings = model.get_input_embeddings()(found.pop("input_ids"))
            found["inputs_embeds"] = embeddings + 1
        return found

    model.prepare_inputs_for_generation = tuned
    with pytest.raises(InvalidInput, match="changed before they reach it"):
        model.generate(prompt, max_new_tokens=6, custom_generate=speculate())


def test_empty_inputs_of_models_that_see_are_no_images() -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {**FAMILIES["gemma3"][1], "eos_token_id": None}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 4, "image_size": 16, "patch_size": 8}
    config = Gemma3Config(
        text_config=text, vision_config={**vision, "model_type": "siglip_vision_model"}
    )
    model = randomise(lambda: Gemma3ForConditionalGeneration(config))
    same(model, input_ids=ids(REPETITIVE), max_new_tokens=6, pad_token_id=0, eos_token_id=None)


def test_stop_strings_without_a_tokenizer_say_where_it_goes() -> None:
    with pytest.raises(InvalidInput, match=r"speculate\(tokenizer="):
        call(stop_strings=["x"], tokenizer=object())
