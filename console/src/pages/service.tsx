import { type JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { about, change, get, servicePath } from "../api";
import { Chart, type Line, type Mark } from "../chart";
import { ago, bytes, clock, count, milliseconds, percent, plural, rate } from "../format";
import { live, useLive } from "../live";
import { keyOf, spaced, stateOf, toneOfPhase } from "../state";
import type { Change, Point, ScaleHistory, Service } from "../types";
import { Address, Ask, Card, Code, Copy, Empty, Facts, Failure, Note, State, Table, Tabs, toast, useLoaded, useTick } from "../ui";

type Tab = "overview" | "conditions" | "written" | "rendered" | "usage";

export function ServicePage({ of, owner }: { of: string; owner: boolean }): JSX.Element {
  useLive("services");
  const [tab, go] = useState<Tab>("overview");
  const s = live.services.get(of);
  if (!s) return <Missing of={of} />;
  const state = stateOf(s);
  return (
    <div class="page">
      <p class="small">
        <a href="#/">Overview</a> <span class="muted">/ {s.namespace}</span>
      </p>
      <div class="head">
        <h1>{s.name}</h1>
        <State tone={state.tone} pill>
          {state.word}
        </State>
        <Actions service={s} owner={owner && !about.readOnly} />
      </div>
      {state.why && state.tone !== "good" && (
        <Note tone={state.tone}>
          <Sentence text={state.why} />
        </Note>
      )}
      {s.lastFailure && (
        <p class="small muted wrap">
          Last failure {clock(s.lastFailure.time)}: {spaced(s.lastFailure.reason)}. {s.lastFailure.message}
        </p>
      )}
      <Tabs<Tab> label="About this service" at={tab} go={go} tabs={{ overview: "Now", conditions: "Conditions", ...(owner ? { written: "As written", rendered: "Live manifest" } : {}), usage: "Usage" }} />
      {tab === "overview" && <Now service={s} />}
      {tab === "conditions" && <Conditions service={s} />}
      {(tab === "written" || tab === "rendered") && <Manifest service={s} field={tab} />}
      {tab === "usage" && <Usage of={of} />}
    </div>
  );
}

function Sentence({ text }: { text: string }): JSX.Element {
  return <>{text.charAt(0).toUpperCase() + text.slice(1)}</>;
}

function Missing({ of }: { of: string }): JSX.Element {
  return (
    <div class="page">
      <h1>{of}</h1>
      <Note>{live.whole ? "There is no such service; it may have been deleted." : "Loading…"}</Note>
      <a href="#/">All services</a>
    </div>
  );
}

type Asking = "scale" | "delete" | "stop" | null;

function Actions({ service: s, owner }: { service: Service; owner: boolean }): JSX.Element {
  const [asking, ask] = useState<Asking>(null);
  const path = servicePath(keyOf(s));
  const act = async (what: string, body: { do: string }) => {
    const done = await change<Change>("POST", `${path}/actions`, body);
    toast(done.action === "unchanged" && body.do !== "reselect" ? `${s.name}: nothing had to change.` : `${s.name}: ${what}.`);
  };
  const at = (what: string, body: { do: string }) => () => void act(what, body).catch((e: unknown) => toast(e instanceof Error ? e.message : String(e), "bad"));
  const stopped = stateOf(s).word === "Stopped";
  const runs = !stopped && (s.replicas ?? []).some((r) => r.phase !== "Asleep");
  if (!owner) return <span class="end small muted">Read only</span>;
  return (
    <div class="end">
      <a class="button" href={`#/playground/${keyOf(s)}`}>
        Try it
      </a>
      <button type="button" disabled={runs} title={runs ? "It has a replica already" : undefined} onClick={at("started", { do: "start" })}>
        Start
      </button>
      <button type="button" disabled={stopped} onClick={() => ask("stop")}>
        Stop
      </button>
      <button type="button" disabled={stopped} onClick={at("is restarting", { do: "restart" })}>
        Restart
      </button>
      <button type="button" onClick={() => ask("scale")}>
        Scale
      </button>
      <button type="button" onClick={at("its runtime was chosen again", { do: "reselect" })}>
        Reselect
      </button>
      <button type="button" class="danger" onClick={() => ask("delete")}>
        Delete
      </button>
      {asking === "stop" && (
        <Ask title={`Stop ${s.name}?`} verb="Stop" danger close={() => ask(null)} act={() => act("stopped", { do: "stop" })}>
          <p class="muted">Its replicas finish the requests that they have, and end. Requests that come are refused until it is started.</p>
        </Ask>
      )}
      {asking === "scale" && <Scale service={s} close={() => ask(null)} act={act} />}
      {asking === "delete" && (
        <Ask
          title={`Delete ${s.name}?`}
          verb="Delete"
          danger
          type={s.name}
          close={() => ask(null)}
          act={async () => {
            await change<Change>("DELETE", path);
            toast(`${s.name} is deleted.`);
            location.hash = "#/";
          }}
        >
          <p class="muted">Its replicas end and its manifest is removed from the server. A file of -f that still has it brings it back at the next start.</p>
        </Ask>
      )}
    </div>
  );
}

function Scale({ service: s, close, act }: { service: Service; close: () => void; act: (what: string, body: { do: string; min: number; max: number; component?: string }) => Promise<void> }): JSX.Element {
  const roles = Object.keys(s.limits ?? {});
  const [role, choose] = useState(roles[0] ?? "");
  const limits = s.limits?.[role];
  const [min, setMin] = useState(String(limits?.Min ?? 0));
  const [max, setMax] = useState(String(limits?.Max ?? 1));
  return (
    <Ask title={`Scale ${s.name}`} verb="Scale" close={close} act={() => act("scaled", { do: "scale", min: Number(min), max: Number(max), ...(roles.length > 1 ? { component: role } : {}) })}>
      <p class="muted">The autoscaler decides between the two. With a minimum of 0 it stops while it is idle.</p>
      {roles.length > 1 && (
        <label class="field">
          Component
          <select value={role} onChange={(e) => choose(e.currentTarget.value)}>
            {roles.map((r) => (
              <option key={r}>{r}</option>
            ))}
          </select>
        </label>
      )}
      <div class="row">
        <label class="field">
          Minimum
          <input name="min" type="number" min="0" value={min} onInput={(e) => setMin(e.currentTarget.value)} />
        </label>
        <label class="field">
          Maximum
          <input name="max" type="number" min="1" value={max} onInput={(e) => setMax(e.currentTarget.value)} />
        </label>
      </div>
    </Ask>
  );
}

function Now({ service: s }: { service: Service }): JSX.Element {
  const key = keyOf(s);
  return (
    <>
      <Figures of={key} />
      <Replicas service={s} />
      <Hour of={key} />
      <Card title="What it runs on">
        <Facts
          of={[
            ["Runtime", s.status.runtime?.name ? `${s.status.runtime.name} (${s.status.runtime.scope ?? ""})` : "–"],
            ["Why", <>{s.status.runtime?.why ?? "–"} · <a href={`#/why/${key}`}>all of it</a></>],
            ["Model", s.model ? <Address text={s.model} /> : "–"],
            ["Protocol", s.status.protocol ?? "–"],
            ["URL", s.status.url ? <Address text={s.status.url} /> : "–"],
            ["Revision", s.status.revision ?? "–"],
            ...(s.status.canary ? ([["Canary", `${s.status.canary.revision ?? ""}: ${s.status.canary.percent} % of ${s.status.canary.wanted} % wanted. ${s.status.canary.why ?? ""}`]] as [string, string][]) : []),
            ...Object.entries(s.limits ?? {}).map(([role, l]): [string, string] => [`Scaling of ${role}`, `${l.Min} to ${l.Max}, ${l.Target} ${l.Metric} each${l.Min === 0 ? `, to zero after ${l.ScaleToZeroAfter}` : ""}`]),
            ...Object.entries(s.scaling ?? {}).map(([role, why]): [string, string] => [`Replicas of ${role}`, why]),
            ["Manifest", s.file ?? "applied"],
          ]}
        />
      </Card>
    </>
  );
}

function Figures({ of }: { of: string }): JSX.Element {
  useLive("traffic");
  const t = live.traffic.get(of);
  const r = live.rates(of);
  if (about.without?.traffic) return <p class="muted">{about.without.traffic}</p>;
  return (
    <dl class="card figures">
      {(
        [
          ["Requests", rate(r.requests), "/s"],
          ["In flight", count(t?.running ?? 0), ""],
          ["Waiting", count(t?.queued ?? 0), ""],
          ["Tokens", rate(r.tokens), "/s"],
          ["Failed so far", count(t?.failed ?? 0), ` of ${count(t?.requests ?? 0)}`],
          ["Client errors", count(t?.clientErrors ?? 0), ""],
        ] as [string, string, string][]
      ).map(([name, value, unit]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            {value}
            <small> {unit}</small>
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Replicas({ service: s }: { service: Service }): JSX.Element {
  useTick(5000);
  useLive("traffic");
  const list = s.replicas ?? [];
  const asked = live.traffic.get(keyOf(s))?.replicas ?? {};
  return (
    <Card title="Replicas" flush>
      {list.length === 0 ? (
        <Empty>None runs now.</Empty>
      ) : (
        <Table heads={[["Replica"], ["State"], ["Component"], ["In flight", "num"], ["Queue", "num", "Requests that wait in the engine's own queue"], ["KV", "num", "The part in use of the engine's memory for keys and values"], ["Memory", "num"], ["GPU", "num"], ["Restarts", "num"], ["Started", "num"], [""]]}>
          {list.map((r) => (
            <tr key={r.id}>
              <td class="text">
                {r.id}
                <span class="sub">{r.progress ? `fetching ${bytes(r.progress.done)}${r.progress.total ? ` of ${bytes(r.progress.total)}` : ""}` : (r.message ?? r.http ?? "")}</span>
              </td>
              <td>
                <State tone={toneOfPhase(r.phase)}>{r.reason ? `${r.phase}: ${spaced(r.reason)}` : r.phase}</State>
              </td>
              <td>{r.role}</td>
              <td class="num">{asked[r.id]?.inFlight ?? "–"}</td>
              <td class="num">{asked[r.id]?.waiting ?? "–"}</td>
              <td class="num">{percent(asked[r.id]?.kv)}</td>
              <td class="num">{r.memory ? bytes(r.memory) : "–"}</td>
              <td class="num">{r.gpus?.length ? `${r.gpus.join(", ")}${r.gpuMemory ? ` · ${bytes(r.gpuMemory)}` : ""}` : "–"}</td>
              <td class="num">{r.restarts ?? 0}</td>
              <td class="num">{r.started ? `${ago(r.started)} ago` : "–"}</td>
              <td class="num">
                <a href={`#/logs/${keyOf(s)}/${encodeURIComponent(r.id)}`}>Logs</a>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}

/** Hour is the charts of the last hour, with the autoscaler's decisions as marks. */
function Hour({ of }: { of: string }): JSX.Element {
  const n = useLive("changed").changed.get("paces");
  const [points, setPoints] = useState<Point[]>([]);
  const [past, setPast] = useState<ScaleHistory[]>([]);
  const [error, fail] = useState<unknown>(null);
  useEffect(() => {
    const path = servicePath(of);
    Promise.all([get<Point[]>(`${path}/pace`), get<ScaleHistory[]>(`${path}/explain-scale`)]).then(([p, h]) => (setPoints(p), setPast(h), fail(null)), fail);
  }, [of, n]);
  const { times, replicas, demand, wait } = useMemo(() => lines(points), [points]);
  const marks = useMemo(() => decisions(past), [past]);
  const whole = useMemo(() => (n: number) => (n >= 10 ? count(Math.round(n)) : String(Math.round(n * 10) / 10)), []);
  if (error) return <Failure of={error} />;
  if (points.length === 0) return <Card title="The last hour"><p class="muted">Nothing was asked of it, and nothing ran.</p></Card>;
  return (
    <>
      <div class="grid thirds">
        <Card title="Replicas">
          <Chart label="Replicas wanted, starting and ready in the last hour; the autoscaler's decisions are marked and listed below" times={times} lines={replicas} marks={marks} unit={whole} />
        </Card>
        <Card title="Demand">
          <Chart label="Requests in flight and waiting, and requests per second, in the last hour" times={times} lines={demand} unit={whole} />
        </Card>
        <Card title="Time">
          <Chart label="Longest wait for a replica, and mean time to the first byte, in the last hour" times={times} lines={wait} unit={milliseconds} />
        </Card>
      </div>
      <Card title="The autoscaler's decisions" end={<span class="small muted">{plural(marks.length, "change")}</span>}>
        <ol class="marks" tabIndex={0} aria-label="Decisions">
          {[...marks].reverse().map((m) => (
            <li key={m.time}>
              <span class="muted">{clock(new Date(m.time * 1000).toISOString())}</span>
              <span>{m.label}</span>
              <span class="wrap">{m.why}</span>
            </li>
          ))}
        </ol>
      </Card>
    </>
  );
}

const step = 10;

function lines(points: Point[]): { times: number[]; replicas: Line[]; demand: Line[]; wait: Line[] } {
  const times: number[] = [];
  const rows: (Point | null)[] = [];
  let last = 0;
  for (const p of points) {
    const t = new Date(p.time).getTime() / 1000;
    if (last && t - last > 2.5 * step) {
      times.push(last + step, t - step); // in between it did nothing
      rows.push(null, null);
    }
    times.push(t);
    rows.push(p);
    last = t;
  }
  const of = (f: (p: Point) => number, none: number | null = 0) => rows.map((p) => (p ? f(p) : none));
  return {
    times,
    replicas: [
      { name: "Wanted (replicas)", tone: "accent", values: of((p) => p.desired), dash: true, steps: true },
      { name: "Starting (replicas)", tone: "busy", values: of((p) => p.starting), steps: true },
      { name: "Ready (replicas)", tone: "good", values: of((p) => p.ready), steps: true },
    ],
    demand: [
      { name: "In flight (requests)", tone: "accent", values: of((p) => p.running) },
      { name: "Waiting (requests)", tone: "busy", values: of((p) => p.queued) },
      { name: "Arrivals (requests/s)", tone: "good", values: of((p) => p.requests / step) },
    ],
    wait: [
      { name: "Longest wait (time)", tone: "busy", values: of((p) => p.waitMs) },
      { name: "First byte, mean (time)", tone: "accent", values: of((p) => (p.firstByteMs > 0 ? p.firstByteMs : 0), null) },
    ],
  };
}

function decisions(past: ScaleHistory[]): (Mark & { why: string })[] {
  const out: (Mark & { why: string })[] = [];
  for (const h of past) {
    let was = 0;
    for (const d of h.decisions) {
      if (d.desired !== was) out.push({ time: new Date(d.time).getTime() / 1000, label: `${was} → ${d.desired}`, why: `${past.length > 1 ? `${h.component}: ` : ""}${d.why}` });
      was = d.desired;
    }
  }
  return out.sort((a, b) => a.time - b.time);
}

function Conditions({ service: s }: { service: Service }): JSX.Element {
  return (
    <Card flush>
      <Table heads={[["Condition"], ["Is"], ["Reason"], ["Message"], ["Since", "num"]]}>
        {(s.status.conditions ?? []).map((c) => (
          <tr key={c.type}>
            <td>{spaced(c.type)}</td>
            <td>
              <State tone={c.status === "True" ? (c.type === "Stopped" ? "off" : "good") : c.status === "False" ? "bad" : "busy"}>{c.status}</State>
            </td>
            <td>{c.reason ?? "–"}</td>
            <td class="text">{c.message ?? ""}</td>
            <td class="num">{c.lastTransitionTime ? clock(c.lastTransitionTime) : "–"}</td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}

function Manifest({ service: s, field }: { service: Service; field: "written" | "rendered" }): JSX.Element {
  const { value, error } = useLoaded(() => get<Service>(servicePath(keyOf(s))), `${keyOf(s)} ${s.generation} ${field}`);
  const text = value?.[field] ?? "";
  return (
    <Card title={field === "written" ? "The manifest" : "The manifest with its status"} end={<Copy text={text} />}>
      <Failure of={error} />
      <Code text={text} />
    </Card>
  );
}

type Spent = { starting?: number; idle?: number; busy?: number; asleep?: number };
type UsageRow = { day: string; component: string; replicas?: Spent; gpus?: Spent };

function Usage({ of }: { of: string }): JSX.Element {
  const { value, error } = useLoaded(() => get<{ days: UsageRow[] | null }>(`/api/v1/usage?since=30d&service=${encodeURIComponent(of)}`), of);
  const rows = [...(value?.days ?? [])].reverse();
  const seconds = (n: number | undefined) => count(Math.round(n ?? 0));
  return (
    <Card title="Seconds of replicas in the last 30 days" flush>
      <Failure of={error} />
      {rows.length === 0 ? (
        <Empty>{value ? "It used nothing yet." : "Loading…"}</Empty>
      ) : (
        <Table heads={[["Day"], ["Component"], ["Starting", "num"], ["Idle", "num"], ["Busy", "num"], ["Asleep", "num"]]}>
          {rows.map((r) => (
            <tr key={r.day + r.component}>
              <td>{r.day}</td>
              <td>{r.component}</td>
              <td class="num">{seconds(r.replicas?.starting)}</td>
              <td class="num">{seconds(r.replicas?.idle)}</td>
              <td class="num">{seconds(r.replicas?.busy)}</td>
              <td class="num">{seconds(r.replicas?.asleep)}</td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}
