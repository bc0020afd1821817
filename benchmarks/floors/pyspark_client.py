"""
pyspark's Spark Connect client, which runs in the peers' virtual environment.

It reads a JSON object on each line: the first one has the `url` of the cluster, the `tables` with their files, and
whether it may respond with `gzip`. Every other object is a statement. The response is a line with `seconds` and `rows`.
"""

import json
import sys
import time

from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.session import SparkSession


def main() -> None:
    task = json.loads(sys.stdin.readline())
    options = [] if task["gzip"] else [("grpc.compression_enabled_algorithms_bitset", 1)]
    session = SparkSession.builder.channelBuilder(DefaultChannelBuilder(task["url"], options)).create()
    for name, path in task["tables"].items():
        session.read.parquet(path).createOrReplaceTempView(name)
    _answer(0.0, 0)
    for line in sys.stdin:
        began = time.perf_counter()
        count = session.sql(json.loads(line)).toArrow().num_rows
        _answer(time.perf_counter() - began, count)


def _answer(seconds: float, rows: int) -> None:
    print(json.dumps({"seconds": seconds, "rows": rows}), flush=True)


if __name__ == "__main__":
    main()
