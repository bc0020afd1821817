// The page: opens the session, and connects the editor with the result tabs.

import { type About, json, open, Problem, type Query, send, sql } from "./api";
import { Catalog } from "./catalog";
import { ChartView } from "./chart_view";
import { byId, copy, duration, h, plural, size, visible, visibleLines } from "./dom";
import { download, FORMATS, type FormatName } from "./downloads";
import { Editor } from "./editor";
import { locate } from "./errors";
import { cutNotice, Grid } from "./grid";
import { type Key, showKey } from "./key";
import { Parameters } from "./parameters";
import { Result } from "./result";
import { showSamples } from "./samples";
import { Statements } from "./statements";
import { Tabs } from "./tabs";

const READY_EVERY_MS = 5_000;
const ALIVE_EVERY_MS = 60_000;
const DRAW_EVERY_MS = 100;
const ARROW = "application/vnd.apache.arrow.stream";

class Page {
  #running: AbortController | null = null;
  #query: (Query & { from: number }) | null = null; // the last query that ran, and its offset in the editor
  #result: Result | null = null;
  #key: Key | null = null;
  #wasReady = true;
  readonly #editor: Editor;
  readonly #catalog: Catalog;
  readonly #tabs: Tabs;
  readonly #parameters = new Parameters(() => void this.run());
  readonly #downloads = new Set<AbortController>();
  readonly #stop = h("button", { type: "button", hidden: true, onclick: () => this.#downloads.forEach((each) => each.abort()) }, "Cancel download");
  readonly #chart = new ChartView();
  readonly #grid = new Grid((text) => this.#say(text));
  readonly #summary = h("p", { id: "summary", role: "status" });
  readonly #said = h("span", { role: "status" });

  constructor(private readonly about: About) {
    const nonce = document.querySelector<HTMLMetaElement>('meta[name="style-nonce"]')!.content;
    this.#editor = new Editor(byId("text"), nonce, () => void this.run(), () => this.cancel(), (text) => this.#parameters.update(text));
    byId("text").after(this.#parameters.element);
    this.#catalog = new Catalog(byId("datasets"), {
      open: (statement) => (this.open(statement), void this.run()),
      insert: (text) => this.#editor.insert(text),
      canRefresh: () => this.#key?.rights.includes("refresh") ?? true,
      named: (names) => this.#editor.setNames(names),
    });
    const statements = new Statements((statement) => this.open(statement));
    const [samples, key] = [h("div", {}), h("div", {})];
    this.#tabs = new Tabs(byId("tabs"), [
      { name: "Rows", element: this.#rowsPanel(), shown: () => this.#grid.update() },
      { name: "Chart", element: this.#chart.element, shown: () => void this.#chart.draw() },
      { name: "Code", element: samples, shown: () => void showSamples(samples, this.#ask(), about) },
      { name: "Running", element: statements.running, shown: () => void statements.showRunning() },
      { name: "History", element: statements.history, shown: () => void statements.showHistory() },
      { name: "Statistics", element: statements.statistics, shown: () => void statements.showStatistics() },
      { name: "Key", element: key, shown: () => void showKey(key, about) },
    ]);
    byId("run").addEventListener("click", () => void this.run());
    byId("cancel").addEventListener("click", () => this.cancel());
    byId("link").addEventListener("click", () => void this.#copyLink());
    addEventListener("hashchange", () => this.#readFragment());
  }

  async start(): Promise<void> {
    byId("endpoint").textContent = `${this.about.endpoint}${this.about.profile ? ` (${this.about.profile})` : ""}`;
    byId("page").hidden = false;
    this.#readFragment();
    this.#editor.focus();
    setInterval(() => void send("/session").catch(() => null), ALIVE_EVERY_MS);
    void this.#watch();
    await this.#load();
  }

  async #load(): Promise<void> {
    this.#key = await json<Key>("/v1/key").catch(() => null);
    await this.#catalog.load();
  }

  /** Put a statement into the editor without running it, because anybody can create a link. */
  open(statement: string): void {
    this.#editor.text = statement;
    this.#editor.mark(null);
    this.#editor.focus();
  }

  cancel(): boolean {
    this.#running?.abort();
    return this.#running !== null;
  }

  /** Return what runs now: the statement at the cursor, and the values of its parameters. */
  #ask(): Query & { from: number } {
    const statement = this.#editor.statement();
    return { ...statement, parameters: this.#parameters.json(statement.text) };
  }

  async run(): Promise<void> {
    this.cancel();
    const statement = this.#ask();
    const running = new AbortController();
    const result = new Result();
    const started = performance.now();
    this.#running = running;
    this.#query = statement;
    this.#result = result;
    this.#editor.mark(null);
    byId("error").replaceChildren();
    byId<HTMLButtonElement>("cancel").disabled = false;
    this.#said.textContent = "";
    const elapsed = () => duration(performance.now() - started);
    let drawnRows = 0;
    const draw = () => {
      drawnRows = result.rows;
      this.#grid.update();
    };
    const timer = setInterval(() => {
      if (drawnRows !== result.rows) draw();
      byId("progress").textContent = `Running, ${elapsed()}${result.rows ? `, ${plural(result.rows, "row")}` : ""}`;
    }, DRAW_EVERY_MS);
    try {
      const response = await sql(statement, ARROW, running.signal);
      this.#tabs.select(this.#tabs.current === "Chart" ? "Chart" : "Rows");
      this.#summary.textContent = "";
      this.#grid.show(result);
      // Draw the columns and the first rows immediately, and further rows at intervals.
      await result.read(response, () => drawnRows || draw());
      const columns = plural(result.columns.length, "column");
      this.#summary.textContent = `${plural(result.rows, "row")}, ${columns}, ${size(result.bytes)} in ${elapsed()}. ${result.isCut ? cutNotice(result) : ""}`;
    } catch (error) {
      if (this.#running === running || !running.signal.aborted) this.#fail(error, statement, result, running.signal.aborted);
    } finally {
      clearInterval(timer);
      if (this.#running === running) {
        this.#running = null;
        byId<HTMLButtonElement>("cancel").disabled = true;
        byId("progress").textContent = "";
      }
    }
    if (this.#result !== result) return;
    this.#grid.update();
    this.#chart.setResult(result);
    if (this.#tabs.current === "Chart") await this.#chart.draw();
  }

  #fail(error: unknown, statement: Query & { from: number }, result: Result, isCancelled: boolean): void {
    const here = result.columns.length ? ` The grid has the first ${plural(result.rows, "row")}: this result is not complete.` : "";
    if (isCancelled) {
      this.#summary.textContent = `Cancelled.${here}`;
      if (!here) byId("error").replaceChildren(h("p", {}, "Cancelled."));
      return;
    }
    if (!(error instanceof Problem)) {
      console.error(error);
      const text = `The response was cut off: the statement failed or reached its time limit, or the connection broke.${here}`;
      this.#summary.textContent = here ? text : "";
      byId("error").replaceChildren(h("p", { class: "bad" }, text));
      return;
    }
    const { message, at } = locate(error.detail, statement.text);
    if (at !== null) this.#editor.mark(statement.from + at, message);
    const before = statement.text.slice(0, at ?? 0);
    const place = at === null ? "" : `Line ${before.split("\n").length}, column ${before.length - before.lastIndexOf("\n")}: `;
    byId("error").replaceChildren(
      h("p", { class: "bad" }, place, visibleLines(message)),
      ...(error.hint ? [h("p", {}, error.hint)] : []),
      h("p", { class: "facts" }, `${visible(error.code)}${error.requestId ? `, request ${visible(error.requestId)}` : ""}`),
    );
  }

  #rowsPanel(): HTMLElement {
    const buttons = (Object.keys(FORMATS) as FormatName[]).map((name) =>
      h("button", { type: "button", "aria-label": `Download ${name}`, onclick: () => void this.#download(name) }, name),
    );
    return h(
      "div",
      { class: "rows-panel" },
      this.#summary,
      h(
        "div",
        { class: "bar" },
        h("span", { id: "download" }, "Download"),
        h("div", { class: "group", role: "group", "aria-labelledby": "download" }, ...buttons),
        this.#stop,
        h("button", { type: "button", onclick: () => void this.#grid.copy() }, "Copy cells"),
        this.#said,
      ),
      this.#grid.element,
    );
  }

  async #download(format: FormatName): Promise<void> {
    const running = new AbortController();
    this.#downloads.add(running);
    this.#stop.hidden = false;
    try {
      await download(this.#query ?? this.#ask(), format, running.signal, (text) => this.#say(text));
    } catch (error) {
      const why = error instanceof Problem ? `${visible(error.detail)} [${error.code}]` : running.signal.aborted ? "cancelled" : "the response was cut off";
      this.#say(`Nothing was saved: ${why}`);
    }
    this.#downloads.delete(running);
    this.#stop.hidden = !this.#downloads.size;
  }

  #say(text: string): void {
    this.#said.textContent = text;
  }

  async #copyLink(): Promise<void> {
    const fragment = `#sql=${encodeURIComponent(this.#editor.text)}`;
    history.replaceState(null, "", fragment);
    const isCopied = await copy(location.href);
    byId("progress").textContent = isCopied ? "Link copied. It opens the statement in any console without running it." : "The link is in the address bar.";
  }

  #readFragment(): void {
    const statement = new URLSearchParams(location.hash.slice(1)).get("sql");
    if (statement !== null) this.open(statement);
  }

  /** Show the state of the runtime. When it is ready again, reload the key and the datasets. */
  async #watch(): Promise<void> {
    for (;;) {
      if (!document.hidden) {
        const problem = await send("/v1/ready").then(
          () => null,
          (error: unknown) => (error instanceof Problem ? error : null),
        );
        const state = byId("state");
        state.className = problem ? "bad" : "good";
        state.textContent = problem ? stateOf(problem) : "Ready";
        if (!problem && !this.#wasReady) void this.#load();
        this.#wasReady = problem === null;
      }
      await new Promise((resolve) => setTimeout(resolve, READY_EVERY_MS));
    }
  }
}

function stateOf(problem: Problem): string {
  if (problem.status === 503) return "Not ready";
  return problem.code === "console_gone" ? `${problem.detail} ${problem.hint}` : visible(problem.detail);
}

function startTheme(): void {
  const button = byId("theme");
  const root = document.documentElement;
  const set = (isDark: boolean) => {
    root.dataset["theme"] = isDark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(isDark));
  };
  set(matchMedia("(prefers-color-scheme: dark)").matches);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => set(matches));
  button.addEventListener("click", () => set(root.dataset["theme"] !== "dark"));
}

async function main(): Promise<void> {
  startTheme();
  const fragment = new URLSearchParams(location.hash.slice(1));
  const token = fragment.get("token");
  const statement = fragment.get("sql");
  // The token has been used and must not stay in the browser's history.
  if (token !== null) history.replaceState(null, "", statement === null ? location.pathname : `#sql=${encodeURIComponent(statement)}`);
  try {
    await new Page(await open(token)).start();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    byId("notice").replaceChildren(h("p", { class: "bad" }, error.detail), h("p", {}, error.hint ?? ""));
  }
}

void main();
