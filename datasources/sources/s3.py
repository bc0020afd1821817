"""`s3:` sources: objects of S3, or of a compatible server."""

from datasources.deadline import Deadline
from datasources.sources.objects import ObjectSource, Store
from datasources.sources.s3_bucket import S3Bucket


class S3Source(ObjectSource):
    """Objects of S3."""

    def _store(self, deadline: Deadline) -> Store:
        return S3Bucket(self._name, self._params, deadline)
