
// Markdown of a model's text, as nodes. The text is untrusted: it becomes text nodes in elements that
// are made here, and links are shown with their addresses. All work is bounded by the text's length.
const MAX_DEPTH = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/, HEADING = /^ {0,3}(#{1,6}) ([^]*)$/, RULE = /^ {0,3}([-*_])( *\1){2,} *$/, QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: ([^]*))?$/;
const indent = line => line.length - line.trimStart().length;
const isBlank = line => line.trim() === "";
function isTable(lines, at) {
  if (!lines[at].includes("|") || !(lines[at + 1] || "").includes("-")) return false;
  const divider = cellsOf(lines[at + 1]);
  return divider.length === cellsOf(lines[at]).length && divider.every(cell => /^:?-+:?$/.test(cell));
}
const begins = line => [FENCE, HEADING, RULE, QUOTE, ITEM].some(form => form.test(line));

// Shows a text that grows: blocks that are as before keep their nodes, and with them what a reader has selected.
function showMarkdown(node, text) {
  const lines = text.replaceAll("\t", "    ").split("\n"), parts = node.parts || (node.parts = []), blocks = blocksOf(lines);
  blocks.forEach((block, place) => {
    const key = lines.slice(block.from, block.to).join("\n"), old = parts[place];
    if (old && old.kind === block.kind && old.key === key) return;
    if (old && old.kind === "code" && block.kind === "code") fillCode(old.node, block);
    else {
      const made = nodeOf(block, 0);
      if (old) old.node.replaceWith(made);
      else node.append(made);
      parts[place] = { node: made };
    }
    Object.assign(parts[place], { kind: block.kind, key });
  });
  for (const part of parts.splice(blocks.length)) part.node.remove();
}
function blocksOf(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (isBlank(lines[at])) { at++; continue; }
    const block = blockAt(lines, at);
    blocks.push({ from: at, ...block });
    at = block.to;
  }
  return blocks;
}
// The block that begins at a line. `to` is the line after its last one.
function blockAt(lines, at) {
  const line = lines[at], until = test => { let to = at + 1; while (to < lines.length && !test(lines[to], to)) to++; return to; };
  const fence = FENCE.exec(line);
  if (fence) {
    const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},} *$`), end = until(one => close.test(one)), own = indent(line);
    return { kind: "code", label: fence[2].trim().split(" ")[0], text: lines.slice(at + 1, end).map(one => one.slice(Math.min(own, indent(one)))).join("\n"), to: Math.min(end + 1, lines.length) };
  }
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2].trim().replace(/ #+$/, ""), to: at + 1 };
  if (RULE.test(line)) return { kind: "rule", to: at + 1 };
  if (QUOTE.test(line)) {
    const to = until(one => !QUOTE.test(one));
    return { kind: "quote", lines: lines.slice(at, to).map(one => one.replace(QUOTE, "")), to };
  }
  if (ITEM.test(line)) return listAt(lines, at);
  if (isTable(lines, at)) {
    const to = until((one, place) => place > at + 1 && !one.includes("|"));
    return { kind: "table", rows: lines.slice(at, to).map(cellsOf), to };
  }
  const to = until((one, place) => isBlank(one) || begins(one) || isTable(lines, place));
  return { kind: "paragraph", text: lines.slice(at, to).map(one => one.trim()).join("\n"), to };
}
function listAt(lines, from) {
  const [, base, mark] = ITEM.exec(lines[from]), isOrdered = /\d/.test(mark), items = [];
  const isNext = found => found && indent(found[0]) < base.length + 2 && /\d/.test(found[2]) === isOrdered;
  let at = from, inside = 0;
  for (; at < lines.length; at++) {
    const line = lines[at], found = ITEM.exec(line), deep = indent(line);
    if (isNext(found)) {
      inside = found[1].length + found[2].length + 1;
      items.push([(found[3] || "").trimStart().replace(/^\[([ x])\] /i, (_, mark) => mark === " " ? "☐ " : "☑ ")]);
    } else if (isBlank(line)) {
      let next = at;
      while (next < lines.length && isBlank(lines[next])) next++;
      if (next === lines.length || !isNext(ITEM.exec(lines[next])) && indent(lines[next]) < base.length + 2) break;
      items.at(-1).push("");
    } else if (deep >= base.length + 2) items.at(-1).push(line.slice(Math.min(deep, inside)));
    else if (begins(line) || isBlank(lines[at - 1])) break;
    else items.at(-1).push(line.trim());
  }
  return { kind: "list", start: isOrdered ? parseInt(mark, 10) : null, items, to: at };
}
// The cells of a row of a table, without the bars at its ends.
function cellsOf(line) {
  const cells = line.trim().replaceAll("\\|", "\0").split("|").map(cell => cell.replaceAll("\0", "|").trim());
  if (cells[0] === "") cells.shift();
  if (cells.at(-1) === "") cells.pop();
  return cells;
}
function nodeOf(block, depth) {
  const inner = lines => depth >= MAX_DEPTH ? [lines.join("\n")] : blocksOf(lines).map(one => nodeOf(one, depth + 1));
  switch (block.kind) {
    case "code": return fillCode(codeNode(), block);
    case "heading": return el(`h${Math.min(block.level + 2, 6)}`, "", ...inline(block.text));
    case "rule": return el("hr", "");
    case "quote": return el("blockquote", "", ...inner(block.lines));
    case "table": return tableOf(block.rows);
    case "list": {
      const list = el(block.start === null ? "ul" : "ol", "", ...block.items.map(lines => el("li", "", ...inner(lines))));
      if (block.start > 1) list.start = block.start;
      return list;
    }
    default: return el("p", "", ...inline(block.text));
  }
}
function codeNode() {
  const code = el("code", ""), button = copyButton(() => code.textContent, code);
  return el("div", "code", el("div", "top", el("span", ""), button), el("pre", "", code));
}
function fillCode(node, { label, text }) {
  node.querySelector("span").textContent = label || "text";
  node.querySelector("code").textContent = text;
  return node;
}
function tableOf([head, divider, ...rows]) {
  const side = divider.map(cell => cell.endsWith(":") ? cell.startsWith(":") ? "middle" : "end" : "");
  const row = (tag, cells) => el("tr", "", ...head.map((_, place) => el(tag, side[place] || "", ...inline(cells[place] || ""))));
  return el("div", "wide-table", el("table", "", el("thead", "", row("th", head)), el("tbody", "", ...rows.map(cells => row("td", cells)))));
}
// A button that copies a text. Without permission for the clipboard it selects the node instead, and copies that.
function copyButton(text, node) {
  const button = el("button", "plain", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text()); } catch {
      getSelection().selectAllChildren(node);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => button.textContent = "Copy", 2000);
  });
  return button;
}
const LINK = /!?\[([^[\]\n]{0,500})\]\(\s*<?((?:[^\s()<>]|\([^\s()<>]{0,500}\)){1,2000})>?(?:\s+"[^"\n]{0,500}")?\s*\)/y;
const EMPHASIS = ["", "em", "strong"];
// The nodes of a line: code, emphasis and links, in one pass. `none` has the marks that end nowhere in the rest.
function inline(text, depth = 0) {
  const nodes = [], none = new Set();
  let plain = "", at = 0;
  const push = (...more) => { if (plain) nodes.push(plain); plain = ""; nodes.push(...more); };
  while (at < text.length) {
    const sign = text[at];
    if (sign === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] || "")) { plain += text[at + 1]; at += 2; continue; }
    if (sign === "[" || sign === "!") {
      LINK.lastIndex = at;
      const link = LINK.exec(text);
      if (link) {
        const [whole, name, address] = link;
        push(...(name === "" || name === address ? [] : [...(depth < MAX_DEPTH ? inline(name, depth + 1) : [name]), " "]), el("span", "address", `(${address})`));
        at += whole.length;
        continue;
      }
    }
    const length = "`*_~".includes(sign) ? runAt(text, at) : 0, mark = sign.repeat(length);
    const mayBegin = length > 0 && !none.has(mark) && (sign === "`" || depth < MAX_DEPTH && isOpening(text, mark, at));
    const end = !mayBegin ? -1 : sign === "`" ? closeOf(text, mark, at + length) : endOf(text, mark, at + length);
    if (end > 0) {
      const inside = text.slice(at + length, end);
      push(sign === "`" ? el("code", "", inside.replace(/^ (.*[^ ].*) $/s, "$1")) : emphasis(mark, inline(inside, depth + 1)));
      at = end + length;
      continue;
    }
    if (mayBegin) none.add(mark);
    plain += mark || sign;
    at += length || 1;
  }
  push();
  return nodes;
}
function emphasis(mark, inner) {
  if (mark[0] === "~") return el("del", "", ...inner);
  return mark.length === 3 ? el("strong", "", el("em", "", ...inner)) : el(EMPHASIS[mark.length], "", ...inner);
}
function runAt(text, at) {
  let end = at;
  while (text[end] === text[at]) end++;
  return end - at;
}
// Where a run of exactly this mark is, from a place on; -1: nowhere.
function closeOf(text, mark, from) {
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at)) {
    const length = runAt(text, at);
    if (length === mark.length) return at;
    at += length;
  }
  return -1;
}
const isWord = sign => /[\p{L}\p{N}]/u.test(sign || ""), isSpace = sign => /^\s?$/.test(sign || "");
// Whether an emphasis may begin with this mark.
function isOpening(text, mark, at) {
  return mark.length <= 3 && (mark[0] !== "~" || mark.length === 2) && !isSpace(text[at + mark.length]) && !(mark[0] === "_" && isWord(text[at - 1]));
}
// Where an emphasis of this mark ends, from a place on; -1: nowhere.
function endOf(text, mark, from) {
  for (let at = closeOf(text, mark, from); at > 0; at = closeOf(text, mark, at + mark.length)) {
    if (!isSpace(text[at - 1]) && !(mark[0] === "_" && isWord(text[at + mark.length]))) return at;
  }
  return -1;
}
