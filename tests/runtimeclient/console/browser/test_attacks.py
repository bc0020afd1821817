"""Other web pages of this browser, and other users of this machine, reach nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from runtimeclient.commands.console import _open_browser
from runtimeclient.console.server import ConsoleServer
from tests.runtimeclient.console.browser.conftest import Page
from tests.system.harness import Server
from tests.web_server import File, serving

ATTACK = """async ([url, session, token]) => {
  const said = [];
  const json = {'Content-Type': 'application/json', 'X-Console-Session': session};
  for (const [path, init] of [
    ['/v1/datasets', {}], ['/v1/datasets', {headers: json}], ['/v1/sql', {method: 'POST', body: 'SELECT 1'}],
    ['/v1/sql', {method: 'POST', body: 'SELECT 1', headers: json}], ['/session', {method: 'POST', body: token}],
    ['/session', {method: 'POST', body: token, mode: 'no-cors'}], ['/main.js', {mode: 'no-cors'}], ['/', {}],
  ]) said.push(await fetch(url + path, init).then(async r => r.type === 'opaque' ? r.type : r.status, e => e.name));
  const loads = (tag, name) => new Promise(resolve => {
    const element = document.createElement(tag);
    Object.assign(element, {onload: () => resolve(`${tag} loads`), onerror: () => resolve(`${tag} fails`)});
    element[name] = url + '/icon.svg'.replace('icon.svg', tag === 'img' ? 'icon.svg' : 'main.js');
    document.body.append(element);
  });
  said.push(await loads('script', 'src'), await loads('img', 'src'));
  const channel = new BroadcastChannel('session');
  channel.onmessage = ({data}) => said.push(data);
  channel.postMessage('ask');
  const frame = document.createElement('iframe');
  frame.src = url;
  document.body.append(frame);
  await new Promise(resolve => frame.onload = resolve);
  try { said.push(frame.contentWindow.document.title); } catch (error) { said.push(error.name); }
  return said;
}"""


def test_pages_of_other_origins_get_nothing(page: Page, runtime: Server) -> None:
    session = page.tab.evaluate("sessionStorage.getItem('session')")
    link = page.server.make_link()
    history = runtime.listed("/v1/sql/history?limit=1000")
    with serving() as web:
        web.files["/"] = File(b"<p>free prizes</p>", headers={"Content-Type": "text/html"})
        stranger = page.context.new_page()
        stranger.goto(web.url)
        said = stranger.evaluate(ATTACK, [f"http://{page.server.host}", session, link.partition("#token=")[2]])

    assert said == ["TypeError"] * 7 + ["TypeError", "script fails", "img fails", "SecurityError"]
    stranger.close()
    assert runtime.listed("/v1/sql/history?limit=1000") == history
    other = page.context.new_page()
    other.goto(link)
    other.locator("ul.datasets > li").first.wait_for()  # nobody has used the link up


def test_another_name_of_this_machine_gets_nothing(page: Page) -> None:
    session = page.tab.evaluate("sessionStorage.getItem('session')")
    stranger = page.context.new_page()

    answer = stranger.goto(f"http://rebound.example:{page.server.port}/")

    assert answer is not None
    assert (answer.status, answer.json()["code"]) == (403, "console_host")
    ask = "session => fetch('/v1/datasets', {headers: {'X-Console-Session': session}}).catch(e => e.name)"
    assert stranger.evaluate(ask, session) == "TypeError", "the policy of the refusal allows nothing"


STRANGER = """
import os, socket, sys
connections = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for path in sys.argv[2:]]
if not os.getuid():
    os.setuid(65534)
for path, connection in zip(sys.argv[2:], connections):
    connection.sendall(f"GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{sys.argv[1]}\\r\\n\\r\\n".encode())
    print(connection.recv(12).decode().split()[1])
"""


def test_another_user_of_the_machine_gets_nothing(
    console: ConsoleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    link = console.make_link()
    _open_browser(link, tmp_path)
    assert opened == [(tmp_path / "console.html").as_uri()], "arguments of programs are public"
    assert link in (tmp_path / "console.html").read_text()

    command = [sys.executable, "-c", STRANGER, str(console.port), "/v1/datasets", "/session", "/main.js"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["401", "401", "200"], "only the files of the page, which contain no data"
