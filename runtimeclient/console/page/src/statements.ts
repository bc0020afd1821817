// Running and past statements of this key, and their statistics.

import { json, Problem, sent } from "./api";
import { count, duration, h, size, visible } from "./dom";
import { type Cell, table } from "./table";

const POLL_MS = 1000;

interface Active {
  id: string;
  started: string;
  state: string;
  sql: string;
}
interface Finished {
  id: string;
  started: string;
  outcome: string;
  total_ms: number;
  rows: number;
  bytes: number;
  cache: string | null;
  statement: string | null;
  sql: string | null;
}
interface Statistics {
  statements: { statement: string | null; sql: string | null; calls: number; errors: number; rows: number; mean_total_ms: number; p95_total_ms: number; last: string }[];
}

function show(panel: HTMLElement, draw: () => Promise<HTMLElement>): Promise<void> {
  return draw().then(
    (element) => panel.replaceChildren(element),
    (error) => panel.replaceChildren(h("p", { class: "bad", role: "alert" }, error instanceof Problem ? `${visible(error.detail)} [${error.code}]` : String(error))),
  );
}

const time = (text: string): string => text.slice(0, 19).replace("T", " ");

export class Statements {
  readonly running = h("div", {});
  readonly history = h("div", {});
  readonly statistics = h("div", {});
  #isFollowing = false;
  #digests = new Map<string, string>();

  constructor(private readonly open: (statement: string) => void) {}

  /** Show the running statements while the panel is visible. */
  async showRunning(): Promise<void> {
    if (this.#isFollowing) return;
    this.#isFollowing = true;
    for (; !this.running.hidden; await new Promise((resolve) => setTimeout(resolve, POLL_MS))) {
      if (document.hidden) continue;
      const focused = this.running.contains(document.activeElement) ? document.activeElement?.id : null;
      await show(this.running, async () => {
        const active = await json<Active[]>("/v1/sql/active");
        if (!active.length) return h("p", {}, "No statement of this key is running or queued.");
        const rows = active.map(({ id, started, state, sql }): Cell[] => [
          state,
          duration(Math.max(0, Date.now() - Date.parse(started))),
          h("code", {}, visible(sql)),
          h("button", { type: "button", id: `cancel-${id}`, onclick: () => void this.#cancel(id) }, "Cancel"),
        ]);
        return table("Running and queued statements of this key", ["State", "For", "Statement", "Action"], rows);
      });
      if (focused) document.getElementById(focused)?.focus();
    }
    this.#isFollowing = false;
  }

  async #cancel(id: string): Promise<void> {
    await json(`/v1/sql/${encodeURIComponent(id)}/cancel`, { method: "POST", body: "" }).catch(() => null); // the statement has just finished
  }

  showHistory(): Promise<void> {
    return show(this.history, async () => {
      const finished = await json<Finished[]>("/v1/sql/history?limit=200");
      for (const { id, statement } of finished) if (statement && sent.has(id)) this.#digests.set(statement, sent.get(id)!);
      const rows = finished.map((each): Cell[] => [
        time(each.started),
        each.outcome,
        duration(each.total_ms),
        count(each.rows),
        size(each.bytes),
        each.cache,
        this.#text(each.sql ?? sent.get(each.id) ?? null, each.statement),
      ]);
      return rows.length
        ? table("Recent statements of this key, newest first (UTC)", ["Started", "Outcome", "Time", "Rows", "Size", "Cache", "Statement"], rows)
        : h("p", {}, "No statement of this key has finished yet.");
    });
  }

  showStatistics(): Promise<void> {
    return show(this.statistics, async () => {
      const { statements } = await json<Statistics>("/v1/sql/statistics?limit=100");
      const rows = statements.map((each): Cell[] => [
        count(each.calls),
        count(each.errors),
        duration(each.mean_total_ms),
        duration(each.p95_total_ms),
        count(each.rows),
        time(each.last),
        this.#text(each.sql, each.statement),
      ]);
      return rows.length
        ? table("Statements of this key by pattern, longest total time first", ["Calls", "Errors", "Mean", "95 %", "Rows", "Last (UTC)", "Statement"], rows)
        : h("p", {}, "There are no statistics for this key yet.");
    });
  }

  /** Return a button that puts the text into the editor, or else the digest that the runtime stores. */
  #text(text: string | null, digest: string | null): Cell {
    const known = text ?? (digest ? this.#digests.get(digest) : undefined);
    if (known === undefined) return h("code", { title: "The runtime does not store the text of statements. To store it, set runtime.history: {sql: true}." }, digest ?? "");
    return h("button", { type: "button", class: "plain", onclick: () => this.open(known) }, visible(known.slice(0, 300)));
  }
}
