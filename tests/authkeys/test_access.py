from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from authkeys import access
from authkeys.authentication import challenge
from authkeys.credentials import Absent, Credential, Malformed, Presented, Reason
from authkeys.errors import SaltError
from authkeys.keys import KeySet
from authkeys.principal import ANONYMOUS, Principal
from authkeys.salt import SALT_NAME
from runtimeconf.model import AuthConfig, RuntimeConfig
from runtimeconf.secret import Secret
from system.errors import StateDirectoryError

KEY = "k1-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE"


def config_in(directory: Path, enabled: bool = True, compatibility: Literal["2.0", "1.10"] = "2.0") -> RuntimeConfig:
    return RuntimeConfig(
        file=directory / "runtime.yaml",
        state_dir=directory / "state",
        auth=AuthConfig(enabled=enabled, keys=(Secret(KEY),) if enabled else ()),
        compatibility=compatibility,
    )


def test_build_creates_the_state_directory_and_the_salt(tmp_path: Path) -> None:
    built = access.build(config_in(tmp_path))

    assert built.key_set is not None
    assert built.key_set.find(KEY) is not None
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / SALT_NAME).exists()


def test_fingerprints_survive_a_restart(tmp_path: Path) -> None:
    first, second = (access.build(config_in(tmp_path)).key_set for _ in range(2))

    assert first is not None
    assert second is not None
    assert first.fingerprints() == second.fingerprints()


def test_off_creates_nothing_on_disk(tmp_path: Path) -> None:
    config = config_in(tmp_path, enabled=False, compatibility="1.10")

    assert access.build(config) == access.Access(key_set=None, compatibility="1.10")
    assert list(tmp_path.iterdir()) == []


def test_a_state_directory_that_cannot_be_made_stops_it(tmp_path: Path) -> None:
    (tmp_path / "state").touch()

    with pytest.raises(StateDirectoryError):
        access.build(config_in(tmp_path))


def test_a_damaged_salt_stops_it(tmp_path: Path) -> None:
    access.build(config_in(tmp_path))
    (tmp_path / "state" / SALT_NAME).write_bytes(b"short")

    with pytest.raises(SaltError):
        access.build(config_in(tmp_path))


@pytest.mark.parametrize(
    ("compatibility", "presented", "header"),
    [
        ("2.0", False, 'Bearer realm="querykeep"'),
        ("2.0", True, 'Bearer realm="querykeep", error="invalid_token"'),
        ("1.10", False, 'ApiKey realm="querykeep"'),
        ("1.10", True, 'ApiKey realm="querykeep", error="invalid_token"'),
    ],
)
def test_challenge(compatibility: Literal["2.0", "1.10"], presented: bool, header: str) -> None:
    open_access = access.Access(key_set=None, compatibility=compatibility)

    assert challenge(open_access, presented=presented) == header


def test_compatibility_1_10_ignores_bearer() -> None:
    old, new = (access.Access(key_set=None, compatibility=version) for version in ("1.10", "2.0"))

    assert old.credential(None, f"Bearer {KEY}") == Absent()
    assert old.credential(KEY, None) == Presented(KEY)
    assert new.credential(None, f"Bearer {KEY}") == Presented(KEY)


@pytest.mark.parametrize(
    ("credential", "expected"),
    [
        pytest.param(Absent(), Reason.MISSING, id="absent"),
        pytest.param(Malformed(Reason.REPEATED), Reason.REPEATED, id="malformed"),
        pytest.param(Presented(KEY[:-1]), Reason.UNKNOWN, id="unknown"),
        pytest.param(Presented(""), Reason.UNKNOWN, id="empty"),
        pytest.param(Presented(KEY), None, id="accepted"),
    ],
)
def test_one_decision_on_a_credential(credential: Credential, expected: Reason | None) -> None:
    key_set = KeySet([Secret(KEY)], bytes(32))

    caller = access.Access(key_set=key_set).authenticate(credential)

    assert caller == (expected or Principal(key_set.fingerprints()[0]))
    assert access.Access(key_set=None).authenticate(credential) == ANONYMOUS


@pytest.mark.parametrize("enabled", [True, False])
def test_another_process_decides_alike(tmp_path: Path, enabled: bool) -> None:
    config = config_in(tmp_path, enabled=enabled, compatibility="1.10")
    built = access.build(config)
    without_keys = replace(config, auth=AuthConfig(enabled=enabled))

    other = access.from_handover(without_keys, access.handover(built))

    assert other.compatibility == built.compatibility
    assert (other.key_set is None) is (built.key_set is None)
    if other.key_set is not None:
        assert other.key_set.find(KEY) is not None


@pytest.mark.parametrize("enabled", [True, False])
def test_a_handover_of_another_configuration_is_refused(tmp_path: Path, enabled: bool) -> None:
    fields = access.handover(access.build(config_in(tmp_path, enabled=enabled)))

    with pytest.raises(ValueError, match="another configuration"):
        access.from_handover(config_in(tmp_path, enabled=not enabled), fields)
