import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { get } from "../api";
import { plural } from "../format";
import { live, useLive } from "../live";
import { keyOf, stateOf, toneOfPhase } from "../state";
import type { RoutingObject } from "../types";
import { Card, Code, Empty, Failure, State, useLoaded } from "../ui";

/** The picture: what requests name, where that goes, and what answers there. */
export function RoutesPage(): JSX.Element {
  useLive("services");
  const { value, error, again } = useLoaded(() => get<RoutingObject[]>("/api/v1/routing"), String(live.services.size));
  const [chosen, choose] = useState<string | null>(null);
  const objects = value ?? [];
  const pools = objects.filter((o) => o.endpoints !== undefined || o.type === "pool" || o.type === "inferencepool");
  const routes = objects.filter((o) => !pools.includes(o));
  const services = [...live.services.values()].sort((a, b) => keyOf(a).localeCompare(keyOf(b)));
  const selected = objects.find((o) => id(o) === chosen);
  const near = (text: string | undefined, name: string) => !chosen || !selected || id(selected).endsWith(`/${name}`) || (text ?? "").split(/[^A-Za-z0-9._-]+/).includes(name);
  const toward = (o: RoutingObject) => !selected || o === selected || near(selected.to, o.name) || near(o.to, selected.name);
  return (
    <div class="page">
      <div class="head">
        <h1>Routes</h1>
        <div class="end">
          <button type="button" onClick={again}>
            Refresh
          </button>
        </div>
      </div>
      <Failure of={error} />
      {value && objects.length === 0 && (
        <p class="muted">
          No route and no pool is applied: each service answers to its own name, and to <code>NAME.NAMESPACE.localhost</code>.
        </p>
      )}
      <div class="flow">
        <div>
          <h2>Requests</h2>
          {routes.map((o) => (
            <Node key={id(o)} object={o} on={chosen === id(o)} dim={!toward(o)} choose={() => choose(chosen === id(o) ? null : id(o))} sub={`${o.from ?? "any"} → ${o.to ?? ""}`} />
          ))}
          {routes.length === 0 && <p class="muted small">By the names of services</p>}
        </div>
        <div>
          <h2>Pools</h2>
          {pools.map((o) => (
            <Node key={id(o)} object={o} on={chosen === id(o)} dim={!toward(o)} choose={() => choose(chosen === id(o) ? null : id(o))} sub={plural(o.endpoints?.length ?? 0, "endpoint")} />
          ))}
          {pools.length === 0 && <p class="muted small">One for each service</p>}
        </div>
        <div>
          <h2>Services</h2>
          {services.slice(0, 200).map((s) => {
            const state = stateOf(s);
            return (
              <a key={keyOf(s)} class={`node button ${selected && !near(selected.to, s.name) && !(selected.status.members ?? []).some((m) => m.name === s.name) ? "dim" : ""}`} href={`#/services/${keyOf(s)}`}>
                {s.name}
                <span class="sub">
                  <State tone={state.tone}>{state.word}</State>
                </span>
              </a>
            );
          })}
          {services.length === 0 && <p class="muted small">None</p>}
        </div>
      </div>
      {selected && <Details object={selected} />}
    </div>
  );
}

function id(o: RoutingObject): string {
  return `${o.type}/${keyOf(o)}`;
}

function Node({ object: o, on, dim, choose, sub }: { object: RoutingObject; on: boolean; dim: boolean; choose: () => void; sub: string }): JSX.Element {
  return (
    <button type="button" class={`node ${dim ? "dim" : ""}`} aria-pressed={on} onClick={choose}>
      {o.name}
      <span class="sub">
        {o.kind} · {sub}
      </span>
    </button>
  );
}

function Details({ object: o }: { object: RoutingObject }): JSX.Element {
  return (
    <>
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
      {o.rendered && (
        <Card title={`${o.kind} ${o.name}`}>
          <Code text={o.rendered} />
        </Card>
      )}
    </>
  );
}
