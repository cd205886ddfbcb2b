import { type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { send, servicePath } from "../api";
import { live, useLive } from "../live";
import { keyOf } from "../state";
import { Card, Failure } from "../ui";

const maxLines = 5000;
const tail = 1000;

export function LogsPage({ of, replica }: { of: string; replica: string }): JSX.Element {
  useLive("services");
  const services = [...live.services.keys()].sort();
  const at = of || (services[0] ?? "");
  const s = live.services.get(at);
  const go = (key: string, id: string) => {
    location.hash = `#/logs/${key}${id ? `/${encodeURIComponent(id)}` : ""}`;
  };
  const ids = (s?.replicas ?? []).map((r) => r.id);
  return (
    <div class="page">
      <div class="head">
        <h1>Logs</h1>
        <div class="end">
          <label>
            <span class="sr">Service</span>
            <select value={at} onChange={(e) => go(e.currentTarget.value, "")}>
              {services.map((k) => (
                <option key={k}>{k}</option>
              ))}
            </select>
          </label>
          <label>
            <span class="sr">Replica</span>
            <select value={replica} onChange={(e) => go(at, e.currentTarget.value)}>
              <option value="">Newest replica</option>
              {(replica && !ids.includes(replica) ? [replica, ...ids] : ids).map((id) => (
                <option key={id}>{id}</option>
              ))}
            </select>
          </label>
        </div>
      </div>
      {at ? <Log key={`${at} ${replica}`} of={s ? keyOf(s) : at} replica={replica} /> : <p class="muted">There is no service.</p>}
    </div>
  );
}

function Log({ of, replica }: { of: string; replica: string }): JSX.Element {
  const [previous, before] = useState(false);
  const [query, search] = useState("");
  const [only, filter] = useState(false);
  const [follow, setFollow] = useState(true);
  const [lines, set] = useState<string[]>([]);
  const [error, fail] = useState<unknown>(null);
  const [ended, end] = useState(false);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const stop = new AbortController();
    set([]);
    fail(null);
    end(false);
    read(of, replica, previous, stop.signal, set).then(
      () => end(true),
      (e: unknown) => !stop.signal.aborted && fail(e),
    );
    return () => stop.abort();
  }, [of, replica, previous]);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, follow]);
  const wanted = query.toLowerCase();
  const shown = only && wanted ? lines.filter((l) => l.toLowerCase().includes(wanted)) : lines;
  return (
    <Card
      title={ended ? "The log has ended" : "Live"}
      end={
        <>
          <label>
            <span class="sr">Search the log</span>
            <input type="search" placeholder="Search" value={query} onInput={(e) => search(e.currentTarget.value)} />
          </label>
          <label class="check">
            <input type="checkbox" checked={only} onChange={(e) => filter(e.currentTarget.checked)} /> Matches only
          </label>
          <label class="check">
            <input type="checkbox" checked={follow} onChange={(e) => setFollow(e.currentTarget.checked)} /> Follow
          </label>
          <label class="check">
            <input type="checkbox" checked={previous} onChange={(e) => before(e.currentTarget.checked)} /> Previous run
          </label>
        </>
      }
    >
      <Failure of={error} />
      {!error && (
        <pre class="block logs" ref={box} tabIndex={0} aria-label="Log">
          {wanted ? shown.map((l, i) => <Line key={i} text={l} find={wanted} />) : shown.join("\n")}
        </pre>
      )}
    </Card>
  );
}

function Line({ text, find }: { text: string; find: string }): JSX.Element {
  const parts: (string | JSX.Element)[] = [];
  const low = text.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(find); at >= 0; at = low.indexOf(find, from)) {
    parts.push(text.slice(from, at), <mark>{text.slice(at, at + find.length)}</mark>);
    from = at + find.length;
  }
  return (
    <>
      {parts}
      {text.slice(from)}
      {"\n"}
    </>
  );
}

/** read reads a log as it comes, and shows it at most ten times a second. */
async function read(of: string, replica: string, previous: boolean, signal: AbortSignal, show: (lines: string[]) => void): Promise<void> {
  const query = new URLSearchParams({ tail: String(tail) });
  if (replica) query.set("replica", replica);
  query.set(previous ? "previous" : "follow", "");
  const r = await send("GET", `${servicePath(of)}/logs?${query.toString()}`, undefined, { signal });
  const reader = r.body?.pipeThrough(new TextDecoderStream()).getReader();
  let lines: string[] = [];
  let rest = "";
  let due = 0;
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    const all = (rest + part.value).split("\n");
    rest = all.pop() ?? "";
    lines = lines.concat(all).slice(-maxLines);
    if (!due)
      due = window.setTimeout(() => {
        due = 0;
        if (!signal.aborted) show(rest ? [...lines, rest] : lines);
      }, 100);
  }
  window.clearTimeout(due);
  if (!signal.aborted) show(rest ? [...lines, rest] : lines);
}
