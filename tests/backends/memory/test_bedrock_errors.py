"""What a knowledge base refuses, as errors of ours."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, NoCredentialsError, NoRegionError, ParamValidationError

from repertory.backends.memory.bedrock import KNOWLEDGE_BASE_ERRORS
from repertory.errors import Failed, Invalid, LimitReached, NotFound, RepertoryError, Throttled, Unavailable

WHERE = {"knowledge_base_id": "KB"}


def refused(code: str, status: int, message: str = "injected") -> ClientError:
    said = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(said, "Retrieve")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "ours", "match"),
    [
        (refused("ThrottlingException", 429), Throttled, "fewer requests"),
        (refused("InternalServerException", 500), Unavailable, "not available"),
        (refused("BadGatewayException", 502), Unavailable, "not available"),
        (refused("ConflictException", 409), Unavailable, "not ready"),
        (refused("DependencyFailedException", 424), Unavailable, "not ready"),
        (refused("ValidationException", 400, "resuming after being auto-paused"), Unavailable, "not ready"),
        (refused("ResourceNotFoundException", 404), NotFound, "check their ids"),
        (refused("ServiceQuotaExceededException", 402), LimitReached, "quota"),
        (refused("AccessDeniedException", 403), Failed, "bedrock:Retrieve"),
        (refused("ExpiredTokenException", 403), Failed, "aws sso login"),
        (refused("ValidationException", 400), Failed, "injected"),
        (refused("ValidationException", 400, "AccessControlList is missing"), Invalid, "access_control_list"),
        (NoCredentialsError(), Invalid, "AWS_ACCESS_KEY_ID"),
        (NoRegionError(), Invalid, "AWS_REGION"),
        (ParamValidationError(report="no such filter"), Invalid, "no such filter"),
    ],
    ids=str,
)
def test_what_a_knowledge_base_refuses_says_what_to_do_next(
    error: Exception, ours: type[RepertoryError], match: str
) -> None:
    found = KNOWLEDGE_BASE_ERRORS.from_foreign(error, WHERE)
    assert type(found) is ours
    assert match in str(found)
    assert found.fields["knowledge_base_id"] == "KB"
