"""A user's own tests and own settings, as docs/django.md shows them, in folders outside this repository."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.system.harness import REPOSITORY, run_program

PAGE = (REPOSITORY / "docs" / "django.md").read_text()

#: What a project may do without noticing: REST framework's own defaults let everybody in.
DEFAULTS_OF_OTHERS = """
INSTALLED_APPS += ["django.contrib.auth", "django.contrib.contenttypes"]
REST_FRAMEWORK = {}
"""

OWN_VIEWS = """
from rest_framework.test import APIClient


def test_what_is_whose():
    client = APIClient()
    assert client.get("/hello").content == b"hello"
    assert client.get("/nowhere").status_code == 401
    assert client.get("/nowhere", HTTP_X_API_KEY="a-key-that-only-tests-know").status_code == 404
    assert client.get("/health").content == b"ok\\n"
    assert client.post("/health").status_code == 405
"""


USERS = """
from authkeys.principal import Principal
from runtimeconf.model import Scope
from django.contrib.auth.models import User
from django.test import TestCase
from rest_framework.test import APIClient, APIRequestFactory, force_authenticate
from sqlapi.datasets import DatasetsView


class Users(TestCase):
    def setUp(self):
        self.user = User.objects.create(username="ada")

    def test_a_forced_user_has_all_rights(self):
        client = APIClient()
        client.force_authenticate(user=self.user)
        answer = client.post("/v1/sql", "SELECT count(*) AS n FROM orders", content_type="text/plain")
        self.assertEqual((answer.status_code, answer.content), (200, b'[{"n":3}]'))
        self.assertEqual(APIClient().get("/v1/datasets").status_code, 401)

    def test_a_forced_principal_has_its_own(self):
        scoped = Principal(fingerprint="test", scope=Scope(relations=frozenset({"nothing"})))
        request = APIRequestFactory().get("/v1/datasets")
        force_authenticate(request, user=scoped)
        self.assertEqual(DatasetsView.as_view()(request).content, b"[]")
        self.assertEqual(User.objects.count(), 1)
"""


def shown_files() -> dict[str, str]:
    """Return each file of the page by its name: a block that follows `The file `NAME``."""
    found = re.findall(
        r"[Tt]he file\s+`([^`]+)`[^`]*?(?:`[^`]+`[^`]*?)?:\n\n```\w+\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE
    )
    return dict(found)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files of the page, its data, and no state directory."""
    for name, text in {**shown_files(), "mine/orders.csv": "id\n1\n2\n3\n", "shop/__init__.py": ""}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "mine" / "runtime.yaml").chmod(0o600)
    return tmp_path


MANAGE = str(REPOSITORY / "manage.py")
#: The page's own tests, without a cache in the folder.
TESTS = ("-m", "pytest", "-p", "no:cacheprovider", "mine/tests")


def run(project: Path, *arguments: str, settings: str | None = None) -> subprocess.CompletedProcess[str]:
    more = {} if settings is None else {"DJANGO_SETTINGS_MODULE": settings}
    path = os.pathsep.join([str(REPOSITORY), str(project)])
    config = str(project / "mine" / "runtime.yaml")
    return run_program(*arguments, cwd=project, RUNTIME_CONFIG=config, PYTHONPATH=path, **more)


def test_the_page_shows_the_files_that_it_speaks_of() -> None:
    mine = {"mine/runtime.yaml", "mine/pytest.ini", "mine/tests/test_orders.py"}

    assert set(shown_files()) == {*mine, "shop/settings.py", "shop/urls.py"}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="in a clone"),
        pytest.param(("-p", "no:socket"), id="without the plugins of the clone", marks=pytest.mark.exhaustive),
        pytest.param(("-c", str(REPOSITORY / "pyproject.toml")), id="with its options", marks=pytest.mark.exhaustive),
    ],
)
def test_shown_test(project: Path, options: tuple[str, ...]) -> None:
    (project / "pyproject.toml").write_text((REPOSITORY / "pyproject.toml").read_text())

    done = run(project, *TESTS, *options)

    assert done.returncode == 0, done.stderr or done.stdout
    assert "2 passed" in done.stdout.splitlines()[-1]


@pytest.mark.exhaustive
def test_one_key_and_nothing_else_is_enough(project: Path) -> None:
    yaml, test = project / "mine" / "runtime.yaml", project / "mine" / "tests" / "test_orders.py"
    yaml.write_text(yaml.read_text().partition("datasets:")[0])
    test.write_text(test.read_text().replace("SELECT count(*) AS n FROM orders", "SELECT 3 AS n"))

    done = run(project, *TESTS)

    assert done.returncode == 0, done.stdout


def test_a_yaml_that_cannot_be_used_stops_the_tests_before_the_first(project: Path) -> None:
    yaml = project / "mine" / "runtime.yaml"
    yaml.write_text(yaml.read_text().replace("enabled: true", "enabled: ture"))

    done = run(project, *TESTS)

    assert done.returncode == 1
    assert "passed" not in done.stdout
    assert done.stderr.endswith("runtime.auth.api-key.enabled: must be true or false; found a string\n"), done.stderr


def test_a_project_with_a_database_tests_its_users_and_its_queries(project: Path) -> None:
    """`force_authenticate`, a `TestCase` and a database work as in any project of Django and REST framework."""
    with (project / "shop" / "settings.py").open("a") as settings:
        settings.write(DEFAULTS_OF_OTHERS)
        settings.write("DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'shop.sqlite3'}}\n")
    (project / "shop" / "test_users.py").write_text(USERS)

    tested = run(project, MANAGE, "test", "shop", settings="shop.settings")
    # There is no runtime.yaml in the folder.
    migrated = run_program(
        MANAGE, "migrate", cwd=project, PYTHONPATH=str(project), DJANGO_SETTINGS_MODULE="shop.settings"
    )

    assert (tested.returncode, "Ran 2 tests" in tested.stderr) == (0, True), tested.stderr
    assert migrated.returncode == 0, migrated.stderr
    assert f"(runtimeconf.W002) {project}/runtime.yaml: no such file" in migrated.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "more", [pytest.param("", id="as shown"), pytest.param(DEFAULTS_OF_OTHERS, id="open defaults")]
)
def test_the_shown_settings_work(project: Path, more: str) -> None:
    with (project / "shop" / "settings.py").open("a") as settings:
        settings.write(more)
    (project / "mine" / "tests" / "test_views.py").write_text(OWN_VIEWS)

    checked = run(project, MANAGE, "check", "--fail-level", "WARNING", settings="shop.settings")
    tested = run(project, *TESTS, settings="shop.settings")

    assert checked.returncode == 0, checked.stderr
    assert tested.returncode == 0, tested.stdout


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((MANAGE, "serve"), id="serve"),
        pytest.param((MANAGE, "runserver", "--noreload"), id="runserver", marks=pytest.mark.exhaustive),
        pytest.param(
            ("-m", "gunicorn", "-c", str(REPOSITORY / "gunicorn.conf.py"), "runtime_site.wsgi"), id="gunicorn"
        ),
        pytest.param(("-c", "import runtime_site.wsgi"), id="another WSGI server"),
        pytest.param((MANAGE, "runrefresh"), id="a part"),
        pytest.param((MANAGE, "check"), id="check"),
        pytest.param((MANAGE, "status"), id="a client command"),
        pytest.param((MANAGE,), id="no command"),
    ],
)
def test_absent_settings(project: Path, command: tuple[str, ...]) -> None:
    assert sentence(project, *command, settings="absent.settings") == (
        "DJANGO_SETTINGS_MODULE names absent.settings, which cannot be loaded (ModuleNotFoundError: No module named "
        "'absent'). Unset DJANGO_SETTINGS_MODULE, or set it to settings that begin with "
        "`from runtime_site.settings import *`."
    )


def test_settings_of_another_project_end_a_start_in_a_sentence(project: Path) -> None:
    (project / "other_settings.py").write_text("INSTALLED_APPS = ['django.contrib.auth']\n")

    said = sentence(project, MANAGE, "serve", settings="other_settings")

    assert said.startswith("DJANGO_SETTINGS_MODULE names other_settings, whose INSTALLED_APPS lacks runtime_site, ")


@pytest.mark.parametrize("command", ["check", "status", "help"])
def test_an_option_that_names_no_settings_ends_a_command_in_a_sentence(project: Path, command: str) -> None:
    assert sentence(project, MANAGE, command, "--settings=absent.settings") == (
        "--settings names absent.settings, which cannot be loaded (ModuleNotFoundError: No module named 'absent')."
    )


def sentence(project: Path, *command: str, settings: str | None = None) -> str:
    """Return the one line that a command ends with, by exit code 1."""
    done = run(project, *command, settings=settings)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]
