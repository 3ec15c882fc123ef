"""What an object store refused or failed at, in words: what, where, which request, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.errors import ClozelineError, LastingStorageError, StorageError

_KEYS = (
    "correct the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the "
    "files in ~/.aws)"
)
_RIGHTS = "give these credentials the right to {action} there, or take others"
_BUSY = "the store is too busy or broken: run the command again later, or with fewer workers"
_REGION = "set the bucket's own region (AWS_REGION or AWS_DEFAULT_REGION, or `region`)"
_REMEDIES = {
    "AccessDenied": _RIGHTS,
    "301": _REGION,
    "403": f"{_RIGHTS}, or {_KEYS}",  # a HEAD has no body that could say which
    "AuthorizationHeaderMalformed": _REGION,
    "ConditionalRequestConflict": _BUSY,
    "EntityTooLarge": "lower what makes it so large, such as `instances.rows_per_shard`",
    "ExpiredToken": f"the session is over: {_KEYS}",
    "IllegalLocationConstraintException": _REGION,
    "InternalError": _BUSY,
    "InvalidAccessKeyId": _KEYS,
    "InvalidToken": _KEYS,
    "NoSuchBucket": "create the bucket, or correct the URI or the endpoint (AWS_ENDPOINT_URL)",
    "NotImplemented": "the store lacks what this needs (conditional writes, multipart uploads); "
    "use one that has them",
    "PermanentRedirect": _REGION,
    "PreconditionFailed": "it was changed while it was read; leave it as it is while a job runs, "
    "and run the command again",
    "QuotaExceeded": "free space in the store, then run the command again",
    "RequestTimeTooSkewed": "set this machine's clock",
    "SignatureDoesNotMatch": _KEYS,
    "SlowDown": _BUSY,
    "ServiceUnavailable": _BUSY,
}
_ABSENT = (
    "it was removed, or made by a stage that is not finished: check with `python -m pipeline "
    "verify`, and run its stage again"
)
_UNKNOWN = "check the bucket, the credentials' rights and the endpoint"
_UNREACHED = (
    "see whether the endpoint is right (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or `endpoint_url`) "
    "and answers, then run the command again"
)
_SETTINGS = "correct the AWS variables or the files in ~/.aws"
# What was wrong before anything was sent.
_LOCAL_FAILURES = {
    "NoCredentialsError": _KEYS,
    "PartialCredentialsError": _KEYS,
    "CredentialRetrievalError": _KEYS,
    "TokenRetrievalError": _KEYS,
    "UnauthorizedSSOTokenError": "log in again (aws sso login)",
    "SSOTokenLoadError": "log in again (aws sso login)",
    "ProfileNotFound": "correct AWS_PROFILE, or add the profile to ~/.aws/config",
    "NoRegionError": _REGION,
    "InvalidRegionError": _REGION,
    "ParamValidationError": "correct the URI",
}
# The same request meets them again, whoever sends it and when.
_LASTING = (
    "301",
    "403",
    "AccessDenied",
    "AllAccessDisabled",
    "AuthorizationHeaderMalformed",
    "EntityTooLarge",
    "ExpiredToken",
    "IllegalLocationConstraintException",
    "InvalidAccessKeyId",
    "InvalidBucketName",
    "InvalidObjectState",
    "InvalidToken",
    "MethodNotAllowed",
    "NoSuchBucket",
    "NotImplemented",
    "PermanentRedirect",
    "SignatureDoesNotMatch",
)
# Where a machine's own service gives them out, it may not have answered.
_PASSING_FAILURES = ("NoCredentialsError", "CredentialRetrievalError", "TokenRetrievalError")


@contextmanager
def explained(
    what: str,
    action: str,
    failure: type[ClozelineError] = StorageError,
    absent: str = _ABSENT,
) -> Iterator[None]:
    """Turn an object store's errors inside the block into `failure`, with a remedy.

    A StorageError that lasts is a LastingStorageError. `absent` is what to do if there is no such
    object.

    Every message has the request id by which the store's own log can be searched; "none" where
    nothing was answered, or without an id.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        lasts = is_absent(error) or error_code(error) in _LASTING
        raise _kind(failure, lasts)(_refusal(error, what, action, absent)) from error
    except (BotoCoreError, HTTPError, ValueError) as error:
        # boto3 raises ValueError for an endpoint that is no URL; else it would be a fault of ours.
        if isinstance(error, ValueError) and "endpoint" not in str(error):
            raise
        name = type(error).__name__
        settings = name.startswith(("Invalid", "Config", "Unknown", "ValueError"))
        remedy = _LOCAL_FAILURES.get(name, _SETTINGS if settings else _UNREACHED)
        lasts = remedy != _UNREACHED and name not in _PASSING_FAILURES
        raise _kind(failure, lasts)(
            f"{what}: cannot {action}: {str(error).rstrip('.')} (request id none); {remedy}"
        ) from error


def _kind(failure: type[ClozelineError], lasts: bool) -> type[ClozelineError]:
    return LastingStorageError if lasts and failure is StorageError else failure


def error_code(error: Any) -> str:
    """Return the code of a ClientError, "" if the store gave none."""
    return str(error.response.get("Error", {}).get("Code", ""))


def is_absent(error: Any) -> bool:
    """Say whether a ClientError means that there is no such object."""
    return error_code(error) in ("404", "NoSuchKey", "NotFound")


def lost_race(error: Any) -> bool:
    """Say whether S3 refused a conditional write because of what another wrote.

    NoSuchUpload is what a repeated completion may get, when only the first answer was lost.
    """
    return error_code(error) in (
        "PreconditionFailed",
        "ConditionalRequestConflict",
        "412",
        "NoSuchUpload",
    )


def _refusal(error: Any, what: str, action: str, absent: str) -> str:
    answer = error.response.get("ResponseMetadata", {})
    code = error_code(error) or str(error)
    status = int(answer.get("HTTPStatusCode", 0))
    remedy = _REMEDIES.get(code, _BUSY if status >= 500 else _UNKNOWN)
    if is_absent(error):
        remedy = absent
    attempts = int(answer.get("RetryAttempts", 0)) + 1
    times = f" after {attempts} attempts" if attempts > 1 else ""
    request = answer.get("RequestId") or "none"
    return (
        f"{what}: cannot {action}: {code}{times} (request id {request}); "
        f"{remedy.format(action=action)}"
    )
