"""`runtime.results_cache`, and Spice.ai's `runtime.caching.sql_results`, which has the same meaning."""

from typing import Any

from runtimeconf.fields import BooleanField, ChoiceField, DurationField, Section, Setting, SizeField
from runtimeconf.model import ResultsCacheConfig
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping

_ONE_KIND = "It has no effect: there is only one kind of cache."
_NEVER_STALE = "It has no effect: results are cached until new data is published."


def _build(values: dict[str, Any], _node: Mapping, _path: YamlPath) -> ResultsCacheConfig:
    # The other settings are validated too. Their notes say that they have no effect.
    kept = {name: value for name, value in values.items() if name in {"enabled", "max_bytes"}}
    return ResultsCacheConfig(**{"enabled": True, **kept})


_SIZE = SizeField("64KiB", "1TiB")

#: The Spice.ai settings other than `enabled` and the size.
_WITHOUT_EFFECT = (
    Setting("item_ttl", DurationField("0s", "365d"), note=_NEVER_STALE),
    Setting("stale_while_revalidate_ttl", DurationField("0s", "365d"), note=_NEVER_STALE),
    Setting("eviction_policy", ChoiceField("lru", "tiny_lfu"), note=_ONE_KIND),
    Setting("hashing_algorithm", ChoiceField("siphash", "ahash", "xxh3", "xxh32", "xxh64", "xxh128"), note=_ONE_KIND),
    Setting("cache_key_type", ChoiceField("plan", "sql"), note=_ONE_KIND),
    Setting("encoding", ChoiceField("none", "zstd"), note=_ONE_KIND),
)


RESULTS_CACHE = Section(
    _build,
    Setting("enabled", BooleanField(), is_required=True),
    Setting("max_bytes", _SIZE, alias="cache_max_size"),
    *_WITHOUT_EFFECT,
    may_be_empty=False,
)

_SQL_RESULTS = Section(
    _build,
    Setting("enabled", BooleanField()),
    Setting("max_size", _SIZE, attribute="max_bytes"),
    *_WITHOUT_EFFECT,
)

CACHING = Section[ResultsCacheConfig](
    lambda values, _node, _path: values.get("sql_results"),
    Setting("sql_results", _SQL_RESULTS),
    unavailable={
        "embeddings": "Remove it: there are no embeddings.",
        "search_results": "Remove it: there is no search.",
    },
)
