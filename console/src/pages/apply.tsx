import { type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Refused, change, get } from "../api";
import type { Problem } from "../editor";
import { live, useLive } from "../live";
import { keyOf } from "../state";
import type { Change, Service } from "../types";
import { Card, Code, Failure, Note, State, toast } from "../ui";

type Answer = { changes: Change[]; warnings?: string[] };
type Parts = typeof import("../editor");

const example = `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata:
  name: my-model
spec:
  model:
    format: {name: simulator}
  scaling:
    minReplicas: 0
    maxReplicas: 2
`;

const fileName = "manifest";

/** A problem's place is "manifest:LINE: ". */
function placed(text: string, warning: boolean): Problem {
  const m = /^manifest:(\d+)(?::\d+)?: ?/.exec(text);
  return { line: m ? Number(m[1]) : 1, message: m ? text.slice(m[0].length) : text, warning };
}

export function ApplyPage({ owner }: { owner: boolean }): JSX.Element {
  useLive("services");
  const [parts, load] = useState<Parts | null>(null);
  const [text, set] = useState(example);
  const [opened, reopen] = useState(0);
  const [applied, again] = useState(0);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [error, fail] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const due = useRef(0);
  const turn = useRef(0);
  useEffect(() => {
    void import("../editor").then(load);
  }, []);
  const ask = (dry: boolean) => change<Answer>("POST", `/api/v1/apply${dry ? "?dry-run" : ""}`, { files: [{ name: fileName, data: text }] });
  useEffect(() => {
    if (!owner) return undefined;
    window.clearTimeout(due.current);
    const mine = ++turn.current;
    due.current = window.setTimeout(() => {
      ask(true).then(
        (a) => mine === turn.current && (setAnswer(a), fail(null)),
        (e: unknown) => mine === turn.current && (fail(e), setAnswer(null)),
      );
    }, 300);
    return () => window.clearTimeout(due.current);
  }, [text, applied]);
  const apply = () => {
    setBusy(true);
    ask(false)
      .then(
        (a) => {
          toast(a.changes.map((c) => `${c.name} ${c.action}`).join(", ") + ".");
          again((n) => n + 1);
        },
        (e: unknown) => fail(e),
      )
      .finally(() => setBusy(false));
  };
  const open = (key: string) => {
    if (!key) return;
    get<Service>(`/api/v1/services/${key}`).then((s) => (set(s.written ?? ""), reopen((n) => n + 1)), fail);
  };
  if (!owner)
    return (
      <div class="page">
        <h1>Apply</h1>
        <Note>You are signed in to read only. The owner's link or token applies manifests.</Note>
      </div>
    );
  const problems = error instanceof Refused && error.problems.length > 0 ? error.problems.map((p) => placed(p, false)) : [];
  const warnings = (answer?.warnings ?? []).map((w) => placed(w, true));
  return (
    <div class="page">
      <div class="head">
        <h1>Apply</h1>
        <div class="end">
          <label>
            <span class="sr">Open a service's manifest</span>
            <select value="" onChange={(e) => open(e.currentTarget.value)}>
              <option value="">Open a service…</option>
              {[...live.services.values()].map((s) => (
                <option key={keyOf(s)}>{keyOf(s)}</option>
              ))}
            </select>
          </label>
          <button type="button" class="primary" disabled={busy || !answer || answer.changes.length === 0} onClick={apply}>
            Apply
          </button>
        </div>
      </div>
      <Card title="Manifest" end={<Verdict error={error} answer={answer} />}>
        {parts ? <parts.Editor key={opened} label="Manifest" text={text} problems={[...problems, ...warnings]} changed={set} /> : <p class="muted">Loading the editor…</p>}
        <p class="small muted hint">
          <kbd>Ctrl</kbd>+<kbd>Space</kbd> shows what can be written here, <kbd>↑</kbd> <kbd>↓</kbd> and <kbd>Enter</kbd> choose. <kbd>Tab</kbd> leaves the editor.
        </p>
      </Card>
      {problems.length > 0 ? <Problems of={problems} /> : <Failure of={error} />}
      {warnings.length > 0 && <Problems of={warnings} />}
      {answer?.changes.map((c) => (
        <Card key={`${c.kind} ${keyOf(c)}`} title={`${c.kind} ${keyOf(c)}`} end={<State tone={c.action === "unchanged" ? "off" : "busy"}>{c.action === "unchanged" ? "Unchanged" : c.action === "created" ? "To be created" : "To be changed"}</State>}>
          {c.action === "unchanged" ? <p class="muted">It is as it was applied.</p> : c.before && parts ? <parts.Diff key={c.after} label={`Changes of ${c.name}`} before={c.before} after={c.after ?? ""} /> : <Code text={c.after ?? ""} />}
        </Card>
      ))}
    </div>
  );
}

function Verdict({ error, answer }: { error: unknown; answer: Answer | null }): JSX.Element {
  if (error) return <State tone="bad">Refused</State>;
  if (!answer) return <State tone="busy">Checking</State>;
  return <State tone="good">Can be applied</State>;
}

function Problems({ of }: { of: Problem[] }): JSX.Element {
  return (
    <div class={`note ${of[0]?.warning ? "busy" : "bad"}`} role="alert">
      <ul>
        {of.map((p, i) => (
          <li key={i}>
            <strong>Line {p.line}</strong> {p.message}
          </li>
        ))}
      </ul>
    </div>
  );
}
