"""`BedrockKnowledgeBaseStore`: a knowledge base of Amazon Bedrock as a memory store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from repertory.backends.aws_clients import AwsSettings, LendingClient
from repertory.backends.aws_errors import RetryPolicy
from repertory.backends.memory.bedrock import (
    AccessControlEntry,
    CustomSource,
    KnowledgeBaseKind,
    KnowledgeBaseMemory,
    KnowledgeBaseSettings,
    S3Source,
    ScoreBounds,
    check_result_count,
)
from repertory.backends.memory_ports import CompleteStore
from repertory.core.ids import check_id
from repertory.core.memory.options import Options, read_options
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import ObjectStore

DataSourceType = Literal["CUSTOM", "S3", "OTHER"]
URI_CHARS_MAX = 128
"""The greatest length of an object's URI behind `s3://`: later requests to the service cannot name longer ones."""

T = TypeVar("T")

_NAME_CHARS = 36
"""The length of an object's name without its folder."""
_READ_ONLY = "add requires data_source_type 'CUSTOM' or 'S3': the service itself fills others"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BedrockKnowledgeBaseS3Config(Options):
    """The place of memories for an S3 data source. The data source must read this bucket and prefix: its next sync
    forgets documents that lie elsewhere.
    """

    bucket: str | None = None
    prefix: str | None = None
    client: Any = field(default=None, repr=False)
    """A boto3 client of S3, whose credentials, region and endpoint are used. Requests go through our own clients."""
    endpoint_url: str | None = field(default=None, repr=False)
    kms_key_id: str | None = None
    """The id, ARN or alias of the KMS key with which S3 encrypts the memories, which the knowledge base's role must be
    allowed to use; None: the bucket's default encryption."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BedrockKnowledgeBaseConfig(Options):
    """A knowledge base and the connection to it. Many stores may share one. Works as attributes and as a mapping.

    A field that is None comes from the environment, as in every AWS tool.

    Args:
        data_source_id: The data source that takes new entries; `writable=True` needs it.
        region_name: The AWS region; None for the one of the environment.
    """

    knowledge_base_id: str | None = None
    """The id of the knowledge base. Required."""
    knowledge_base_type: KnowledgeBaseKind | None = None
    """`VECTOR`, `MANAGED`, `KENDRA` or `SQL`; None asks the service, once."""
    data_source_type: DataSourceType | None = None
    """`CUSTOM` or `S3` for a writable store; `OTHER` is read-only."""
    data_source_id: str | None = None
    s3: BedrockKnowledgeBaseS3Config | Mapping[str, Any] | None = None
    """The settings of an S3 data source; None for another one."""
    scope_metadata_key: str | None = None
    """The metadata key that holds an entry's scope; `namespace` when None."""
    runtime_client: Any = None
    """A boto3 client of `bedrock-agent-runtime`, whose credentials, region and endpoint are used for searches. Requests
    go through Repertory's own clients; an object that is no client of botocore is called itself, in a thread.
    """
    agent_client: Any = None
    """The same for `bedrock-agent`, which is used for writes."""
    region_name: str | None = None
    boto_session: Any = field(default=None, repr=False)
    """A boto3 session, whose credentials and region are used."""
    boto_client_config: Any = field(default=None, repr=False)
    """A botocore `Config`, which overrides ours."""
    endpoint_url: str | None = field(default=None, repr=False)
    """The URL of a service that speaks both protocols of Bedrock."""


class BedrockKnowledgeBaseStore(KnowledgeBaseMemory, CompleteStore):
    """A memory store in a knowledge base of Amazon Bedrock: pass it to `MemoryManager(stores=[...])`, or use it alone.

    See `KnowledgeBaseMemory` for its methods. Nothing is connected before the first search or write, so an agent can be
    built without a network. It needs bedrock:Retrieve; for writes bedrock:IngestKnowledgeBaseDocuments and
    bedrock:StartIngestionJob; bedrock:GetKnowledgeBase when the kind of the knowledge base is not given and is not
    `VECTOR`; s3:PutObject for an S3 data source (`docs/reference/aws-permissions.md`).
    """

    def __init__(
        self,
        *,
        name: str,
        config: BedrockKnowledgeBaseConfig | Mapping[str, Any],
        description: str | None = None,
        max_search_results: int | None = None,
        writable: bool = False,
        extraction: object = None,
        scope: str | None = None,
        filter: Mapping[str, Any] | None = None,
        access_control_list: Sequence[Mapping[str, str]] | None = None,
        min_score: float | None = None,
        max_score: float | None = None,
        timeout_s: float = 8.0,
    ) -> None:
        """
        Args:
            config: The knowledge base.
            scope: The owner of these memories; searches find only entries of this scope, and new entries get it.
            filter: Replaces the scope in searches, in the syntax of Retrieve.
            access_control_list: The readers of new entries, for data sources that require it: `access` (`ALLOW` or
                `DENY`), `name` and `type` (`USER`) each.
            min_score: The bound of a result's score; only one of them, since in a knowledge base either high scores are
                good or low ones.
            max_score: The bound of a result's score; only one of them, since in a knowledge base either high scores are
                good or low ones.
            timeout_s: Seconds for which a request is tried again while the service is throttled or cannot be reached.
            name: The store's name, unique in its manager.
            description: The store's contents, in words for the model.
            max_search_results: The most entries of a search; None for the manager's number.
            writable: True if entries can be added.
            extraction: An `ExtractionConfig`; True for its defaults, None or False for no extraction.

        Raises:
            Invalid: For bad or unknown settings. Correct the argument.
            ImportError: If the extra is missing. Install what the message names.
        """
        connection = read_options(BedrockKnowledgeBaseConfig, config, "config")
        _one_of(connection.data_source_type, DataSourceType, "data_source_type")
        if min_score is not None and max_score is not None:
            raise Invalid("min_score and max_score are mutually exclusive", min_score=min_score, max_score=max_score)
        patience = RetryPolicy(timeout_s=timeout_s, first_delay_s=0.2)
        settings = KnowledgeBaseSettings(
            name=check_id(name, "store name"),
            description=description,
            max_search_results=None if max_search_results is None else check_result_count(max_search_results),
            extraction=extraction,
            knowledge_base_id=_knowledge_base_id(connection),
            kind=_one_of(connection.knowledge_base_type, KnowledgeBaseKind, "knowledge_base_type"),
            source=_source(connection, patience) if writable else None,
            scope=scope or None,
            scope_key=connection.scope_metadata_key or "namespace",
            results_filter=filter,
            access=[_access(entry) for entry in access_control_list or ()],
            bounds=ScoreBounds(min_score=min_score, max_score=max_score),
            retrieving=_aws(connection, connection.runtime_client, connection.endpoint_url),
            managing=_aws(connection, connection.agent_client, connection.endpoint_url),
            patience=patience,
        )
        super().__init__(settings, entropy=os.urandom)
        self.scope_metadata_key = settings.scope_key
        """The metadata key that holds an entry's scope."""
        self.filter = filter
        self.access_control_list = None if access_control_list is None else [dict(each) for each in access_control_list]
        self.min_score = min_score
        self.max_score = max_score


def _knowledge_base_id(config: BedrockKnowledgeBaseConfig) -> str:
    if not config.knowledge_base_id:
        raise Invalid("config names a knowledge_base_id")
    return config.knowledge_base_id


def _one_of(given: T, allowed: object, what: str) -> T:
    if given is not None and given not in get_args(allowed):
        raise Invalid(f"there is no such {what}", got=given, known=get_args(allowed))
    return given


def _source(config: BedrockKnowledgeBaseConfig, retry_policy: RetryPolicy) -> CustomSource | S3Source:
    kind = config.data_source_type
    if kind not in ("CUSTOM", "S3"):
        raise Invalid(_READ_ONLY, data_source_type=kind)
    if not config.data_source_id:
        raise Invalid("data_source_id is required in config with writable=True")
    if kind == "CUSTOM":
        return CustomSource(data_source_id=config.data_source_id)
    s3 = read_options(BedrockKnowledgeBaseS3Config, config.s3, "config s3")
    if not s3.bucket or s3.prefix is None:
        raise Invalid("s3 config is required, with a bucket and a prefix: config={..., 's3': {...}}")
    folder = s3.prefix.strip("/")
    uri = "/".join(["s3:/", s3.bucket, *([folder] if folder else []), ""])
    if len(uri) - len("s3://") + _NAME_CHARS > URI_CHARS_MAX:
        raise Invalid("bucket and prefix are too long for a knowledge base", uri=uri, chars_max=URI_CHARS_MAX)
    return S3Source(
        data_source_id=config.data_source_id, uri=uri, open_objects=partial(_open_objects, s3, config, retry_policy)
    )


def _open_objects(
    s3: BedrockKnowledgeBaseS3Config, config: BedrockKnowledgeBaseConfig, patience: RetryPolicy
) -> ObjectStore:
    from repertory.backends.objects.s3 import S3ObjectStore  # loaded when used

    return S3ObjectStore(
        cast("str", s3.bucket),
        cast("str", s3.prefix),
        writer=os.urandom(8).hex(),
        aws=_aws(config, s3.client, s3.endpoint_url),
        retry_policy=patience,
        content_type="text/plain; charset=utf-8",
        kms_key_id=s3.kms_key_id,
    )


def _aws(config: BedrockKnowledgeBaseConfig, client: Any, endpoint_url: str | None) -> AwsSettings:
    """The connection of the given client, if any; otherwise the settings' or the environment's."""
    if client is not None and not hasattr(client, "meta"):
        raise Invalid("a client is one of boto3", got=type(client).__name__)
    return AwsSettings(
        region_name=config.region_name if client is None else None,
        boto_session=config.boto_session if client is None else LendingClient(client),
        endpoint_url=endpoint_url if client is None else client.meta.endpoint_url,
        boto_client_config=config.boto_client_config,
        connect_timeout_s=5.0,
        read_timeout_s=20.0,
    )


def _access(entry: object) -> AccessControlEntry:
    named: Mapping[str, object] = cast("Mapping[str, object]", entry) if isinstance(entry, Mapping) else {}
    access, name, kind = (named.get(key) for key in ("access", "name", "type"))
    if len(named) != 3 or access not in ("ALLOW", "DENY") or not isinstance(name, str) or not isinstance(kind, str):
        msg = "an entry of access_control_list has an access (ALLOW or DENY), a name and a type (USER)"
        raise Invalid(msg, got=dict(named))
    return AccessControlEntry(access=cast("str", access), name=name, type=kind)
