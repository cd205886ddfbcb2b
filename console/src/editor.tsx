// An editor of YAML. It lives in a shadow tree, whose style sheets the page's policy
// lets a script make; elsewhere it would need inline styles. This file is loaded when
// it is first needed.
import { type JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { EditorState, EditorView, HighlightStyle, autocompletion, bracketMatching, completionKeymap, defaultKeymap, drawSelection, highlightActiveLine, history, historyKeymap, indentOnInput, keymap, lineNumbers, lintGutter, lintKeymap, setDiagnostics, syntaxHighlighting, tags, unifiedMergeView, yaml } from "codemirror";
import { complete } from "./complete";

export type Problem = { line: number; message: string; warning?: boolean };

const theme = EditorView.theme({
  "&": { backgroundColor: "var(--surface)", color: "var(--text)", fontSize: "13px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6", minHeight: "16rem", maxHeight: "34rem" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--muted)", border: "0" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--sunken)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--accent-soft) !important" },
  ".cm-tooltip": { backgroundColor: "var(--surface)", color: "var(--text)", border: "1px solid var(--line)" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", maxHeight: "14rem" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--text)" },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal" },
  ".cm-completionMatchedText": { textDecoration: "none", fontWeight: "600", color: "var(--accent)" },
  ".cm-tooltip.cm-completionInfo": { padding: "0.5rem 0.625rem", maxWidth: "22rem" },
  ".cm-deletedChunk": { backgroundColor: "var(--bad-soft)" },
  ".cm-changedLine, .cm-insertedLine": { backgroundColor: "var(--good-soft) !important" },
  ".cm-changedText, .cm-deletedChunk .cm-deletedText": { background: "none !important", textDecoration: "underline" },
});

const highlight = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.special(tags.string), tags.content], color: "var(--text)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--good)" },
  { tag: [tags.comment, tags.lineComment], color: "var(--muted)", fontStyle: "italic" },
  { tag: [tags.meta, tags.keyword], color: "var(--rest)" },
]);

const looks = [theme, syntaxHighlighting(highlight), yaml(), lineNumbers(), EditorView.lineWrapping];

function mount(at: HTMLElement, state: EditorState): EditorView {
  const root = at.shadowRoot ?? at.attachShadow({ mode: "open" });
  return new EditorView({ state, parent: root, root });
}

/** Editor begins with a text; whoever wants another one there makes another editor. */
export function Editor({ text, problems, label, changed }: { text: string; problems: Problem[]; label: string; changed: (text: string) => void }): JSX.Element {
  const at = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const tell = useRef(changed);
  tell.current = changed;
  useEffect(() => {
    if (!at.current) return undefined;
    const v = mount(
      at.current,
      EditorState.create({
        doc: text,
        extensions: [
          ...looks,
          history(),
          drawSelection(),
          highlightActiveLine(),
          indentOnInput(),
          bracketMatching(),
          lintGutter(),
          autocompletion({ override: [complete], icons: false }),
          keymap.of([...completionKeymap, ...defaultKeymap, ...historyKeymap, ...lintKeymap]),
          EditorView.contentAttributes.of({ "aria-label": label }),
          EditorView.updateListener.of((u) => u.docChanged && tell.current(u.state.doc.toString())),
        ],
      }),
    );
    view.current = v;
    return () => v.destroy();
  }, []);
  useEffect(() => {
    const v = view.current;
    if (!v) return;
    const doc = v.state.doc;
    v.dispatch(
      setDiagnostics(
        v.state,
        problems.map((p) => {
          const line = doc.line(Math.min(Math.max(p.line, 1), doc.lines));
          return { from: line.from, to: line.to, severity: p.warning ? ("warning" as const) : ("error" as const), message: p.message };
        }),
      ),
    );
  }, [problems]);
  return <div class="editor" ref={at} />;
}

/** Diff shows what changes from one text to another. */
export function Diff({ before, after, label }: { before: string; after: string; label: string }): JSX.Element {
  const at = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!at.current) return undefined;
    const v = mount(
      at.current,
      EditorState.create({
        doc: after,
        extensions: [...looks, EditorState.readOnly.of(true), EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }), unifiedMergeView({ original: before, mergeControls: false, gutter: true, collapseUnchanged: { margin: 3, minSize: 6 } })],
      }),
    );
    return () => v.destroy();
  }, [before, after]);
  return <div class="editor" ref={at} />;
}
