"""`runtime.results_cache` and what Spice.ai calls it."""

import pytest

from runtimeconf.model import ResultsCacheConfig
from tests.runtimeconf.configurations import Load

SPICE = "item_ttl: 1s, eviction_policy: lru, cache_key_type: plan, encoding: zstd, hashing_algorithm: xxh3"


@pytest.mark.parametrize(
    ("text", "expected", "notes"),
    [
        ("caching: {sql_results: {}}", ResultsCacheConfig(enabled=True), 1),
        ("caching: {}", ResultsCacheConfig(), 1),
        (
            f"caching: {{sql_results: {{enabled: false, max_size: 1MiB, {SPICE}}}}}",
            ResultsCacheConfig(enabled=False, max_bytes=1024 * 1024),
            6,
        ),
        (
            f"results_cache: {{enabled: true, cache_max_size: 1MiB, {SPICE}}}",
            ResultsCacheConfig(enabled=True, max_bytes=1024 * 1024),
            5,
        ),
    ],
)
def test_spicepods_configure_the_cache(load_text: Load, text: str, expected: ResultsCacheConfig, notes: int) -> None:
    config = load_text(f"runtime: {{{text}}}\n")

    assert config.results_cache == expected
    (warning,) = config.warnings
    assert f": {notes} field" in warning
