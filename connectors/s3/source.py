"""`s3:` sources: objects of S3, or of a compatible server."""

from connectors.objects import ObjectSource
from connectors.s3.params import S3FileParams
from connectors.s3_bucket import S3Bucket
from datasources.deadline import Deadline


class S3Source(ObjectSource[S3FileParams]):
    """Objects of S3."""

    def _store(self, deadline: Deadline) -> S3Bucket:
        return S3Bucket(self._name, self._params, deadline)
