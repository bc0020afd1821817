// A form for the parameters of a statement. Which there are, runtimeclient/sql/statements.py finds in the same way.

import { h, visible } from "./dom";

// Strings, quoted names and comments come first: nothing in them is a parameter.
const PARAMETER =
  /(?<![\p{L}\p{N}_])[eE]'(?:[^'\\]|\\.|'')*'?|'(?:[^']|'')*'?|"(?:[^"]|"")*"?|--[^\r\n]*|\/\*[^]*?(?:\*\/|$)|(?<![\p{L}\p{N}_])\$(?!\d)([\p{L}\p{N}_]*)\$[^]*?(?:\$\1\$|$)|(?<![\p{L}\p{N}_])\$(?<dollar>[\p{L}\p{N}_]+)|(?<=[\s(\[,=<>!+*\/%^&|~@-])(?<![\p{L}\p{N}_)\]]\[):(?!\d)(?<colon>[\p{L}\p{N}_]+)|(?<unnamed>\?)/gu;
const MAX_LENGTH = 100_000; // a longer text has no form
const MAX_POSITION = 10_000;

/** Return the names of parameters in their order; each `?` has the next number. Upper and lower case are the same. */
function namesIn(text: string): string[] {
  const names = new Map<string, string>();
  let unnamed = 0;
  for (const { groups } of text.length > MAX_LENGTH ? [] : text.matchAll(PARAMETER)) {
    const name = groups!["dollar"] ?? groups!["colon"] ?? (groups!["unnamed"] ? String(++unnamed) : "");
    if (name && !names.has(name.toLowerCase())) names.set(name.toLowerCase(), name);
  }
  return [...names.values()];
}

export class Parameters {
  #names: string[] = [];
  #values = new Map<string, string>();
  readonly element = h("div", { class: "bar", role: "group", "aria-label": "Parameters", hidden: true });

  constructor(private readonly run: () => void) {}

  /** Ask for the parameters of a text. */
  update(text: string): void {
    const names = namesIn(text);
    if (names.join() === this.#names.join()) return;
    this.#names = names;
    this.element.hidden = !names.length;
    this.element.replaceChildren(...names.map((name) => this.#field(name)));
  }

  #field(name: string): HTMLElement {
    const input = h("input", {
      type: "text",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.#values.set(name.toLowerCase(), input.value),
      onkeydown: ({ key }: KeyboardEvent) => key === "Enter" && this.run(),
    });
    input.value = this.#values.get(name.toLowerCase()) ?? "";
    return h("label", { title: 'Text, or JSON such as 5, null, [1, 2] or "5"' }, `$${visible(name)} `, input);
  }

  /**
   * Return the values of a statement's parameters as JSON; null if it has none. The runtime names those without a value,
   * but by position a parameter without one before others is an empty text.
   */
  json(statement: string): string | null {
    const names = namesIn(statement);
    if (!names.length) return null;
    const given = new Map<string, string>();
    for (const name of names) {
      const text = this.#values.get(name.toLowerCase()) ?? "";
      if (text) given.set(name, isJson(text) ? text : JSON.stringify(text));
    }
    if (names.some((name) => !/^[0-9]+$/.test(name))) return `{${Array.from(given, ([name, value]) => `${JSON.stringify(name)}:${value}`).join()}}`;
    const last = Math.min(MAX_POSITION, Math.max(0, ...[...given.keys()].map(Number)));
    return `[${Array.from({ length: last }, (_, index) => given.get(String(index + 1)) ?? '""').join()}]`;
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
