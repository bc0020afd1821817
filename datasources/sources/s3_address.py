"""The address of a bucket of S3, or of a compatible server."""

import re
from collections.abc import Mapping

DEFAULT_REGION = "us-east-1"


def address_of(bucket: str, params: Mapping[str, str]) -> tuple[str, str]:
    """
    Return the origin of *bucket*, and the path of its keys.

    On Amazon's hosts the bucket is part of the host name, unless it contains a dot, which no certificate covers; on
    other servers it is part of the path.
    """
    region = params.get("s3_region", DEFAULT_REGION)
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    origin = params.get("s3_endpoint", f"https://s3.{region}.{domain}")
    fits_host = re.fullmatch(r"[a-z0-9-]+", bucket) is not None
    style = params.get("s3_url_style", "vhost" if fits_host and "s3_endpoint" not in params else "path")
    if style == "path":
        return origin, f"/{bucket}"
    scheme, _, host = origin.partition("://")
    return f"{scheme}://{bucket}.{host}", ""
