// The permissions and limits of this key.

import { type About, json, Problem } from "./api";
import { h, plural, visible } from "./dom";
import { table } from "./table";

export interface Key {
  name: string | null;
  expires: string | null;
  datasets: string[] | null;
  columns: { [dataset: string]: string[] };
  rights: string[];
  limits: { requests_per_minute: number | null; concurrent: number | null; timeout_seconds: number | null };
}

export async function showKey(panel: HTMLElement, about: About): Promise<void> {
  try {
    const key = await json<Key>("/v1/key");
    const { limits } = key;
    const columns = Object.entries(key.columns ?? {}).map(([dataset, names]) => `${dataset}: ${names.join(", ")}`);
    panel.replaceChildren(
      table("This key", ["Property", "Value"], [
        ["Name", key.name ?? (about.has_key ? "none" : "none (the console sends no key)")],
        ["Profile", about.profile ?? "none"],
        ["Expires", key.expires?.slice(0, 19).replace("T", " ") ?? "never"],
        ["Datasets", key.datasets?.join(", ") ?? "all"],
        ["Columns", columns.join("; ") || "all"],
        ["Permissions", key.rights.join(", ")],
        ["Requests per minute", limits.requests_per_minute ?? "no limit"],
        ["Concurrent statements", limits.concurrent ?? "the runtime's limit"],
        ["Time limit", limits.timeout_seconds === null ? "the runtime's limit" : plural(limits.timeout_seconds, "second")],
      ]),
    );
  } catch (error) {
    panel.replaceChildren(h("p", { class: "bad", role: "alert" }, error instanceof Problem ? `${visible(error.detail)} [${error.code}]` : String(error)));
  }
}
