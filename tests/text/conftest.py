import pytest


@pytest.fixture(scope="session")
def smollm2_tokenizer():
    from paceline.models import load_tokenizer, resolve

    return load_tokenizer(resolve("smollm2-135m", dtype="bfloat16").folder)
