"""`s3:` sources: objects in S3 or on a compatible server."""

from connectors.objects import ObjectSource
from connectors.s3.params import S3FileParams
from connectors.s3_bucket import S3Bucket
from datasources.deadline import Deadline


class S3Source(ObjectSource[S3FileParams]):
    """Objects in S3."""

    def _store(self, deadline: Deadline) -> S3Bucket:
        return S3Bucket(self._name, self._params, deadline)
