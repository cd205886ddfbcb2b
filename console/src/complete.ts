// What can be written at a place in a manifest, by the JSON schema of its kind.
import type { Completion, CompletionContext, CompletionResult } from "@codemirror/autocomplete";
import { get } from "./api";

export type Schema = {
  description?: string;
  type?: string;
  const?: string;
  enum?: unknown[];
  required?: string[];
  properties?: Record<string, Schema>;
  additionalProperties?: Schema | boolean;
  items?: Schema;
};

/** Place is what the cursor is at: a key of the object at path, or the value of one. An
 * element of a list is "[]" in the path. */
export type Place = { path: string[]; value?: string; from: number; written: Set<string>; flow: boolean; indent: number };

type Line = { indent: number; dashes: number[]; key?: string; rest: string };

/** read takes a line apart: "  - name: x" has a dash at 2, and the key name at 4. */
function read(text: string): Line | null {
  const m = /^(\s*)((?:-\s+)*)(.*)$/.exec(text);
  if (!m || !m[3] || m[3].startsWith("#")) return m?.[2] ? { indent: text.length, dashes: columns(m[1] ?? "", m[2]), rest: "" } : null;
  const lead = m[1] ?? "";
  const k = /^("?)([^\s"'{}[\],#:][^\s"'{}[\],#:]*)\1:(?:\s+(.*))?$/.exec(m[3]);
  return { indent: lead.length + (m[2] ?? "").length, dashes: columns(lead, m[2] ?? ""), key: k?.[2], rest: k ? (k[3] ?? "") : m[3] };
}

function columns(lead: string, dashes: string): number[] {
  return [...dashes.matchAll(/-/g)].map((d) => lead.length + d.index);
}

/** flowOf follows braces that are open at the end of a text: the keys that lead there. */
function flowOf(text: string): { path: string[]; start: number } | null {
  const open: { key: string; start: number }[] = [];
  let key = "";
  for (const m of text.matchAll(/"(?:[^"\\]|\\.)*"?|'[^']*'?|[{}[\],]|([^\s"'{}[\],#:]+)\s*:/g)) {
    if (m[1]) key = m[1];
    else if (m[0] === "{" || m[0] === "[") {
      open.push({ key: key || (m[0] === "[" ? "" : "[]"), start: m.index + 1 });
      if (m[0] === "[" && key) open[open.length - 1] = { key, start: m.index + 1 };
      key = "";
    } else if (m[0] === "}" || m[0] === "]") open.pop();
    else if (m[0] === ",") key = "";
  }
  const last = open[open.length - 1];
  return last ? { path: open.map((o) => o.key).filter(Boolean), start: last.start } : null;
}

/** placeAt finds out where in a document a position is; null where nothing is known. */
export function placeAt(text: string, pos: number): Place | null {
  const begin = text.lastIndexOf("\n", pos - 1) + 1;
  const here = text.slice(begin, pos);
  const before = text.slice(0, begin).split("\n").slice(0, -1);
  const start = before.findLastIndex((l) => l.startsWith("---")) + 1;
  const above = before.slice(start);
  const flow = flowOf(here);
  if (flow) {
    const inner = here.slice(flow.start).split(",").pop() ?? "";
    const m = /^\s*(?:([^\s:]+):\s+)?([^\s:]*)$/.exec(inner);
    const line = read(here.slice(0, here.search(/[{[]/)).trimEnd());
    if (!m || !line?.key) return null;
    const written = new Set([...here.slice(flow.start).matchAll(/([^\s,{}:]+):/g)].map((x) => x[1] ?? ""));
    // The line's own key is the first that opens a brace.
    return { path: [...pathAbove(above, line).path, ...flow.path], value: m[1], from: pos - (m[2] ?? "").length, written, flow: true, indent: line.indent };
  }
  const line = read(here);
  if (line?.key !== undefined || /:\s*$/.test(here)) {
    if (!line?.key || !/:\s/.test(here) || /\s#|["']/.test(line.rest)) return null;
    const at = pathAbove(above, line);
    return { path: at.path, value: line.key, from: pos - line.rest.length, written: at.written, flow: false, indent: line.indent };
  }
  const word = line?.rest ?? "";
  if (!/^[\w./-]*$/.test(word)) return null;
  const at = pathAbove(above, line ?? { indent: here.length, dashes: [], rest: "" });
  const indent = line ? line.indent : here.length;
  for (const below of text.slice(pos).split("\n").slice(1)) {
    const l = read(below);
    if (!l) continue;
    if (l.indent < indent || below.startsWith("---") || (l.dashes[0] ?? indent) < indent) break;
    if (l.indent === indent && l.key) at.written.add(l.key);
  }
  return { path: at.path, from: pos - word.length, written: at.written, flow: false, indent };
}

/** pathAbove leads from the top of a document to the object that a line is a part of. */
function pathAbove(above: string[], line: Line): { path: string[]; written: Set<string> } {
  const path: string[] = [];
  const written = new Set<string>();
  let column = line.indent;
  let list = false; // the way up is through an element of a list
  let same = true; // still in the object itself
  const through = (dashes: number[]) => {
    for (const d of [...dashes].reverse()) {
      if (d >= column && list) continue;
      path.unshift("[]");
      column = d;
      list = true;
      same = false;
    }
  };
  through(line.dashes);
  for (const text of [...above].reverse()) {
    const l = read(text);
    if (!l?.key) continue;
    if (!l.rest && (list ? l.indent <= column : l.indent < column)) {
      path.unshift(l.key);
      column = l.indent;
      list = same = false;
      through(l.dashes);
    } else if (l.indent === column && !list) {
      if (same) written.add(l.key);
      through(l.dashes);
    }
  }
  return { path, written };
}

/** below is what a schema has at a path. */
export function below(schema: Schema | undefined, path: string[]): Schema | undefined {
  let at = schema;
  for (const part of path) {
    if (!at) return undefined;
    const more: Schema | undefined = typeof at.additionalProperties === "object" ? at.additionalProperties : undefined;
    at = part === "[]" ? at.items : (at.properties?.[part] ?? more);
  }
  // The members of a list may stand in brackets on one line.
  return at;
}

let names: Promise<string[]> | null = null;
const schemas = new Map<string, Promise<Schema>>();

function kinds(): Promise<string[]> {
  names ??= get<string[]>("/api/v1/schemas").catch(() => ((names = null), []));
  return names;
}

async function schemaOf(kind: string): Promise<Schema | undefined> {
  if (!(await kinds()).includes(kind)) return undefined;
  const known = schemas.get(kind) ?? get<Schema>(`/api/v1/schemas/${kind}`);
  schemas.set(kind, known);
  return known.catch(() => (schemas.delete(kind), undefined));
}

/** documentAt is the document of a file with several that a position is in. */
function documentAt(text: string, pos: number): string {
  const from = text.slice(0, pos).lastIndexOf("\n---");
  const to = text.slice(pos).indexOf("\n---");
  return text.slice(from < 0 ? 0 : from + 4, to < 0 ? text.length : pos + to);
}

/** complete is CodeMirror's source of completions. */
export async function complete(c: CompletionContext): Promise<CompletionResult | null> {
  const text = c.state.doc.toString();
  const at = placeAt(text, c.pos);
  if (!at || (!c.explicit && at.value === undefined && at.from === c.pos)) return null;
  const doc = documentAt(text, c.pos);
  const api = /^apiVersion:\s*["']?([^\s"'#]+)/m.exec(doc)?.[1];
  const kind = /^kind:\s*["']?(\w+)/m.exec(doc)?.[1];
  const ours = !api || api.startsWith("roundhouse.dev/");
  const root: Schema = { properties: { apiVersion: { const: "roundhouse.dev/v1alpha1" }, kind: { enum: await kinds() }, metadata: { type: "object" }, spec: { type: "object" } } };
  const schema = (ours && kind && (await schemaOf(kind))) || root;
  if (at.path.length === 0 && schema.properties) schema.properties["kind"] = root.properties?.["kind"] ?? {};
  const here = below(schema, at.path);
  const options = at.value !== undefined ? values(here?.properties?.[at.value]) : keys(here, at);
  return options.length > 0 ? { from: at.from, options, validFor: /^[\w./-]*$/ } : null;
}

function keys(schema: Schema | undefined, at: Place): Completion[] {
  return Object.entries(schema?.properties ?? {})
    .filter(([name]) => !at.written.has(name))
    .map(([name, s]) => ({
      label: name,
      detail: (s.type ?? "") + (schema?.required?.includes(name) ? " · required" : ""),
      info: s.description,
      apply: name + ":" + after(s, at),
      boost: schema?.required?.includes(name) ? 1 : 0,
    }));
}

/** after is what follows a key, up to where its value begins. */
function after(s: Schema, at: Place): string {
  const indent = "\n" + " ".repeat(at.indent + 2);
  if (at.flow || (s.type !== "object" && s.type !== "array")) return " ";
  return s.type === "array" ? indent + "- " : indent;
}

function values(s: Schema | undefined): Completion[] {
  if (!s) return [];
  const all = s.const !== undefined ? [s.const] : (s.enum ?? (s.type === "boolean" ? [true, false] : []));
  return all.map((v) => ({ label: String(v), info: s.description }));
}
