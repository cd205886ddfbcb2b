import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { get } from "../api";
import { plural } from "../format";
import { live, useLive } from "../live";
import { keyOf, stateOf, stateOfRoute, toneOfPhase, type State as Look } from "../state";
import type { RoutingObject, Service } from "../types";
import { Card, Code, Empty, Failure, State, useLoaded } from "../ui";

/** How many services are drawn, besides those that the chosen object leads to. */
const shown = 200;

/** The picture: what requests name, where that goes, and what answers there. */
export function RoutesPage(): JSX.Element {
  useLive("services", "routes");
  const [chosen, choose] = useState("");
  const objects = [...live.routes.values()].sort((a, b) => id(a).localeCompare(id(b)));
  const services = [...live.services.values()].sort((a, b) => keyOf(a).localeCompare(keyOf(b)));
  const object = objects.find((o) => id(o) === chosen);
  const service = services.find((s) => serviceID(s) === chosen);
  const near = object || service ? around(chosen, objects) : null;
  const node = (at: string, name: string, look: Look, sub: string) => (
    <button key={at} type="button" class={`node ${!near || chosen === at ? "" : near.has(at) ? "near" : "dim"}`} aria-pressed={chosen === at} onClick={() => choose(chosen === at ? "" : at)}>
      <span class="row">
        {name}
        <State tone={look.tone}>{look.word}</State>
      </span>
      <span class="sub">{sub}</span>
    </button>
  );
  const pools = objects.filter((o) => o.type === "pool");
  const routes = objects.filter((o) => o.type !== "pool");
  return (
    <div class="page">
      <div class="head">
        <h1>Routes</h1>
      </div>
      {live.whole && objects.length === 0 && (
        <p class="muted">
          No route and no pool is applied: each service answers to its own name, and to <code>NAME.NAMESPACE.localhost</code>.
        </p>
      )}
      <div class="flow">
        <div>
          <h2>Requests</h2>
          {routes.map((o) => node(id(o), o.name, stateOfRoute(o), `${o.kind} · ${o.from ?? "any"} → ${o.to ?? ""}`))}
          {routes.length === 0 && <p class="muted small">By the names of services</p>}
        </div>
        <div>
          <h2>Pools</h2>
          {pools.map((o) => node(id(o), o.name, stateOfRoute(o), `${o.kind} · ${members(o)}`))}
          {pools.length === 0 && <p class="muted small">One for each service</p>}
        </div>
        <div>
          <h2>Services</h2>
          {services
            .filter((s, i) => i < shown || near?.has(serviceID(s)))
            .map((s) => node(serviceID(s), s.name, stateOf(s), s.namespace))}
          {services.length === 0 && <p class="muted small">None</p>}
          {services.length > shown && <p class="muted small">The first {shown} of {services.length}, and those that the chosen route leads to</p>}
        </div>
      </div>
      {object && <Details key={chosen} object={object} />}
      {service && (
        <Card title={`Service ${service.name}`} end={<a href={`#/services/${keyOf(service)}`}>Open</a>}>
          <p>{stateOf(service).why}</p>
        </Card>
      )}
    </div>
  );
}

function id(o: RoutingObject): string {
  return `${o.type}/${keyOf(o)}`;
}

function serviceID(s: Service): string {
  return `service/${keyOf(s)}`;
}

/** around is what a request meets that meets this object: all that leads here, and all
 * that this leads to. */
function around(from: string, objects: RoutingObject[]): Set<string> {
  const follow = (next: (at: string) => string[]) => {
    const met = new Set([from]);
    for (const at of met) for (const n of next(at)) met.add(n); // a set is walked to what is added meanwhile
    return met;
  };
  const down = follow((at) => objects.find((o) => id(o) === at)?.leads ?? []);
  const up = follow((at) => objects.filter((o) => o.leads?.includes(at)).map(id));
  return new Set([...down, ...up]);
}

function members(o: RoutingObject): string {
  const has = o.endpoints;
  if (!has) return plural(o.status.members?.length ?? 0, "service");
  const flying = has.reduce((n, e) => n + e.inFlight, 0);
  return `${has.filter((e) => e.open).length} of ${plural(has.length, "endpoint")} open${flying ? ` · ${flying} in flight` : ""}`;
}

function Details({ object: o }: { object: RoutingObject }): JSX.Element {
  const ready = stateOfRoute(o);
  // The stream has no manifests: they are read anew when what they say has changed.
  const { value, error } = useLoaded(() => get<RoutingObject[]>(`/api/v1/routing?namespace=${encodeURIComponent(o.namespace)}`), JSON.stringify([o.created, o.from, o.to, o.leads, o.status]));
  const rendered = value?.find((x) => id(x) === id(o))?.rendered;
  return (
    <>
      {ready.why && (
        <Card title={<>{`${o.kind} ${o.name}`} <State tone={ready.tone}>{ready.word}</State></>}>
          <p>{ready.why}</p>
        </Card>
      )}
      {o.endpoints && (
        <Card title={`Endpoints of ${o.name}`} flush>
          {o.endpoints.length === 0 ? (
            <Empty>It has none.</Empty>
          ) : (
            <div class="scroll" tabIndex={0}>
              <table>
                <thead>
                  <tr>
                    <th>Endpoint</th>
                    <th>State</th>
                    <th class="num">In flight</th>
                    <th class="num">Prompt tokens</th>
                    <th>Takes requests</th>
                  </tr>
                </thead>
                <tbody>
                  {o.endpoints.map((e) => (
                    <tr key={e.id}>
                      <td class="text">
                        {e.id}
                        <span class="sub">{e.address ?? ""}</span>
                      </td>
                      <td>
                        <State tone={toneOfPhase(e.phase)}>{e.phase}</State>
                      </td>
                      <td class="num">
                        {e.inFlight}
                        {e.limit ? ` of ${e.limit}` : ""}
                      </td>
                      <td class="num">{e.tokens}</td>
                      <td class="text">{e.ejected ?? (e.open ? "yes" : (e.message ?? "no"))}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
        </Card>
      )}
      <Failure of={error} />
      {rendered && (
        <Card title={`Manifest of ${o.name}`}>
          <Code text={rendered} />
        </Card>
      )}
    </>
  );
}
