"""A handover arrives unchanged, and never holds a secret."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeconf import handover
from runtimeconf.model import (
    AccelerationConfig,
    AuthConfig,
    DatasetConfig,
    FlightConfig,
    HttpConfig,
    IndexConfig,
    QueryConfig,
    ResultsCacheConfig,
    RuntimeConfig,
    TlsConfig,
    ViewConfig,
)
from runtimeconf.secret import Secret
from system.addresses import Address
from tests.open_files import open_files

TEXTS = st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=20)
NUMBERS = st.integers(min_value=0, max_value=2**62)
SECONDS = st.floats(min_value=0.001, allow_infinity=False) | NUMBERS
PATHS = TEXTS.map(lambda text: Path("/", text.replace("\0", "")))
ADDRESSES = st.builds(Address, TEXTS, NUMBERS)
ACCELERATIONS = st.builds(
    AccelerationConfig,
    enabled=st.booleans(),
    refresh_mode=st.sampled_from(["full", "append"]),
    refresh_check_interval_s=st.none() | SECONDS,
    refresh_timeout_s=SECONDS,
    refresh_sql=st.none() | TEXTS,
    primary_key=st.none() | TEXTS,
    indexes=st.lists(st.builds(IndexConfig, column=TEXTS, unique=st.booleans()), max_size=3).map(tuple),
)
DATASETS = st.builds(
    DatasetConfig,
    name=TEXTS,
    from_=TEXTS,
    location=TEXTS,
    on_schema_change=st.sampled_from(["fail", "accept"]),
    time_column=st.none() | TEXTS,
    params=st.dictionaries(TEXTS, TEXTS, max_size=3),
    acceleration=ACCELERATIONS,
    line=NUMBERS,
    yaml_path=TEXTS,
)
CONFIGS = st.builds(
    RuntimeConfig,
    file=PATHS,
    state_dir=PATHS,
    name=st.none() | TEXTS,
    auth=st.builds(AuthConfig, enabled=st.booleans(), keys=st.just(())),
    http=st.builds(
        HttpConfig,
        bind=ADDRESSES,
        max_body_bytes=NUMBERS,
        allowed_hosts=st.none() | st.lists(TEXTS, max_size=3).map(tuple),
    ),
    flight=st.builds(FlightConfig, enabled=st.booleans(), bind=ADDRESSES, max_message_bytes=NUMBERS),
    tls=st.builds(TlsConfig, enabled=st.booleans(), certificate_file=st.none() | PATHS, key_file=st.none() | PATHS),
    query=st.builds(
        QueryConfig,
        timeout_s=SECONDS,
        memory_limit_bytes=NUMBERS,
        workers=NUMBERS,
        max_queued=NUMBERS,
        queue_timeout_s=SECONDS,
        temp_directory_limit_bytes=NUMBERS,
    ),
    results_cache=st.builds(ResultsCacheConfig, enabled=st.booleans(), max_bytes=NUMBERS),
    shutdown_timeout_s=SECONDS,
    compatibility=st.sampled_from(["2.0", "1.10"]),
    datasets=st.lists(DATASETS, max_size=3).map(tuple),
    views=st.lists(st.builds(ViewConfig, name=TEXTS, sql=TEXTS, line=NUMBERS, yaml_path=TEXTS), max_size=3).map(tuple),
    warnings=st.lists(TEXTS, max_size=3).map(tuple),
)
EXTRAS = st.dictionaries(TEXTS, st.none() | st.booleans() | NUMBERS | TEXTS | st.lists(TEXTS, max_size=3), max_size=3)
MINIMAL = RuntimeConfig(file=Path("/runtime.yaml"), state_dir=Path("/state"))


@contextmanager
def written(config: RuntimeConfig, extra: dict[str, Any]) -> Iterator[int]:
    descriptor = handover.write(config, extra)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@given(CONFIGS, EXTRAS)
def test_everything_arrives_as_it_was(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    with written(config, extra) as descriptor:
        assert handover.read(descriptor) == (config, extra)
        assert handover.read(descriptor) == (config, extra)


def test_a_long_handover_arrives_whole() -> None:
    extra = {"digests": ["0" * 64] * 50_000}

    with written(MINIMAL, extra) as descriptor:
        assert handover.read(descriptor) == (MINIMAL, extra)


def test_another_program_reads_it() -> None:
    program = "import sys; from runtimeconf import handover; print(handover.read(int(sys.argv[1])))"

    with written(MINIMAL, {"a": 1}) as descriptor:
        done = subprocess.run(
            [sys.executable, "-c", program, str(descriptor)],
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            check=True,
        )

    assert done.stdout.strip() == repr((MINIMAL, {"a": 1}))


def test_a_written_handover_is_immutable() -> None:
    with written(MINIMAL, {}) as descriptor, pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 0)


def test_programs_that_are_not_meant_do_not_inherit_it() -> None:
    with written(MINIMAL, {}) as descriptor:
        assert not os.get_inheritable(descriptor)


def test_keys_are_refused() -> None:
    config = dataclasses.replace(MINIMAL, auth=AuthConfig(enabled=True, keys=(Secret("canary"),)))
    before = len(open_files("memfd"))

    with pytest.raises(TypeError, match="cannot be handed over"):
        handover.write(config, {})
    with pytest.raises(TypeError):
        handover.write(MINIMAL, {"a": object()})

    assert len(open_files("memfd")) <= before


def test_a_part_without_sources_has_no_secret_of_them() -> None:
    dataset = DatasetConfig(name="d", from_="s3://canary", location="/canary", params={"token": "canary"}, line=3)
    auth = AuthConfig(enabled=True, keys=(Secret("canary"),))
    config = dataclasses.replace(MINIMAL, datasets=(dataset,), auth=auth)

    stripped = handover.without_sources(config)

    with written(stripped, {}) as descriptor:
        assert b"canary" not in os.pread(descriptor, 100_000, 0)
    assert stripped.auth == AuthConfig(enabled=True)
    assert [(other.name, other.line) for other in stripped.datasets] == [("d", 3)]


def test_an_unsupported_type_is_an_error() -> None:
    with pytest.raises(TypeError, match="cannot be handed over"):
        handover.rebuilt(list[int], [1])
