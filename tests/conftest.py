"""What holds for all tests."""

import itertools
import os
import signal
import socket
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import trustme
from hypothesis import HealthCheck, settings

from tests.journal import Journal

pytest_plugins = ["tests.levels"]

# Tests start programs from processes that use gRPC; its handlers of a fork are for children that go on using it.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# A shell starts what runs in the background with Ctrl-C ignored, and a program inherits that from the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the other processes of the machine than about the code. `make test` and
# `make test-all` run the same examples each time, few and many; `--hypothesis-profile=new` searches for new ones.
settings.register_profile("new", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", settings.get_profile("new"), derandomize=True)
settings.register_profile("few", settings.get_profile("full"), max_examples=20)
settings.load_profile("few")

#: Packages that clients of the tests need, and that requirements/base.txt does not have.
NOT_INSTALLED = Path(__file__).parent / "data" / "not_installed"


@pytest.fixture(scope="session", autouse=True)
def _programs_see_what_is_installed() -> Iterator[None]:
    """
    Start programs without numpy and pandas, as a user does.

    Where they are, pyarrow loads both in every process: a fifth of the time that a runtime takes to start.
    """
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", str(NOT_INSTALLED), prepend=os.pathsep)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Record what runs and what fails, if a file for it is named. A worker of xdist leaves this to its controller."""
    if (path := os.environ.get("TEST_JOURNAL")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Journal(Path(path)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped where CI is set: what it needs has to be installed there."""
    report = yield
    if report.skipped and "CI" in os.environ and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report


_numbers = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a short path, whatever the test is called: that of a Unix socket has 107 bytes at most."""
    return tmp_path_factory.mktemp(f"t{next(_numbers)}", numbered=False)


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that clients can trust, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    issued.private_key_pem.write_to_path(key)
    # Chain and root in one file: a server's certificate file, and what a client has to trust.
    for pem in (*issued.cert_chain_pems, authority.cert_pem):
        pem.write_to_path(certificate, append=True)
    key.chmod(0o600)
    return certificate, key


@pytest.fixture(scope="module")
def trap() -> Iterator[str]:
    """The address of a listener that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BlockingIOError):
            listener.accept()
