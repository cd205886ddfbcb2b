import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { bytes, clock, count, milliseconds } from "../format";
import { live, useLive } from "../live";
import { type Tone } from "../state";
import type { Request } from "../types";
import { Card, Empty, Facts, State, Table } from "../ui";

const shown = 300;

export function RequestsPage({ of }: { of: string }): JSX.Element {
  useLive("requests");
  const [query, search] = useState(of);
  const [ended, onlyEnded] = useState("");
  const [slow, onlySlow] = useState("");
  const [held, hold] = useState<Request[] | null>(null);
  const [open, show] = useState<number | null>(null);
  const matches = (r: Request) =>
    (!query || `${r.model ?? ""} ${r.service ?? ""} ${r.path} ${r.replica ?? ""} ${r.id} ${r.key ?? ""} ${r.keyName ?? ""}`.toLowerCase().includes(query.toLowerCase())) &&
    (!ended || (ended === "failed" ? r.failed : r.clientError)) &&
    (!slow || (r.firstByteMs ?? r.durationMs) >= Number(slow));
  const list = (held ?? live.requests).filter(matches).slice(-shown).reverse();
  return (
    <div class="page">
      <div class="head">
        <h1>Requests</h1>
        <div class="end">
          <label>
            <span class="sr">Search requests</span>
            <input type="search" placeholder="Model, service, path, id" value={query} onInput={(e) => search(e.currentTarget.value)} />
          </label>
          <label>
            <span class="sr">Time to the first byte</span>
            <select value={slow} onChange={(e) => onlySlow(e.currentTarget.value)}>
              <option value="">Any time</option>
              <option value="100">100 ms or more</option>
              <option value="1000">1 s or more</option>
              <option value="10000">10 s or more</option>
            </select>
          </label>
          <label>
            <span class="sr">How it ended</span>
            <select value={ended} onChange={(e) => onlyEnded(e.currentTarget.value)}>
              <option value="">All</option>
              <option value="failed">Failed</option>
              <option value="client">Client errors</option>
            </select>
          </label>
          <button type="button" aria-pressed={held !== null} onClick={() => hold(held ? null : [...live.requests])}>
            {held ? "Go on" : "Pause"}
          </button>
        </div>
      </div>
      <Card flush>
        {list.length === 0 ? (
          <Empty>{live.requests.length === 0 ? "No request has ended yet." : "No request matches."}</Empty>
        ) : (
          <Table class="long" heads={[["Time"], ["Model"], ["Status"], ["Waited", "num"], ["First byte", "num"], ["Took", "num"], ["Tokens", "num hide-small"], ["Tokens/s", "num hide-small"], ["Replica", "hide-small"]]}>
            {list.map((r) => (
              <Row key={r.number} request={r} open={open === r.number} toggle={() => show(open === r.number ? null : r.number)} />
            ))}
          </Table>
        )}
      </Card>
    </div>
  );
}

function statusOf(r: Request): [Tone, string] {
  if (r.cut) return ["bad", `${r.status} cut`];
  return [r.failed ? "bad" : r.clientError ? "off" : "good", String(r.status)];
}

function Row({ request: r, open, toggle }: { request: Request; open: boolean; toggle: () => void }): JSX.Element {
  const [tone, word] = statusOf(r);
  return (
    <>
      <tr class="link">
        <td class="nowrap">
          <button type="button" class="plain" aria-expanded={open} onClick={toggle}>
            {clock(r.time)}
          </button>
        </td>
        <td class="text">
          {r.model ?? "–"}
          <span class="sub">{r.path}</span>
        </td>
        <td>
          <State tone={tone}>{word}</State>
        </td>
        <td class="num">{milliseconds(r.queuedMs)}</td>
        <td class="num">{r.firstByteMs ? milliseconds(r.firstByteMs) : "–"}</td>
        <td class="num">{milliseconds(r.durationMs)}</td>
        <td class="num hide-small">{r.completionTokens ? `${count(r.promptTokens ?? 0)} → ${count(r.completionTokens)}` : "–"}</td>
        <td class="num hide-small">{r.tokensPerSecond ? r.tokensPerSecond.toFixed(1) : "–"}</td>
        <td class="hide-small wrap">{r.replica ?? "–"}</td>
      </tr>
      {open && (
        <tr>
          <td colSpan={9}>
            <div class="stack">
              <Timeline request={r} />
              <Facts
                of={[
                  ["Id", r.id],
                  ["Call", `${r.method} ${r.path}`],
                  ["Service", r.service ? <a href={`#/services/${r.service}`}>{r.service}</a> : "–"],
                  ["Replica", r.replica ?? "–"],
                  ["Tries", `${r.tries}${r.retried ? `, because ${r.retried}` : ""}`],
                  ...(r.reason ? ([["Refused", r.reason]] as [string, string][]) : []),
                  ...(r.cut ? ([["Cut off", r.cut]] as [string, string][]) : []),
                  ["Tokens", `${count(r.promptTokens ?? 0)} read, ${count(r.cachedTokens ?? 0)} of them cached, ${count(r.completionTokens ?? 0)} written`],
                  ["Bodies", `${bytes(r.bytesIn)} in, ${bytes(r.bytesOut)} out`],
                  ["Key", r.key ? `${r.keyName ?? ""} (${r.key})` : "none"],
                  ["Client", r.client ?? "–"],
                  ["Trace", r.trace ?? "–"],
                ]}
              />
            </div>
          </td>
        </tr>
      )}
    </>
  );
}

function Timeline({ request: r }: { request: Request }): JSX.Element {
  const first = r.firstByteMs ?? r.durationMs;
  const parts: [string, number, number, boolean][] = [
    ["Waited", 0, r.queuedMs, true],
    ["To first byte", r.queuedMs, first - r.queuedMs, false],
    ["Answer", first, r.durationMs - first, false],
  ];
  const whole = Math.max(r.durationMs, 0.001);
  return (
    <div class="time">
      {parts.map(([name, from, took, wait]) => (
        <>
          <span class="muted">{name}</span>
          <svg viewBox="0 0 1000 12" preserveAspectRatio="none" aria-hidden="true">
            <rect class={wait ? "wait" : ""} x={(1000 * from) / whole} y="2" width={Math.max(2, (1000 * took) / whole)} height="8" rx="2" />
          </svg>
          <span class="num">{milliseconds(Math.max(0, took))}</span>
        </>
      ))}
    </div>
  );
}
