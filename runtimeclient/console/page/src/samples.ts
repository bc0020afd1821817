// Shows the statement as code that works when pasted. The code reads the key from the environment.

import { type About, body, json, type Query } from "./api";
import { copy, h, visibleLines } from "./dom";

/** Characters that control a terminal or hide text. Anybody can create a link with such a statement. */
const UNSAFE = /[^\n\t\P{C}]|[\u2028\u2029]/u;

/** Quote a string for the shell. */
function shell(text: string): string {
  if (!UNSAFE.test(text)) return `'${text.replaceAll("'", "'\\''")}'`;
  const bytes = Array.from(new TextEncoder().encode(text), (byte) => `\\${byte.toString(8).padStart(3, "0")}`);
  return `"$(printf '${bytes.join("")}')"`;
}

/** Return a Python literal. JSON escapes are valid in Python, except surrogate pairs. */
function python(text: string): string {
  if (text.includes("\n") && !/["\\]/.test(text) && !UNSAFE.test(text)) return `"""\n${text}\n"""`;
  return JSON.stringify(text).replace(/\p{C}/gu, (hidden) => `\\U${hidden.codePointAt(0)!.toString(16).padStart(8, "0")}`);
}

export function curl(query: Query, { endpoint, has_key }: About): string {
  const header = `${has_key ? ' -H "X-API-Key: $RUNTIME_API_KEY"' : ""}${query.parameters === null ? "" : ' -H "Content-Type: application/json"'}`;
  return `curl${header} \\\n  --data-binary ${shell(body(query).replace(/^@/, " @"))} \\\n  ${shell(`${endpoint}/v1/sql`)}\n`;
}

export function httpx(query: Query, { endpoint, has_key }: About): string {
  const headers = [
    ...(has_key ? ['"X-API-Key": os.environ["RUNTIME_API_KEY"]'] : []),
    ...(query.parameters === null ? [] : ['"Content-Type": "application/json"']),
  ];
  return `${has_key ? "import os\n\n" : ""}import httpx

response = httpx.post(
    ${JSON.stringify(`${endpoint}/v1/sql`)},
${headers.length ? `    headers={${headers.join(", ")}},\n` : ""}    content=${python(body(query))}.encode(),
    timeout=300,
)
response.raise_for_status()
for row in response.json():
    print(row)
`;
}

export function adbc({ text, parameters }: Query, { endpoint, has_key }: About, flightPort: string | null): string {
  const { protocol, hostname } = new URL(endpoint);
  const uri = `${protocol === "https:" ? "grpc+tls" : "grpc"}://${hostname}:${flightPort ?? "50051"}`;
  const options = has_key ? ', db_kwargs={\n    DatabaseOptions.AUTHORIZATION_HEADER.value: "Bearer " + os.environ["RUNTIME_API_KEY"],\n}' : "";
  const values = parameters === null ? "" : `, json.loads(${python(parameters)})`;
  const imports = [...(values ? ["import json"] : []), ...(has_key ? ["import os"] : [])];
  return `# pip install adbc-driver-flightsql pyarrow
${parameters?.startsWith("{") ? "# Flight SQL takes parameters by position: write $1 for the first one, and a list of values.\n" : ""}${imports.length ? `${imports.join("\n")}\n\n` : ""}import adbc_driver_flightsql.dbapi as adbc
${has_key ? "from adbc_driver_flightsql import DatabaseOptions\n" : ""}
with adbc.connect(${JSON.stringify(uri)}${options}, autocommit=True) as connection, connection.cursor() as cursor:
    cursor.execute(${python(text)}${values})
    print(cursor.fetch_arrow_table())
`;
}

export async function showSamples(panel: HTMLElement, query: Query, about: About): Promise<void> {
  const components = await json<{ name: string; endpoint: string; status: string }[]>("/v1/status").catch(() => []);
  const flight = components.find(({ name }) => name === "flight");
  const port = /:(\d+)$/.exec(flight?.endpoint ?? "")?.[1] ?? null;
  const samples: [string, string][] = [
    ["curl", curl(query, about)],
    ["Python", httpx(query, about)],
    ["ADBC", adbc(query, about, port)],
  ];
  const items = samples.map(([name, code]) => {
    const said = h("span", { role: "status" });
    const press = async () => {
      said.textContent = (await copy(code)) ? "Copied" : "The browser did not allow copying.";
    };
    return h(
      "section",
      { "aria-label": name },
      h("div", { class: "bar" }, h("h3", {}, name), h("button", { type: "button", "aria-label": `Copy ${name}`, onclick: () => void press() }, "Copy"), said),
      h("pre", { tabindex: 0, "aria-label": `${name} code` }, visibleLines(code)),
    );
  });
  const note = flight?.status === "Disabled" ? h("p", {}, "ADBC uses Flight SQL, which is disabled on this runtime.") : null;
  const about_key = about.has_key ? h("p", {}, "The code reads the key from RUNTIME_API_KEY. The console never shows the key.") : null;
  panel.replaceChildren(...[about_key, ...items, note].filter((each) => each !== null));
}
