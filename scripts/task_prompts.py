"""Prompts of several tasks for `paceline train --prompts`, written by the target itself.

A model's own prompts (`paceline train` without `--prompts`) are mostly chat. A drafter that is used
for summaries, translations and questions about passages should have seen these. The sources are the
model's own too: it writes prompts, short articles about them, a question on each article and a
German translation of its beginning, and templates make tasks of these. Questions that only a file
has (`--questions`, JSON lines with `question`) are added as they are.

    python scripts/task_prompts.py -m smollm2-135m --out prompts.jsonl --seed 0
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import paceline
from paceline.train.answers import own_sampler
from paceline.train.prompts import Filter, OwnPrompts

BATCH = 64

SUMMARIZE = (
    "Summarize: {text}",
    "Summarize the following article in two sentences.\n\n{text}",
    "{text}\n\nWhat are the main points of this text?",
)
TRANSLATE = (
    "Translate German to English: {text}",
    "Translate into English:\n\n{text}",
)
PASSAGES = (
    "Answer the question from these passages.\n\n{passages}\n\nQuestion: {question}",
    "Question: {question}\n\nPassages:\n\n{passages}\n\nAnswer:",
)
FOLLOW_UPS = (
    "Can you make that shorter?",
    "Give an example.",
    "Explain it to a child.",
    "What would be an argument against it?",
    "Rewrite your answer as a list.",
    "Now write it more formally.",
)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chats", type=int, default=1200, help="prompts of the model's own")
    parser.add_argument("--texts", type=int, default=500, help="articles, and so tasks of a kind")
    parser.add_argument("--follow-ups", type=int, default=300, help="chats of two turns")
    parser.add_argument("--questions", type=Path, help="JSON lines with `question`")
    parser.add_argument("--most-questions", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    items = list(tasks(options))
    random.Random(options.seed).shuffle(items)
    options.out.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    sys.stdout.write(f"{len(items)} prompts in {options.out}\n")


def tasks(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All prompts, task by task."""
    model = paceline.load(options.model)
    draw = random.Random(options.seed)

    def answers(prompts: Iterable[str], max_tokens: int, temperature: float) -> list[str]:
        found: list[str] = []
        pending = list(prompts)
        for at in range(0, len(pending), BATCH):
            part = [[{"role": "user", "content": text}] for text in pending[at : at + BATCH]]
            found += (
                one.text.strip()
                for one in model.generate_batch(
                    part,
                    drafter="none",
                    max_tokens=max_tokens,
                    temperature=temperature,
                    seed=options.seed + at,
                )
            )
            sys.stderr.write(f"{len(found)} of {len(pending)}\n")
        return found

    sampler = own_sampler(model, options.seed, BATCH, lambda: False)
    source = OwnPrompts(model.tokenizer, sampler, Filter(), BATCH)
    chats = [prompt.text for prompt in source.take(options.chats, 0)[0]]
    yield from ({"task": "chat", "prompt": text} for text in chats)

    topics = [" ".join(text.split()[:20]) for text in chats[: options.texts]]
    about = (f"Write a short news article about the following.\n\n{topic}" for topic in topics)
    texts = answers(about, 180, 0.8)
    yield from ({"task": "summary", "prompt": draw.choice(SUMMARIZE).format(text=text)}
                for text in texts)  # fmt: skip

    asked = (f"{text}\n\nWrite one short question about this text." for text in texts)
    questions = [text.split("\n")[0] for text in answers(asked, 32, 0.7)]
    yield from ({"task": "question", "prompt": text} for text in questions)
    for place, question in enumerate(questions):
        chosen = [texts[place], *draw.sample(texts, min(2, len(texts)))]
        draw.shuffle(chosen)
        passages = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(chosen, 1))
        prompt = draw.choice(PASSAGES).format(passages=passages, question=question)
        yield {"task": "passages", "prompt": prompt}

    beginnings = (" ".join(text.split()[:40]) for text in texts)
    german = answers((f"Translate to German: {text}" for text in beginnings), 64, 0.7)
    yield from ({"task": "translation", "prompt": draw.choice(TRANSLATE).format(text=text)}
                for text in german)  # fmt: skip

    opened = chats[-options.follow_ups :] if options.follow_ups else []
    for text, answer in zip(opened, answers(opened, 160, 0.0), strict=True):
        turns = (("user", text), ("assistant", answer), ("user", draw.choice(FOLLOW_UPS)))
        messages = [{"role": role, "content": content} for role, content in turns]
        yield {"task": "two turns", "messages": messages}

    if options.questions is not None:
        lines = options.questions.read_text(encoding="utf-8").splitlines()
        for line in lines[: options.most_questions]:
            yield {"task": "given", "prompt": json.loads(line)["question"]}


if __name__ == "__main__":
    main()
