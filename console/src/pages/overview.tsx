import { Component, type JSX } from "preact";
import { useState } from "preact/hooks";
import { about } from "../api";
import { bytes, count, plural, rate } from "../format";
import { live, useLive, type Rates } from "../live";
import { keyOf, stateOf, type Tone } from "../state";
import type { Service, Standing, Traffic } from "../types";
import { Card, Empty, State, Table } from "../ui";

const tones: [Tone, string][] = [
  ["good", "Ready"],
  ["rest", "Asleep"],
  ["busy", "Starting"],
  ["bad", "Failing"],
  ["off", "Stopped"],
];

export function Overview(): JSX.Element {
  useLive("services");
  const [query, search] = useState("");
  const [only, filter] = useState<Tone | null>(null);
  const all = [...live.services.values()].sort((a, b) => compare(keyOf(a), keyOf(b)));
  const byTone = new Map<Tone, number>();
  for (const s of all) {
    const t = stateOf(s).tone;
    byTone.set(t, (byTone.get(t) ?? 0) + 1);
  }
  const shown = all.filter((s) => (!only || stateOf(s).tone === only) && (!query || `${keyOf(s)} ${s.status.runtime?.name ?? ""}`.toLowerCase().includes(query.toLowerCase())));
  return (
    <div class="page">
      <div class="head">
        <h1>Overview</h1>
      </div>
      {about.without?.traffic ? <p class="muted">{about.without.traffic}</p> : <Figures />}
      <Card
        title="Services"
        flush
        end={
          <label>
            <span class="sr">Search services</span>
            <input type="search" placeholder="Search" value={query} onInput={(e) => search(e.currentTarget.value)} />
          </label>
        }
      >
        {all.length > 0 && (
          <div class="tally" role="group" aria-label="Show services by state">
            {tones.map(
              ([tone, word]) =>
                (byTone.get(tone) ?? 0) > 0 && (
                  <button key={tone} type="button" class={tone} aria-pressed={only === tone} onClick={() => filter(only === tone ? null : tone)}>
                    <State tone={tone}>
                      {count(byTone.get(tone) ?? 0)} {word.toLowerCase()}
                    </State>
                  </button>
                ),
            )}
          </div>
        )}
        {shown.length > 0 ? <Services list={shown} /> : <Empty>{!live.whole ? "Loading…" : all.length === 0 ? <NoServices /> : "No service matches."}</Empty>}
      </Card>
      <Holds />
    </div>
  );
}

/** compare is by code points: by language it takes many times as long, for thousands. */
function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function NoServices(): JSX.Element {
  return (
    <>
      Nothing is served yet. <a href="#/apply">Apply a manifest</a>, or run <code>roundhouse run MODEL</code>.
    </>
  );
}

function Figures(): JSX.Element {
  useLive("traffic", "services");
  const r = live.rates();
  let queued = 0;
  let running = 0;
  for (const t of live.traffic.values()) {
    queued += t.queued;
    running += t.running;
  }
  const figures: [string, string, string, boolean][] = [
    ["Requests", rate(r.requests), "/s", false],
    ["Errors", rate(r.failed), "/s", r.failed > 0],
    ["In flight", count(running), "", false],
    ["Waiting", count(queued), "", false],
    ["Tokens", rate(r.tokens), "/s", false],
  ];
  return (
    <dl class="card figures">
      {figures.map(([name, value, unit, bad]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd class={bad ? "bad" : ""}>
            {value}
            {unit && <small> {unit}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Services({ list }: { list: Service[] }): JSX.Element {
  useLive("traffic");
  return (
    <Table class="long" heads={[["Name"], ["State"], ["Runtime", "hide-small"], ["Replicas", "num"], ["Requests/s", "num hide-small"], ["In flight", "num hide-small"], ["Waiting", "num hide-small"], ["Tokens/s", "num hide-small"]]}>
      {list.map((s) => (
        <Row key={keyOf(s)} service={s} traffic={live.traffic.get(keyOf(s))} rates={live.rates(keyOf(s))} />
      ))}
    </Table>
  );
}

type RowProps = { service: Service; traffic: Traffic | undefined; rates: Rates };

/** Row is drawn again only when what it shows has changed: there may be thousands. */
class Row extends Component<RowProps> {
  override shouldComponentUpdate(next: RowProps): boolean {
    const now = this.props;
    return next.service !== now.service || next.traffic !== now.traffic || next.rates.requests !== now.rates.requests || next.rates.tokens !== now.rates.tokens;
  }

  override render({ service: s, traffic, rates }: RowProps): JSX.Element {
    const state = stateOf(s);
    const components = s.status.components ?? [];
    const ready = components.reduce((n, c) => n + c.ready, 0);
    const wanted = components.reduce((n, c) => n + c.desired, 0);
    return (
      <tr class="link">
        <td class="text">
          <a href={`#/services/${encodeURIComponent(s.namespace)}/${encodeURIComponent(s.name)}`}>{s.name}</a>
          <span class="sub">{state.tone === "bad" || state.tone === "busy" ? state.why : s.namespace}</span>
        </td>
        <td>
          <State tone={state.tone}>{state.word}</State>
        </td>
        <td class="hide-small nowrap">{s.status.runtime?.name ?? "–"}</td>
        <td class="num">
          {ready}
          {wanted !== ready && <span class="muted"> of {wanted}</span>}
        </td>
        <td class="num hide-small">{rate(rates.requests)}</td>
        <td class="num hide-small">{traffic?.running ?? 0}</td>
        <td class="num hide-small">{traffic?.queued ?? 0}</td>
        <td class="num hide-small">{rate(rates.tokens)}</td>
      </tr>
    );
  }
}

type Hold = { name: string; bytes: number; standing?: Standing };

/** Holds shows who holds memory and GPUs, and how full the disk is. */
function Holds(): JSX.Element | null {
  useLive("machine", "services");
  const m = live.machine;
  if (!m) return null;
  const standings = new Map((m.standings ?? []).map((s) => [s.service, s]));
  const memory: Hold[] = [];
  const gpus = (m.gpus ?? []).map((total) => ({ total, holds: [] as Hold[] }));
  for (const s of live.services.values()) {
    let sum = 0;
    for (const r of s.replicas ?? []) {
      sum += r.memory ?? 0;
      for (const g of r.gpus ?? []) gpus[g]?.holds.push({ name: s.name, bytes: r.gpuMemory ?? 0, standing: standings.get(keyOf(s)) });
    }
    if (sum > 0) memory.push({ name: s.name, bytes: sum, standing: standings.get(keyOf(s)) });
  }
  memory.sort((a, b) => b.bytes - a.bytes);
  const used = m.memoryTotal - m.memoryAvailable;
  return (
    <div class="grid">
      <Card title="Memory" end={<span class="muted small">{`${bytes(m.memoryAvailable)} of ${bytes(m.memoryTotal)} free`}</span>}>
        <Bar total={m.memoryTotal} holds={memory} other={Math.max(0, used - memory.reduce((n, h) => n + h.bytes, 0))} />
      </Card>
      {gpus.map((g, i) => (
        <Card key={i} title={`GPU ${i}`} end={<span class="muted small">{bytes(g.total)}</span>}>
          <Bar total={g.total} holds={g.holds} other={0} />
        </Card>
      ))}
      <Next of={m.standings ?? []} />
      <Card title="Disk" end={<span class="muted small">{`${bytes(m.diskFree)} of ${bytes(m.diskTotal)} free`}</span>}>
        <Bar total={m.diskTotal} holds={[]} other={m.diskTotal - m.diskFree} />
      </Card>
    </div>
  );
}

/** Next is who would be stopped first if another service lacked room, and who would stay. */
function Next({ of }: { of: Standing[] }): JSX.Element | null {
  if (of.length === 0) return null;
  const first = of[0]?.stops ? of[0] : undefined;
  return (
    <Card title="Evicted next" end={first && <State tone="busy">{nameOf(first)}</State>}>
      <p class="small">{first ? `${nameOf(first)} would be stopped first if another service lacked room: it is idle and worth the least.` : "Nothing would be stopped if a service lacked room: all that holds something stays."}</p>
      <ol class="standings small" tabIndex={0} aria-label="In which order services would be stopped">
        {of.slice(0, shownStandings).map((s) => (
          <li key={s.service}>
            <a href={`#/services/${s.service}`}>{nameOf(s)}</a> <span class="muted">{s.stops ? s.why : `stays: ${s.why}`}</span>
          </li>
        ))}
      </ol>
      {of.length > shownStandings && <p class="small muted">{plural(of.length - shownStandings, "other service")}</p>}
    </Card>
  );
}

const shownStandings = 8;

function nameOf(s: Standing): string {
  return s.service.slice(s.service.indexOf("/") + 1);
}

function Bar({ total, holds, other }: { total: number; holds: Hold[]; other: number }): JSX.Element {
  // Of those that have a part in it, the first that would be stopped.
  const next = (live.machine?.standings ?? []).find((s) => s.stops && holds.some((h) => h.standing === s));
  const width = (n: number) => ({ width: `${total > 0 ? (100 * n) / total : 0}%` });
  return (
    <div class="stack">
      <div class="bar" aria-hidden="true">
        {holds.map((h) => (
          <i key={h.name} class={h.standing && h.standing === next ? "next" : ""} style={width(h.bytes)} title={`${h.name}: ${bytes(h.bytes)}${h.standing ? `. ${h.standing.stops ? "" : "Stays: "}${h.standing.why}` : ""}`} />
        ))}
        {other > 0 && <i class="other" style={width(other)} />}
      </div>
      <p class="small muted">
        {holds
          .slice(0, 5)
          .map((h) => `${h.name} ${bytes(h.bytes)}${h.standing && h.standing === next ? " (evicted next)" : ""}`)
          .concat(holds.length > 5 ? [plural(holds.length - 5, "other service")] : [])
          .concat(other > 0 ? [`${holds.length > 0 ? "other programs" : "used"} ${bytes(other)}`] : [])
          .join(" · ") || "Nothing is held."}
      </p>
    </div>
  );
}
