// The SQL editor: CodeMirror with completion of the names that this key can access, and error marks.

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { PostgreSQL, SQLDialect, type SQLNamespace, sql } from "@codemirror/lang-sql";
import { bracketMatching, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState, Prec } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers, placeholder } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";
import { visible } from "./dom";
import { quote } from "./names";
import { statementsIn } from "./splitting";

export type Names = { [table: string]: { name: string; type: string }[] };

/** The words that the client's prompt highlights. PostgreSQL's list includes common column names such as `name`. */
const DUCKDB = SQLDialect.define({
  ...PostgreSQL.spec,
  keywords:
    "all and anti any as asc asof between by case cast collate columns cross cube current desc describe distinct else end escape except exclude exists explain filter following from full group grouping having ilike in inner intersect interval is join lateral left like limit natural not nulls offset on or order outer over partition pivot positional preceding qualify range recursive replace right rollup rows sample select semi sets show similar summarize table tablesample then to try_cast unbounded union unnest unpivot using values when where window with",
  types:
    "bigint blob boolean date decimal double float hugeint integer json map smallint struct text time timestamp timestamptz tinyint ubigint uinteger usmallint utinyint uuid varchar",
});

export interface Statement {
  text: string;
  from: number; // its offset in the editor
}

export class Editor {
  readonly #view: EditorView;
  readonly #language = new Compartment();

  constructor(parent: HTMLElement, nonce: string, run: () => void, cancel: () => boolean, changed: (text: string) => void) {
    this.#view = new EditorView({
      parent,
      state: EditorState.create({
        extensions: [
          EditorView.cspNonce.of(nonce),
          lineNumbers(),
          history(),
          drawSelection(),
          highlightActiveLine(),
          bracketMatching(),
          closeBrackets(),
          autocompletion(),
          syntaxHighlighting(classHighlighter),
          placeholder("SQL statement, for example FROM a_dataset"),
          EditorView.lineWrapping,
          EditorView.updateListener.of(({ docChanged, state }) => docChanged && changed(state.doc.toString())),
          EditorView.contentAttributes.of({ "aria-label": "SQL statement" }),
          this.#language.of(sql({ dialect: DUCKDB })),
          Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => (run(), true) }])),
          // Tab leaves the editor, so keyboard users are not trapped in it.
          keymap.of([...closeBracketsKeymap, ...completionKeymap, ...defaultKeymap, ...historyKeymap, { key: "Escape", run: cancel }]),
        ],
      }),
    });
  }

  get text(): string {
    return this.#view.state.doc.toString();
  }

  set text(text: string) {
    this.#view.dispatch({ changes: { from: 0, to: this.#view.state.doc.length, insert: text } });
  }

  focus(): void {
    this.#view.focus();
  }

  /** Offer these tables and their columns for completion. */
  setNames(names: Names): void {
    const schema: { [name: string]: SQLNamespace } = {};
    for (const [name, columns] of Object.entries(names)) {
      const [container, table] = name.includes(".") ? [name.slice(0, name.indexOf(".")), name.slice(name.indexOf(".") + 1)] : ["", name];
      const namespace = {
        self: { label: visible(table), apply: quote(table), type: "type", detail: "table" },
        children: columns.map(({ name, type }) => ({ label: visible(name), apply: quote(name), type: "property", detail: type })),
      };
      if (container) {
        const self = { label: visible(container), apply: quote(container), type: "namespace", detail: "schema" };
        const known = schema[container] as { children: { [name: string]: SQLNamespace } } | undefined;
        schema[container] = { self, children: { ...known?.children, [table.replaceAll(".", "\\.")]: namespace } };
      } else schema[table] ??= namespace;
    }
    this.#view.dispatch({ effects: this.#language.reconfigure(sql({ dialect: DUCKDB, schema })) });
  }

  /** Insert a name at the cursor. */
  insert(text: string): void {
    this.#view.dispatch(this.#view.state.replaceSelection(text));
    this.focus();
  }

  /** Return the selected text, or else the statement at the cursor, or else the last statement before the cursor. */
  statement(): Statement {
    const { state } = this.#view;
    const { from, to, head } = state.selection.main;
    if (from < to) return { text: state.sliceDoc(from, to), from };
    let found: Statement = { text: this.text, from: 0 };
    for (const [begin, end] of statementsIn(this.text)) {
      if (begin <= head) found = { text: state.sliceDoc(begin, end), from: begin };
    }
    return found;
  }

  /** Mark an error and move the cursor there. With null, remove the mark. */
  mark(at: number | null, message = ""): void {
    const { doc } = this.#view.state;
    const marks: Diagnostic[] = [];
    if (at !== null) {
      const from = Math.min(at, doc.length);
      const word = /^[\p{L}\p{N}_$]+|^[^\s]/u.exec(doc.sliceString(from, from + 200))?.[0].length ?? 0;
      marks.push({ from: word ? from : Math.max(0, from - 1), to: from + word, severity: "error", message: visible(message) });
      this.#view.dispatch({ selection: { anchor: from }, scrollIntoView: true });
    }
    this.#view.dispatch(setDiagnostics(this.#view.state, marks));
  }
}
