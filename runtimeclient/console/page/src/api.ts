// Requests to the local server, which adds the key and forwards requests under /v1 to the runtime.

const SESSION = "session";

export interface About {
  endpoint: string;
  profile: string | null;
  has_key: boolean;
  version: string;
}

/** An error with its message, its code, and the request id for finding it in the runtime's log. */
export class Problem extends Error {
  constructor(
    readonly status: number, // 0: no response
    readonly code: string,
    readonly detail: string,
    readonly requestId: string | null = null,
    readonly retryAfter: number | null = null, // seconds
  ) {
    super(detail);
  }

  /** What the user can do; null if the detail already explains it. */
  get hint(): string | null {
    if (this.code === "console_gone") return "Run querykeep console again and open the new link.";
    if (this.status === 401 && this.code !== "console_session")
      return "The console's key is unknown or has expired. Stop the console and start it with a valid key.";
    if (this.status === 403 && this.code === "not_permitted") return "The Key tab shows the permissions of this key.";
    if (this.retryAfter !== null) return `Try again in ${this.retryAfter} s.`;
    if (this.code === "query_timeout") return "Read fewer rows, or ask the operator for a longer time limit.";
    return null;
  }
}

let session: string | null = null;

/** Tabs of this origin, which includes the port, share a session. A new tab asks the others for the session. */
const tabs = new BroadcastChannel("session");
tabs.onmessage = ({ data }) => {
  if (data === "ask" && session) tabs.postMessage({ session });
};

function fromOtherTab(): Promise<string | null> {
  return new Promise((resolve) => {
    const channel = new BroadcastChannel("session");
    const end = (found: string | null) => (channel.close(), resolve(found));
    channel.onmessage = ({ data }) => typeof data?.session === "string" && end(data.session);
    channel.postMessage("ask");
    setTimeout(end, 300, null);
  });
}

/** Use the token in the link, or else the session of this tab or another tab. Raises Problem. */
export async function open(token: string | null): Promise<About> {
  session = sessionStorage.getItem(SESSION) ?? (token ? null : await fromOtherTab());
  if (token) {
    try {
      session = (await json<{ session: string }>("/session", { method: "POST", body: token })).session;
    } catch (error) {
      if (!session) throw error; // reloading an open page uses the link a second time
    }
  }
  if (!session) throw new Problem(401, "console_session", "Open the link that querykeep console printed. Press Enter in its terminal for a new link.");
  const about = await json<About>("/session");
  sessionStorage.setItem(SESSION, session);
  return about;
}

/** Send a request and return a response with a status below 400. Raises Problem or AbortError. */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (session) headers.set("X-Console-Session", session);
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers, cache: "no-store" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem(0, "console_gone", "The console has stopped or does not respond.");
  }
  if (response.ok) return response;
  throw await problemOf(response);
}

async function problemOf(response: Response): Promise<Problem> {
  const wait = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const retryAfter = Number.isNaN(wait) ? null : wait;
  const requestId = response.headers.get("X-Request-Id");
  const text = await response.text().catch(() => "");
  try {
    const { code, detail, request_id } = JSON.parse(text);
    if (typeof code === "string" && typeof detail === "string")
      return new Problem(response.status, code, detail, request_id ?? requestId, retryAfter);
  } catch {
    // not a problem body
  }
  return new Problem(response.status, `http_${response.status}`, text.slice(0, 500) || `The runtime responded with status ${response.status}.`, requestId, retryAfter);
}

export async function json<T>(path: string, init: RequestInit = {}): Promise<T> {
  const response = await send(path, { ...init, headers: { Accept: "application/json", ...init.headers } });
  try {
    return (await response.json()) as T;
  } catch {
    throw new Problem(0, "incomplete", "The response ended before it was complete.");
  }
}

export interface Query {
  text: string;
  parameters: string | null; // their values as JSON, exactly as they were written
}

/** The texts of statements by id: the runtime keeps them only if it is told to, and this page knows those it sent. */
export const sent = new Map<string, string>();

export function body({ text, parameters }: Query): string {
  return parameters === null ? text : `{"sql":${JSON.stringify(text)},"parameters":${parameters}}`;
}

/** Send a statement and return the open response. */
export async function sql(query: Query, accept: string, signal: AbortSignal): Promise<Response> {
  const type = query.parameters === null ? "text/plain; charset=utf-8" : "application/json";
  const response = await send("/v1/sql", { method: "POST", body: body(query), headers: { Accept: accept, "Content-Type": type }, signal });
  const id = response.headers.get("X-Query-Id");
  if (id) sent.set(id, query.text);
  return response;
}
