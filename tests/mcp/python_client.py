"""Calls a limited tool until it is refused, with Python's SDK.

    python3 -m venv /tmp/mcp && /tmp/mcp/bin/pip install mcp
    MCP_PYTHON=/tmp/mcp/bin/python cargo test -p gateway python -- --ignored

Takes the server's URL, a bearer token, how a client connects (`auto`, which knows
the protocol of 2026-07-28, or `legacy`, with a handshake) and the seconds after
which the limit is free again. Prints what the caller sees, a line for each step.
"""

import asyncio
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

url, token, mode, wait = sys.argv[1:]


async def call(client, tool):
    try:
        result = await client.call_tool(tool, {"code": "1+1", "text": "hello"})
    except MCPError as error:
        return f"error {error.error.code} {error.error.data} {error.error.message}"
    return f"{'isError' if result.is_error else 'ok'} {result.content[0].text}"


def connect():
    http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"})
    return Client(streamable_http_client(url, http_client=http), mode=mode)


async def main():
    async with connect() as client:
        print("tools", *[tool.name for tool in (await client.list_tools()).tools])
        for _ in range(3):
            print("execute_code", await call(client, "execute_code"))
        print("echo", await call(client, "echo"))
        async with connect() as second:
            print("second tools", *[tool.name for tool in (await second.list_tools()).tools])
            print("second execute_code", await call(second, "execute_code"))
        await asyncio.sleep(float(wait))
        print("later execute_code", await call(client, "execute_code"))


asyncio.run(main())
