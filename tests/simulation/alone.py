"""Resolves every extra beside the libraries that its users have, and installs each one alone to use what it is for.

    python -m tests.simulation.alone [EXTRA ...]

Beside `strands-agents` and `boto3`, each extra must have a solution on the oldest and the newest Python. So must `all`,
which has all of them together but `litellm`. Alone: the extra's own packages, the oldest and then the
newest, run the lines of `USES`; before it is installed, they must fail. Needs uv and the package index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.simulation.pythons import KINDS, PROJECT, PYTHONS, ROOT, run, uv

EXTRAS: Mapping[str, list[str]] = PROJECT["project"]["optional-dependencies"]
BESIDE = "strands-agents\nboto3\n"
_ASKED = """
import asyncio
from repertory import {model} as Model
from repertory.errors import Unavailable
try:
    asyncio.run(anext(aiter(Model({settings}).stream([{{"role": "user", "content": [{{"text": "hi"}}]}}]))))
except Unavailable as error:  # there is no server: the library was loaded, and found that out
    assert "pip install" not in str(error), error
"""
_AT = "client_args={'base_url': 'http://127.0.0.1:9', 'api_key': 'key'}"
_AWS = """
import os
os.environ.update(AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s", AWS_DEFAULT_REGION="eu-west-1")
import aiobotocore.httpxsession, aiobotocore.session, httpx2
async def main():
    async with aiobotocore.session.get_session().create_client({service!r}, region_name="eu-west-1"):
        pass
import asyncio
asyncio.run(main())
import repertory
repertory.{name}
"""

USES: Mapping[str, str] = {
    "a2a": "import repertory.compat.a2a_agent, repertory.compat.a2a_server, uvicorn, httpx",
    "agentcore": _AWS.format(service="bedrock-agentcore", name="AgentCoreMemorySessionManager"),
    "anthropic": _ASKED.format(model="AnthropicModel", settings=f"model_id='m', {_AT}"),
    "bedrock": _AWS.format(service="bedrock-runtime", name="BedrockModel"),
    "cedar": "import cedarpy; from repertory import CedarAuthorization",
    "code": """
        from repertory import Agent, CodeMode, ScriptedModel
        asked = {"toolUse": {"name": "run_code", "input": {"code": "print(6 * 7)"}}}
        agent = Agent(ScriptedModel([asked, "Done."]), plugins=[CodeMode()], callback_handler=None)
        agent("go")
        assert "42" in str(agent.messages[2]), agent.messages[2]
    """,
    "encryption": "import repertory.backends.encryption.row_cipher, repertory.backends.encryption.wrapping",
    "files": "import aiofiles, repertory.backends.line_files",
    "gemini": "from google import genai; from repertory import GeminiModel; GeminiModel(model_id='m')",
    "inspect": "from repertory import Inspector, Runtime; import repertory.inspector.pages; Inspector(Runtime())",
    "kms": _AWS.format(service="kms", name="KmsKeys") + "\nimport repertory.backends.encryption.wrapping",
    "litellm": "import litellm; from repertory import LiteLLMModel; LiteLLMModel(model_id='m')",
    "llamaapi": "import openai; from repertory import LlamaAPIModel; LlamaAPIModel(model_id='m')",
    "llamacpp": "import openai; from repertory import LlamaCppModel; LlamaCppModel()",
    "mcp": "import repertory.mcp.connection, repertory.mcp.transports",
    "minilm": "import numpy, safetensors.numpy, tokenizers, repertory.backends.memory.minilm",
    "mistral": "import openai; from repertory import MistralModel; MistralModel(model_id='m')",
    "ollama": "import ollama; from repertory import OllamaModel; OllamaModel(host='http://127.0.0.1:9', model_id='m')",
    "openai": _ASKED.format(model="OpenAIModel", settings=f"model_id='m', {_AT}"),
    "peers": "import repertory.cluster.wire.http_client, repertory.cluster.wire.http_server",
    "postgres": "import psycopg, repertory.backends.postgres.connection; assert psycopg.pq.__impl__ == 'binary'",
    "s3": _AWS.format(service="s3", name="S3Sessions"),
    "sagemaker": _AWS.format(service="sagemaker-runtime", name="SageMakerAIModel"),
    "serve": "import uvicorn, repertory.asgi, repertory.service.process.web_server",
    "skills": "import yaml; from repertory import Skill, AgentSkills",
    "sqs": _AWS.format(service="sqs", name="SQSQueue"),
    "telemetry": """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from repertory import Runtime, metrics_app
        import repertory.telemetry.spans, repertory.telemetry.propagation
        metrics_app()
    """,
    "web": "from repertory.toolbox.web import markdown_of; assert markdown_of('<p>a') == 'a'",
    "terminal": "import repertory.console.rich_terminal, repertory.console.top",
    "trio": """
        import anyio
        from repertory import Agent, ScriptedModel
        async def main():
            print(await Agent(ScriptedModel(["hello"]), callback_handler=None).invoke_async("hi"))
        anyio.run(main, backend="trio")
    """,
    "uvloop": """
        import anyio, uvloop
        from repertory import Agent, ScriptedModel
        async def main():
            print(await Agent(ScriptedModel(["hello"]), callback_handler=None).invoke_async("hi"))
        anyio.run(main, backend_options={"use_uvloop": True})
    """,
    "vectors": "import numpy; from repertory import SQLiteMemoryStore",
    "writer": "import writerai; from repertory import WriterModel; WriterModel(model_id='m')",
}
"""Lines that load what an extra is for."""


def say(*words: object) -> None:
    print("alone:", *words, flush=True)


def resolved(extras: list[str], version: str, beside: Path) -> bool:
    """Whether packages can be chosen for these extras beside the others."""
    chosen = [word for extra in extras for word in ("--extra", extra)]
    done = subprocess.run(
        [uv(), "pip", "compile", "--quiet", "--python-version", version, "pyproject.toml", str(beside), *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        say("no solution:", *extras, f"on Python {version}\n{done.stderr}")
    return done.returncode == 0


def works(python: Path, extra: str, folder: Path) -> str:
    """What went wrong with the lines of an extra; the empty string if they ran."""
    done = subprocess.run(
        [python, "-c", textwrap.dedent(USES[extra])], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stderr[-2000:] if done.returncode else ""


def main() -> None:
    """Everything, or the extras that are named."""
    named = sys.argv[1:] or sorted(USES)
    faults: list[str] = []
    if untold := set(EXTRAS) - set(USES) - {"all"}:
        faults.append(f"not in USES: {', '.join(sorted(untold))}")
    with tempfile.TemporaryDirectory(prefix="repertory-alone-") as scratch:
        folder = Path(scratch)
        beside = folder / "beside.in"
        beside.write_text(BESIDE)
        for version in (PYTHONS[0], PYTHONS[-1]):
            groups = [[extra] for extra in named] + ([] if sys.argv[1:] else [["all"]])
            faults += [f"{group[0]} on {version}" for group in groups if not resolved(group, version, beside)]
        say(f"{len(named)} extras beside {' and '.join(BESIDE.split())}: {len(faults)} without a solution")
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
        wheel = next(folder.glob("*.whl"))
        for kind, resolution in KINDS.items():
            for extra in named:
                place = folder / f"{kind}-{extra}"
                python = place / "bin" / "python"
                install = (uv(), "pip", "install", "--quiet", "--python", python)
                chosen = (*install, "--no-build", "--resolution", resolution, "-r", "pyproject.toml")
                run(uv(), "venv", "--quiet", "--python", sys.executable, place)
                run(*chosen)
                run(*install, "--no-deps", wheel)
                if not works(python, extra, folder):
                    faults.append(f"{extra}: its lines run without it")
                run(*chosen, "--extra", extra)
                if wrong := works(python, extra, folder):
                    faults.append(f"{extra}, {kind}")
                    say(f"{extra}, {kind}: FAILED\n{wrong}")
            say(f"{kind}: {len(named)} extras alone")
    if faults:
        sys.exit(f"alone: failed: {'; '.join(faults)}")


if __name__ == "__main__":
    main()
