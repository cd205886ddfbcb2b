import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { clock } from "../format";
import { live, useLive } from "../live";
import { spaced } from "../state";
import { Card, Empty, State, Table } from "../ui";

const shown = 300;

export function EventsPage({ of }: { of: string }): JSX.Element {
  useLive("events");
  const [query, search] = useState(of);
  const [warnings, only] = useState(false);
  const list = live.events
    .filter((e) => (!warnings || e.warning) && (!query || `${e.namespace ?? ""}/${e.service ?? ""} ${e.object ?? ""} ${spaced(e.reason)} ${e.reason} ${e.message}`.toLowerCase().includes(query.toLowerCase())))
    .slice(-shown)
    .reverse();
  return (
    <div class="page">
      <div class="head">
        <h1>Events</h1>
        <div class="end">
          <label>
            <span class="sr">Search events</span>
            <input type="search" placeholder="Service, reason, text" value={query} onInput={(e) => search(e.currentTarget.value)} />
          </label>
          <label class="check">
            <input type="checkbox" checked={warnings} onChange={(e) => only(e.currentTarget.checked)} /> Warnings
          </label>
        </div>
      </div>
      <Card flush>
        {list.length === 0 ? (
          <Empty>{live.events.length === 0 ? "Nothing has happened yet." : "No event matches."}</Empty>
        ) : (
          <Table class="long stacked" heads={[["Time"], ["Service"], ["What"], ["Details"]]}>
            {list.map((e) => (
              <tr key={e.number}>
                <td class="nowrap">{clock(e.time)}</td>
                <td class="wrap">{e.service ? <a href={`#/services/${encodeURIComponent(e.namespace ?? "")}/${encodeURIComponent(e.service)}`}>{e.service}</a> : "–"}</td>
                <td>
                  <State tone={e.warning ? "bad" : "off"}>{spaced(e.reason)}</State>
                </td>
                <td class="text">
                  {e.message}
                  {e.object && <span class="sub">{e.object}</span>}
                </td>
              </tr>
            ))}
          </Table>
        )}
      </Card>
    </div>
  );
}
