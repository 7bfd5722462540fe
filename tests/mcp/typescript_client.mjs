// Calls a limited tool until it is refused, with the TypeScript SDK.
//
//   npm install --prefix /tmp/mcp @modelcontextprotocol/sdk
//   MCP_NODE_MODULES=/tmp/mcp/node_modules cargo test -p gateway typescript -- --ignored
//
// Takes the server's URL, a bearer token and the seconds after which the limit is
// free again; the SDK is looked for in MCP_NODE_MODULES. Prints what the caller
// sees, a line for each step.

import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.env.MCP_NODE_MODULES}/`);
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");

const [url, token, wait] = process.argv.slice(2);

async function connect() {
  const client = new Client({ name: "test", version: "1.0.0" });
  const requestInit = { headers: { authorization: `Bearer ${token}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit }));
  return client;
}

async function call(client, name) {
  try {
    const result = await client.callTool({ name, arguments: { code: "1+1", text: "hello" } });
    return `${result.isError ? "isError" : "ok"} ${result.content[0].text}`;
  } catch (error) {
    return `error ${error.code} ${error.message}`;
  }
}

async function tools(client) {
  return (await client.listTools()).tools.map((tool) => tool.name).join(" ");
}

const client = await connect();
console.log("tools", await tools(client));
for (let i = 0; i < 3; i++) console.log("execute_code", await call(client, "execute_code"));
console.log("echo", await call(client, "echo"));
const second = await connect();
console.log("second tools", await tools(second));
console.log("second execute_code", await call(second, "execute_code"));
await second.close();
await sleep(Number(wait) * 1000);
console.log("later execute_code", await call(client, "execute_code"));
await client.close();
