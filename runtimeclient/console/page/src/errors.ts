// Finds the position of an error in a statement. The runtime's messages end with the line and a caret below the error.

export interface Located {
  message: string; // without the excerpt
  at: number | null; // the offset in the statement
}

/** Separate a message from the position of the error, as `runtimeclient/sql/runner.py` does. */
export function locate(message: string, statement: string): Located {
  const lines = statement.split("\n");
  const parts = message.trimEnd().split("\n");
  const [excerpt, caretLine] = parts.slice(-2);
  const found = /^LINE ([0-9]{1,9}): (.*)$/.exec(excerpt ?? "");
  if (found && /^ *\^[\^~ ]*$/.test(caretLine ?? "")) {
    const number = Number(found[1]);
    const text = found[2]!;
    const caret = indexAt(text, caretLine!.indexOf("^") - `LINE ${number}: `.length);
    const isCut = text.startsWith("...");
    const core = text.replace(/^\.\.\./, "").replace(/\.\.\.$/, "");
    const at = lines[number - 1]?.indexOf(core) ?? -1;
    if (at >= 0) return { message: parts.slice(0, -2).join("\n").trimEnd(), at: offset(lines, number, at + caret - (isCut ? 3 : 0)) };
  }
  const position = / ?\(line ([0-9]{1,9}), column ([0-9]{1,9})\)/.exec(message);
  if (position && Number(position[1]) <= lines.length)
    return { message: message.replace(position[0], ""), at: offset(lines, Number(position[1]), Number(position[2]) - 1) };
  return { message, at: null };
}

/** The engine counts a wide character as two columns. */
function indexAt(text: string, columns: number): number {
  let index = 0;
  for (const character of text) {
    if (columns <= 0) break;
    columns -= /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u.test(character) ? 2 : 1;
    index += character.length;
  }
  return index;
}

function offset(lines: string[], number: number, column: number): number {
  const before = lines.slice(0, number - 1).reduce((sum, line) => sum + line.length + 1, 0);
  return before + Math.max(0, Math.min(column, lines[number - 1]!.length));
}
