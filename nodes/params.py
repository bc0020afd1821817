"""The parameters of the shared snapshot storage: a bucket on S3 or a compatible server."""

import re

from runtimeconf.connector import Package, SnapshotStore
from runtimeconf.fields import InvalidValueError
from runtimeconf.s3_params import S3Params, parse_location

#: A segment of the prefix. It also becomes part of URLs, where clusters interpret other characters differently.
_PART = re.compile(r"[A-Za-z0-9._=-]+")


def _locate(text: str) -> str:
    bucket, prefix = parse_location(text.removeprefix("s3:"))
    parts = prefix.strip("/").split("/")
    if not all(_PART.fullmatch(part) and part not in {".", ".."} for part in parts):
        raise InvalidValueError("a dedicated prefix after the bucket: letters, digits and . _ = - between slashes")
    return f"s3://{bucket}/{'/'.join(parts)}"


class NodeParams(S3Params):
    """The parameters of a bucket that every node writes to."""

    def problem(self, location: str) -> str | None:
        """Refuse missing credentials and everything that the connector refuses; see `Params.problem`."""
        problem = super().problem(location)
        if problem is None and self.s3_key is None and self.s3_auth != "iam_role":
            return (
                "lacks credentials, which every node needs for writing: set s3_key and s3_secret, or s3_auth: iam_role"
            )
        return problem


S3 = SnapshotStore(
    locate=_locate,
    params=NodeParams,
    node="nodes.node:Node",
    # Only the refresh process imports it.
    packages=(Package("obstore", "obstore~=0.12"),),
)
