"""The parameters of `delta:`: a Delta Lake table on disk or in S3."""

from connectors.lake_params import LAKE_SIGNER, locate_lake
from runtimeconf.connector import Connector, Package
from runtimeconf.s3_params import S3Params

DELTA = Connector(
    expected="the directory of a table, or s3://bucket/prefix",
    locate=locate_lake,
    params=S3Params,
    source="connectors.delta.source:DeltaSource",
    packages=(Package("deltalake", "deltalake~=1.6"), LAKE_SIGNER),
    formats_in_place=("delta",),
)
