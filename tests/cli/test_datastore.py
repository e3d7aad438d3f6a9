import json

import pytest

from paceline.drafting.stores.corpus import Corpus
from tests import tiny_tokenizers

TEXT = "one two three. one two four.\n"


@pytest.fixture
def store(run, tiny, tmp_path):
    """A datastore of two documents."""
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": "five six seven"}))
    path = tmp_path / "store"
    files = [tmp_path / "text.txt", tmp_path / "more.jsonl"]
    result = run("datastore", "build", *files, "-o", path, "--tokenizer", tiny)
    assert result.exit_code == 0, result.stderr
    assert "29 tokens" in result.stdout or "tokens in 2 documents" in result.stdout
    assert "sorting the suffixes" in result.stderr
    return path


def test_the_corpus_holds_the_texts(store):
    tokenizer = tiny_tokenizers.byte_level()
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    corpus = Corpus.open(store)
    assert len(corpus) == len(ids) + len(tokenizer.encode("five six seven"))
    found = corpus.find(ids[:5], longest=16, shortest=5)
    rows = corpus.continuations(found, 3, 10).tolist()
    assert ids[5:8] in rows


def test_it_is_described(run, store):
    result = run("datastore", "info", store)
    assert result.exit_code == 0
    assert f"{store}: " in result.stdout
    assert " in 2 documents, " in result.stdout
    found = json.loads(run("datastore", "info", store, "--json").stdout)
    assert found["num_documents"] == 2
    assert found["size_bytes"] == Corpus.open(store).num_bytes
    assert len(found["fingerprint"]) == 32


def test_generate_drafts_from_it(run, store, tiny):
    command = ["generate", "-m", tiny, "-p", "one two", "--raw", "--max-tokens", 8, "--json"]
    plain = json.loads(run(*command, "--drafter", "none").stdout)
    option = ["--drafter", "retrieval", "--drafter-option", f"datastore={store}"]
    for mode in ("path", "tree"):
        options = [*option, "--drafter-option", f"mode={mode}", "--drafter-option", "min_match=1"]
        drafted = json.loads(run(*command, *options).stdout)
        assert drafted["token_ids"] == plain["token_ids"]
        assert drafted["spec"]["num_draft_tokens"] > 0


def test_the_tokenizer_of_another_model_is_refused(run, store, stranger):
    option = ["--drafter", "retrieval", "--drafter-option", f"datastore={store}"]
    result = run("generate", "-m", stranger, "-p", "one two", *option)
    assert result.exit_code == 2
    assert "was built with the tokenizer of" in result.stderr.splitlines()[-1]


def test_a_datastore_has_to_be_given(run, tiny):
    result = run("generate", "-m", tiny, "-p", "one two", "--drafter", "retrieval")
    assert result.exit_code == 2
    assert "drafter 'retrieval' needs the setting 'datastore'" in result.stderr


def test_mistakes_are_told_in_one_line(run, store, tiny, tmp_path):
    text = tmp_path / "text.txt"
    (tmp_path / "empty.txt").write_text("")
    for arguments, message in (
        ([text, "-o", store], "already exists; give another path, or --overwrite"),
        ([text, "-o", tmp_path / "no" / "store"], "give a file in an existing folder"),
        ([tmp_path / "none.txt", "-o", tmp_path / "new"], "it does not exist"),
        ([tmp_path / "empty.txt", "-o", tmp_path / "new", "-m", tiny], "have no text"),
        ([text, "-o", tmp_path / "new", "-m", "smollm3"], "unknown model 'smollm3'"),
        ([text], "Missing option '--output'"),
    ):
        result = run("datastore", "build", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr.splitlines()[-1]
        assert not (tmp_path / "new").exists()
    assert run("datastore", "info", text).exit_code == 2
    assert run("datastore", "build", text, "-o", store, "--overwrite", "-m", tiny).exit_code == 0
