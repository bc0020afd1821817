// The datasets and views that this key can access, with columns, types, descriptions, age, status and refreshes.

import { json, Problem, sql } from "./api";
import { age, count, duration, h, plural, size, visible } from "./dom";
import type { Names } from "./editor";
import { quote, quoteRelation } from "./names";

interface Dataset {
  name: string;
  from: string;
  acceleration_enabled: boolean;
  status: string;
  rows: number | null;
  bytes: number | null;
  age_s: number | null;
  error: string | null;
  description: string | null;
}

interface Refresh {
  id: string;
  status: string;
  phase: string | null;
  rows: number | null;
  bytes: number | null;
  duration_ms: number | null;
  error: string | null;
}

interface Relation {
  description: string | null;
  columns: { name: string; type: string; description: string | null }[];
}

const OURS = "table_schema NOT IN ('information_schema', 'pg_catalog')";
// Spice.ai's default schema is `public`.
const RELATION = "CASE WHEN table_schema IN ('main', 'public') THEN table_name ELSE table_schema || '.' || table_name END AS relation";
const TABLES = `SELECT ${RELATION}, TABLE_COMMENT AS comment FROM information_schema.tables WHERE ${OURS} ORDER BY 1`;
const COLUMNS = `SELECT ${RELATION}, column_name, data_type, COLUMN_COMMENT AS comment FROM information_schema.columns WHERE ${OURS} ORDER BY 1, ordinal_position LIMIT 20000`;
const POLL_MS = 500;

type Row = { [name: string]: string | null };

export interface Actions {
  open(statement: string): void;
  insert(text: string): void;
  canRefresh(): boolean;
  named(names: Names): void;
}

export class Catalog {
  #datasets: Dataset[] = [];
  #relations = new Map<string, Relation>();
  #opened = new Set<string>();
  readonly #list = h("ul", { class: "datasets" });
  readonly #filter = h("input", { type: "search", "aria-label": "Filter datasets", placeholder: "Filter", oninput: () => this.#draw() });
  readonly #message = h("p", { class: "message", role: "status" });

  constructor(
    parent: HTMLElement,
    private readonly actions: Actions,
  ) {
    const again = h("button", { type: "button", onclick: () => void this.load() }, "Reload");
    const details = h(
      "details",
      { open: innerWidth > 700 },
      h("summary", {}, h("h2", {}, "Datasets")),
      h("div", { class: "bar" }, this.#filter, again),
      this.#message,
      this.#list,
    );
    parent.append(details);
  }

  /** Load the datasets with their columns, and list them. */
  async load(): Promise<void> {
    try {
      const datasets = await json<Dataset[]>("/v1/datasets");
      if (!Array.isArray(datasets)) throw new Problem(0, "not_a_runtime", "The endpoint is not a runtime.");
      this.#datasets = datasets;
      const signal = AbortSignal.timeout(60_000);
      const rows = async (statement: string): Promise<Row[]> => (await sql({ text: statement, parameters: null }, "application/json", signal)).json();
      const [tables, columns] = [await rows(TABLES), await rows(COLUMNS)];
      this.#relations = new Map(tables.map((row) => [row["relation"]!, { description: row["comment"] || null, columns: [] }]));
      for (const row of columns)
        this.#relations.get(row["relation"]!)?.columns.push({ name: row["column_name"]!, type: row["data_type"]!, description: row["comment"] || null });
      this.#message.textContent = this.#relations.size || this.#datasets.length ? "" : "This key cannot read any dataset.";
      this.actions.named(Object.fromEntries([...this.#relations].map(([name, { columns }]) => [name, columns])));
    } catch (error) {
      this.#message.textContent = error instanceof Problem ? `Datasets cannot be listed: ${visible(error.detail)}` : "Datasets cannot be listed.";
    }
    this.#draw();
  }

  #draw(): void {
    const names = [...new Set([...this.#datasets.map(({ name }) => name), ...this.#relations.keys()])];
    const wanted = this.#filter.value.toLowerCase();
    const matches = (name: string) =>
      name.toLowerCase().includes(wanted) || this.#relations.get(name)?.columns.some((column) => column.name.toLowerCase().includes(wanted));
    this.#list.replaceChildren(...names.filter(matches).map((name) => this.#item(name)));
  }

  #item(name: string): HTMLElement {
    const dataset = this.#datasets.find((each) => each.name === name);
    const relation = this.#relations.get(name);
    const quoted = quoteRelation(name);
    const facts = dataset
      ? [
          dataset.status,
          // Spice.ai returns no row counts, sizes or ages.
          typeof dataset.rows === "number" && plural(dataset.rows, "row"),
          typeof dataset.bytes === "number" && size(dataset.bytes),
          typeof dataset.age_s === "number" && `${age(dataset.age_s)} old`,
        ].filter((fact) => typeof fact === "string")
      : ["View"];
    const description = dataset?.description ?? relation?.description ?? null;
    const state = h("p", { class: "message", role: "status" });
    const refresh = h("button", { type: "button", onclick: () => void this.#refresh(name, state, refresh) }, "Refresh");
    const columns = relation?.columns.map((column) =>
      h(
        "li",
        {},
        h("button", { type: "button", class: "plain", title: "Insert", onclick: () => this.actions.insert(quote(column.name)) }, visible(column.name)),
        h("span", { class: "type" }, ` ${visible(column.type)}`),
        column.description === null ? null : h("p", { class: "description" }, visible(column.description)),
      ),
    );
    const details = h(
      "details",
      { open: this.#opened.has(name), ontoggle: () => (details.open ? this.#opened.add(name) : this.#opened.delete(name)) },
      h("summary", {}, h("span", { class: "name" }, visible(name)), h("span", { class: `facts ${dataset?.status === "Error" ? "bad" : ""}` }, facts.join(", "))),
      description === null ? null : h("p", { class: "description" }, visible(description)),
      dataset?.error ? h("p", { class: "bad" }, visible(dataset.error)) : null,
      dataset ? h("p", { class: "facts" }, `from ${visible(dataset.from)}`) : null,
      h(
        "div",
        { class: "bar" },
        h("button", { type: "button", onclick: () => this.actions.open(`FROM ${quoted} LIMIT 1000`) }, "Rows"),
        h("button", { type: "button", onclick: () => this.actions.open(`SUMMARIZE ${quoted}`) }, "Summary"),
        dataset?.acceleration_enabled && this.actions.canRefresh() ? refresh : null,
      ),
      state,
      columns ? h("ul", { class: "columns" }, ...columns) : h("p", {}, "The columns are unknown until the dataset has been loaded."),
    );
    return h("li", {}, details);
  }

  async #refresh(name: string, state: HTMLElement, button: HTMLButtonElement): Promise<void> {
    const path = `/v1/datasets/${encodeURIComponent(name).replace(/[.'()*!]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`)}/acceleration/refresh`;
    button.disabled = true;
    try {
      const { refresh } = await json<{ refresh: { id: string } }>(path, { method: "POST", body: "" });
      for (;;) {
        const run = (await json<Refresh[]>(path)).find(({ id }) => id === refresh.id);
        if (!run) throw new Problem(0, "refresh_lost", "The runtime no longer lists this refresh.");
        const written = run.bytes ? `, ${size(run.bytes)}` : "";
        const took = run.duration_ms === null ? "" : `, ${duration(run.duration_ms)}`;
        state.textContent = `Refresh ${run.status}${run.phase ? `: ${run.phase}` : ""}${run.rows === null ? "" : `, ${count(run.rows)} rows`}${written}${took}${run.error ? `: ${visible(run.error)}` : ""}`;
        if (run.status === "succeeded" || run.status === "failed") break;
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
      this.#datasets = await json<Dataset[]>("/v1/datasets");
      const summary = this.#datasets.find((each) => each.name === name);
      if (summary?.rows !== null && summary) state.textContent += `. Now ${plural(summary.rows ?? 0, "row")}.`;
    } catch (error) {
      state.textContent = error instanceof Problem ? `${visible(error.detail)} [${error.code}]` : "The progress of the refresh is unknown.";
    }
    button.disabled = false;
  }
}
