// Splits a text into statements, in the same way as runtimeclient/sql/statements.py. The parser of the editor does not
// do: for example, it takes a comment directly after an operator as part of the operator.

const LETTER = "\\w\\u{80}-\\u{10ffff}";
const BEFORE = `(?<![${LETTER}$])`;
const TOKEN = `(?<blank>\\s+|--[^\\r\\n]*)|(?<opening>/\\*|['"\`]|${BEFORE}[eE]'|${BEFORE}\\$(?!\\d)[${LETTER}]*\\$)|[${LETTER}$]+|[^]`;

/** Yield where each statement begins and ends. Comments around a statement do not belong to it, but its semicolon does. */
export function* statementsIn(text: string): Generator<[number, number]> {
  const token = new RegExp(TOKEN, "gu");
  let [from, to] = [-1, 0];
  for (let found = token.exec(text); found; found = token.exec(text)) {
    const { blank, opening } = found.groups!;
    if (opening) token.lastIndex = endOf(text, opening, token.lastIndex);
    if (blank || opening === "/*") continue;
    const isEnd = found[0] === ";";
    if (from < 0 && !isEnd) from = found.index;
    to = token.lastIndex;
    if (isEnd && from >= 0) {
      yield [from, to];
      from = -1;
    }
  }
  if (from >= 0) yield [from, to];
}

/** Return the end of a comment, literal or quoted name that *opening* opens before *at*. */
function endOf(text: string, opening: string, at: number): number {
  // A doubled quote can be read as the end of one literal and the start of the next, unless there are escapes.
  const isEscaped = /^e'/i.test(opening);
  if (opening !== "/*" && !isEscaped) {
    const end = text.indexOf(opening, at);
    return end < 0 ? text.length : end + opening.length;
  }
  const edge = isEscaped ? /\\[^]|''|'/g : /\/\*|\*\//g;
  edge.lastIndex = at;
  let depth = 1;
  for (let found = edge.exec(text); found; found = edge.exec(text)) {
    if (found[0] === "/*") depth++;
    else if (found[0] === "'" || (found[0] === "*/" && !--depth)) return edge.lastIndex;
  }
  return text.length;
}
