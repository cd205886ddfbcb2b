import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { change, get, servicePath } from "../api";
import { live, useLive } from "../live";
import type { Explanation } from "../types";
import { Card, Code, Failure, State, Table, Tabs, useLoaded } from "../ui";

type Tab = "runtime" | "request" | "wake";

export function WhyPage({ of }: { of: string }): JSX.Element {
  useLive("services");
  const [tab, go] = useState<Tab>("runtime");
  const services = [...live.services.keys()].sort();
  const at = of || (services[0] ?? "");
  return (
    <div class="page">
      <div class="head">
        <h1>Why</h1>
        <div class="end">
          <label>
            <span class="sr">Service</span>
            <select value={at} onChange={(e) => (location.hash = `#/why/${e.currentTarget.value}`)}>
              {services.map((k) => (
                <option key={k}>{k}</option>
              ))}
            </select>
          </label>
        </div>
      </div>
      <Tabs<Tab> label="What to explain" at={tab} go={go} tabs={{ runtime: "Runtime", request: "Request", wake: "Cold start" }} />
      {!at && <p class="muted">There is no service.</p>}
      {at && tab === "runtime" && <Runtime of={at} />}
      {at && tab === "request" && <Ask of={at} key={at} />}
      {at && tab === "wake" && <Wake of={at} />}
    </div>
  );
}

type Rule = { name: string; pass: boolean; why: string };
type Candidate = { name: string; scope?: string; rank?: number; rules?: Rule[]; why?: string };
type RuntimeFacts = { result: { chosen?: Candidate; message?: string; candidates?: Candidate[] } };

function Runtime({ of }: { of: string }): JSX.Element {
  const now = useLive("services", "changed").services.get(of);
  const { value, error } = useLoaded(() => get<Explanation[]>(`${servicePath(of)}/explain`), of, `${now?.generation} ${now?.status.revision} ${live.changed.get("lists")}`);
  const facts = value?.[0]?.facts as RuntimeFacts | undefined;
  const list = facts?.result.candidates ?? [];
  const [all, showAll] = useState(false);
  const ranked = list.filter((c) => (c.rank ?? 0) > 0);
  const failed = list.filter((c) => (c.rank ?? 0) === 0).sort((a, b) => failures(a).length - failures(b).length);
  const shown = all ? [...ranked, ...failed] : [...ranked, ...failed.slice(0, 5)];
  return (
    <>
      <Failure of={error} />
      <Card
        title={facts?.result.chosen ? `Runs on ${facts.result.chosen.name}` : "No runtime can serve it"}
        flush
        end={
          failed.length > 5 && (
            <button type="button" onClick={() => showAll(!all)}>
              {all ? "Show the nearest" : `Show all ${list.length}`}
            </button>
          )
        }
      >
        <Table heads={[["Rank", "num"], ["Runtime"], ["Rules"], ["Why"]]}>
          {shown.map((c) => (
            <tr key={`${c.scope ?? ""}/${c.name}`}>
              <td class="num">{c.rank ? c.rank : "–"}</td>
              <td class="text">
                {c.name}
                <span class="sub">{c.scope}</span>
              </td>
              <td>
                {failures(c).length === 0 ? (
                  <State tone="good">All pass</State>
                ) : (
                  failures(c).map((r) => (
                    <div key={r.name}>
                      <State tone="bad">Fails {r.name}</State>
                    </div>
                  ))
                )}
              </td>
              <td class="text">
                {failures(c).length === 0
                  ? c.why
                  : failures(c).map((r) => (
                      <div key={r.name}>{r.why}</div>
                    ))}
              </td>
            </tr>
          ))}
        </Table>
      </Card>
      {value?.[0] && (
        <Card title="In full">
          <Code text={value[0].text} />
        </Card>
      )}
    </>
  );
}

function failures(c: Candidate): Rule[] {
  return (c.rules ?? []).filter((r) => !r.pass);
}

function Wake({ of }: { of: string }): JSX.Element {
  const { value, error } = useLoaded(() => get<Explanation>(`${servicePath(of)}/explain-wake`), of, JSON.stringify(useLive("machine").machine?.standings));
  return (
    <>
      <Failure of={error} />
      {value && (
        <Card title="What a request would start and stop now">
          <Code text={value.text} />
        </Card>
      )}
    </>
  );
}

function Ask({ of }: { of: string }): JSX.Element {
  const name = of.split("/")[1] ?? of;
  const openai = live.services.get(of)?.status.protocol === "openAI";
  const [path, setPath] = useState(openai ? "/v1/chat/completions" : `/v2/models/${name}/infer`);
  const [body, setBody] = useState(openai ? JSON.stringify({ model: name, messages: [{ role: "user", content: "Hello" }] }, null, 2) : "{}");
  const [headers, setHeaders] = useState("");
  const [answer, set] = useState<Explanation | null>(null);
  const [error, fail] = useState<unknown>(null);
  const submit = (e: Event) => {
    e.preventDefault();
    const header: Record<string, string> = {};
    for (const line of headers.split("\n")) {
      const at = line.indexOf(":");
      if (at > 0) header[line.slice(0, at).trim()] = line.slice(at + 1).trim();
    }
    change<Explanation>("POST", "/api/v1/explain-request", { path, body, header }).then(
      (x) => (set(x), fail(null)),
      (e: unknown) => (fail(e), set(null)),
    );
  };
  return (
    <div class="grid">
      <Card title="The request">
        <form class="stack" onSubmit={submit}>
          <label class="field">
            Path
            <input class="mono" value={path} spellcheck={false} onInput={(e) => setPath(e.currentTarget.value)} />
          </label>
          <label class="field">
            Headers, one a line
            <textarea class="code" rows={2} spellcheck={false} value={headers} onInput={(e) => setHeaders(e.currentTarget.value)} />
          </label>
          <label class="field">
            Body
            <textarea class="code" rows={8} spellcheck={false} value={body} onInput={(e) => setBody(e.currentTarget.value)} />
          </label>
          <div>
            <button class="primary">Explain</button>
          </div>
        </form>
      </Card>
      <Card title="Where it would go now">
        <Failure of={error} />
        {answer ? <Code text={answer.text} fold /> : !error && <p class="muted">Nothing is sent to the model: this is the route, the admission and the picker's choice, step by step.</p>}
      </Card>
    </div>
  );
}
