export { EditorState, Compartment } from "@codemirror/state";
export { EditorView, keymap, lineNumbers, drawSelection, highlightActiveLine } from "@codemirror/view";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { yaml } from "@codemirror/lang-yaml";
export { HighlightStyle, syntaxHighlighting, indentOnInput, bracketMatching } from "@codemirror/language";
export { setDiagnostics, lintGutter, lintKeymap } from "@codemirror/lint";
export { unifiedMergeView } from "@codemirror/merge";
export { tags } from "@lezer/highlight";
export { autocompletion, completionKeymap } from "@codemirror/autocomplete";
