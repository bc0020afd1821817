"""The parameters of `s3:`: objects in a bucket on S3 or a compatible server."""

from pathlib import Path

from runtimeconf.connector import Connector
from runtimeconf.file_formats import EXCEL, DownloadParams
from runtimeconf.s3_params import SIGNER, S3Params, parse_location


class S3FileParams(DownloadParams, S3Params):
    """The bucket's location and the file options."""

    def problem(self, location: str) -> str | None:
        """See `Params.problem`."""
        return S3Params.problem(self, location) or DownloadParams.problem(self, location)


def _locate(_name: str, text: str, _directory: Path) -> str:
    return "s3://" + "/".join(parse_location(text))


S3 = Connector(
    expected="a bucket with a key, a prefix or a glob, such as //bucket/data/flights.parquet",
    locate=_locate,
    params=S3FileParams,
    source="connectors.s3.source:S3Source",
    packages=(SIGNER, EXCEL),
    formats_in_place=("parquet", "csv"),
)
