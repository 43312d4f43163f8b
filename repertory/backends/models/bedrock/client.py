"""Clients of the Bedrock runtime service, and whether one could be made."""

from __future__ import annotations

from collections.abc import Mapping

from repertory.backends.aws_clients import AwsService, AwsSettings, aws_clients
from repertory.backends.loop_clients import LoopClients

_SERVICE = AwsService(name="bedrock-runtime", wanted_by="BedrockModel", extra="bedrock")


def bedrock_clients(settings: AwsSettings) -> LoopClients:
    """The clients of one model. Errors of `get` are botocore's: no region, no such profile.

    `ImportError` names the extra to install when aiobotocore or httpx2 is missing.
    """
    return aws_clients(_SERVICE, settings)


def bedrock_configured(environ: Mapping[str, str]) -> bool:
    """Whether the environment names AWS credentials. It looks at nothing else, neither files nor the network."""
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return True
    sources = (
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_BEARER_TOKEN_BEDROCK",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )
    return any(environ.get(name) for name in sources)
