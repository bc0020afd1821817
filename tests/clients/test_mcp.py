"""The client of the official Python SDK and the MCP inspector, over both transports."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from mcpapi.server import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from tests.clients.spice import MODULES, NODE
from tests.system.harness import K1, REPOSITORY, WRONG, Server, clean_environ, wait_for

Transport = Literal["stdio", "http"]
ENDLESS = "SELECT count(*) FROM range(1000000000000)"
INSPECTOR = MODULES / ".bin" / "mcp-inspector"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("mcp"), changes={"runtime": {"mcp": {"enabled": True}}}) as running:
        yield running


@asynccontextmanager
async def client_of(server: Server, transport: Transport, mode: str, key: str = K1) -> AsyncIterator[Any]:
    environ = clean_environ(RUNTIME_HTTP_ENDPOINT=server.url, RUNTIME_API_KEY=key)
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "runtimeclient", "mcp"], cwd=REPOSITORY, env=environ
    )
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        url = f"{server.url}/v1/mcp"
        pipe = stdio_client(command) if transport == "stdio" else streamable_http_client(url, http_client=http)
        async with Client(pipe, mode=mode) as client:
            yield client


def with_client(server: Server, transport: Transport, mode: str, use: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with client_of(server, transport, mode) as client:
            await use(client)

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["legacy", "auto", *STATELESS_VERSIONS])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_client_of_the_sdk(server: Server, transport: Transport, mode: str) -> None:
    """It validates each result against the schema of the version, and structured content against that of the tool."""

    async def use(client: Any) -> None:
        assert client.protocol_version == (HANDSHAKE_VERSIONS if mode == "legacy" else STATELESS_VERSIONS)[-1]
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["list_datasets", "describe_dataset", "query"]
        found = await client.call_tool("query", {"sql": "SELECT count(*) AS n, 9223372036854775807 AS b FROM orders"})
        assert found.content[0].text == "columns: n BIGINT, b BIGINT\n[1000,9223372036854775807]\n1 row."
        assert found.structured_content["rows"] == [[1000, "9223372036854775807"]]
        listed = await client.call_tool("list_datasets", {})
        assert [one["name"] for one in listed.structured_content["datasets"]] == ["big_orders", "orders"]
        described = await client.call_tool("describe_dataset", {"name": "orders"})
        assert described.structured_content["sample"]["row_count"] == 3
        failed = await client.call_tool("query", {"sql": "SELECT nope FROM orders"})
        assert failed.is_error
        assert failed.content[0].text.startswith("sql_error: ")
        resources = (await client.list_resources()).resources
        assert [str(one.uri) for one in resources] == ["querykeep://datasets/big_orders", "querykeep://datasets/orders"]
        (content,) = (await client.read_resource(resources[1].uri)).contents
        assert json.loads(content.text) == described.structured_content
        assert len((await client.list_resource_templates()).resource_templates) == 1
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("nope", {})
        with pytest.raises(MCPError, match="dataset_not_found"):
            await client.read_resource("querykeep://datasets/absent")

    with_client(server, transport, mode, use)


@pytest.mark.parametrize("mode", ["legacy", *STATELESS_VERSIONS])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_call_that_the_sdk_cancels_stops(server: Server, transport: Transport, mode: str) -> None:
    async def use(client: Any) -> None:
        call = asyncio.ensure_future(client.call_tool("query", {"sql": ENDLESS}))
        await asyncio.to_thread(wait_for, server.active, "the statement to run")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(wait_for, lambda: not server.active(), "the statement to stop")
        assert (await client.call_tool("query", {"sql": "SELECT 1 AS a"})).structured_content["rows"] == [[1]]

    with_client(server, transport, mode, use)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_wrong_key_opens_nothing(server: Server, transport: Transport) -> None:
    async def run() -> str:
        async with client_of(server, transport, "legacy", WRONG) as client:
            return str((await client.call_tool("list_datasets", {})).content[0].text)

    if transport == "stdio":
        assert asyncio.run(run()).startswith("not_authorised: ")
    else:
        with pytest.raises(BaseException, match=r"401|unhandled errors|Session terminated|Client error"):
            asyncio.run(run())


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_inspector(server: Server, transport: Transport, tmp_path: Path) -> None:
    def inspect(*options: str, check: bool = True) -> Any:
        headers = ["--header", f"X-API-Key: {K1}"] if transport == "http" else []
        done = subprocess.run(
            [NODE, INSPECTOR, "--cli", *target, *options, *headers],
            env=os.environ | {"PATH": f"{NODE.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
            capture_output=True, text=True, timeout=120, check=check,
        )  # fmt: skip
        return json.loads(done.stdout)

    program, key = tmp_path / "querykeep-mcp", tmp_path / "key"
    key.write_text(K1)
    key.chmod(0o600)
    command = f'"{sys.executable}" -m runtimeclient mcp --http-endpoint {server.url} --api-key-file {key}'
    program.write_text(f'#!/bin/sh\ncd "{REPOSITORY}" && exec {command}\n')
    program.chmod(0o755)
    target = [f"{server.url}/v1/mcp"] if transport == "http" else [str(program)]

    assert len(inspect("--method", "tools/list")["tools"]) == 3
    called = inspect("--method", "tools/call", "--tool-name", "query", "--tool-arg", "sql=SELECT count(*) FROM orders")
    assert called["structuredContent"]["rows"] == [[1000]]
    failed = inspect("--method", "tools/call", "--tool-name", "query", "--tool-arg", "sql=SELECT nope", check=False)
    assert failed["isError"]
    assert len(inspect("--method", "resources/list")["resources"]) == 2
    read = inspect("--method", "resources/read", "--uri", "querykeep://datasets/orders")
    assert json.loads(read["contents"][0]["text"])["name"] == "orders"
