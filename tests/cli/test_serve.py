"""`paceline serve`: what it refuses to start with, and a whole run as a process."""

import json
import signal
import subprocess
import sys

import httpx
import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "give --api-key KEY, or --insecure"),
        (("--host", "0.0.0.0", "--api-key", ""), "--api-key must be"),
        (("--api-key", "two words"), "--api-key must be"),
        (("--host", "not an address", "--insecure"), "no address here"),
        (("--port", "70000"), "65535"),
        (("--max-answers", "0"), "--max-answers"),
        (("-d", "nope"), "unknown drafter"),
        (("-d", "predicted-output"), "needs the setting 'prediction'"),
    ],
)
def test_a_start_that_cannot_be_meant_is_refused(run, tiny, arguments, message):
    result = run("serve", "-m", tiny, "--port", "0", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_a_server_from_its_first_line_to_its_end(tiny):
    command = [sys.executable, "-m", "paceline", "serve", "-m", str(tiny), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = next(line for line in process.stderr if "is served at" in line)
            assert line.startswith(tiny.name)
            url = line.split("is served at ")[1].split("/v1")[0]
            body = {"prompt": "the", "max_tokens": 400, "ignore_eos": True, "stream": True}
            parts = []
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
                assert answer.status_code == 200
                for text in answer.iter_lines():
                    if not parts:
                        process.send_signal(signal.SIGTERM)
                    parts.append(text)
            assert [part for part in parts if part][-1] == "data: [DONE]"
            last = json.loads([part for part in parts if part][-2].removeprefix("data: "))
            assert last["choices"][0]["finish_reason"] == "length"
            assert process.wait(60) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
