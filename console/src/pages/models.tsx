import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { about, get } from "../api";
import { Copies, Progress } from "../copies";
import { clock } from "../format";
import { live, useLive } from "../live";
import { keyOf, stateOf } from "../state";
import type { ModelObject } from "../types";
import { Address, Card, Code, Empty, Failure, State, Table, Tabs, useLoaded } from "../ui";

type Tab = "copies" | "models" | "objects" | "runtimes";

export function ModelsPage({ owner }: { owner: boolean }): JSX.Element {
  const [tab, go] = useState<Tab>("models");
  return (
    <div class="page">
      <h1>Models</h1>
      <Tabs<Tab> label="Which objects" at={tab} go={go} tabs={{ models: "In services", ...(about.without?.copies ? {} : { copies: "On this machine" }), objects: "Model objects", runtimes: "Runtimes" }} />
      {tab === "models" && <Used />}
      {tab === "copies" && <Copies owner={owner} />}
      {tab === "objects" && <Objects kinds={["models", "weights"]} none="No object of a model is applied: services name their models by address." />}
      {tab === "runtimes" && <Objects kinds={["runtimes"]} none="There is no runtime." />}
    </div>
  );
}

/** Used is the model of each service, and how far its download is. */
function Used(): JSX.Element {
  useLive("services");
  const list = [...live.services.values()].filter((s) => s.model).sort((a, b) => keyOf(a).localeCompare(keyOf(b)));
  if (list.length === 0) return <Card><Empty>No service has a model that is fetched.</Empty></Card>;
  return (
    <Card flush>
      <Table heads={[["Model"], ["Service"], ["State"], ["Download"]]}>
        {list.map((s) => {
          const fetching = (s.replicas ?? []).find((r) => r.progress);
          const state = stateOf(s);
          return (
            <tr key={keyOf(s)}>
              <td class="text mono">{s.model && <Address text={s.model} />}</td>
              <td class="wrap">
                <a href={`#/services/${keyOf(s)}`}>{s.name}</a>
              </td>
              <td>
                <State tone={state.tone}>{state.word}</State>
              </td>
              <td>{fetching?.progress ? <Progress {...fetching.progress} /> : <span class="muted">–</span>}</td>
            </tr>
          );
        })}
      </Table>
    </Card>
  );
}

function Objects({ kinds, none }: { kinds: string[]; none: string }): JSX.Element {
  const { value, error } = useLoaded(async () => (await Promise.all(kinds.map((k) => get<ModelObject[]>(`/api/v1/${k}`)))).flat(), kinds.join(), useLive("changed").changed.get("lists"));
  const [open, show] = useState<string | null>(null);
  if (error) return <Failure of={error} />;
  if (!value || value.length === 0) return <Card><Empty>{value ? none : "Loading…"}</Empty></Card>;
  return (
    <Card flush>
      <Table heads={[["Name"], ["Formats"], ["Protocols", "hide-small"], ["Created", "hide-small"], ["State"]]}>
        {value.map((o) => {
          const key = `${o.kind} ${keyOf(o)}`;
          return (
            <>
              <tr key={key}>
                <td class="text">
                  {o.rendered ? (
                    <button type="button" class="plain" aria-expanded={open === key} onClick={() => show(open === key ? null : key)}>
                      {o.name}
                    </button>
                  ) : (
                    o.name
                  )}
                  <span class="sub">{o.base ? `made from ${o.base}` : (o.scope ?? o.namespace ?? o.kind)}</span>
                </td>
                <td class="text">{(o.formats ?? "–").replaceAll(",", ", ")}</td>
                <td class="hide-small wrap">{(o.protocols ?? "–").replaceAll(",", ", ")}</td>
                <td class="hide-small nowrap">{o.created ? clock(o.created) : "with the program"}</td>
                <td>
                  <State tone={o.disabled ? "off" : "good"}>{o.disabled ? "Disabled" : "Enabled"}</State>
                </td>
              </tr>
              {open === key && (
                <tr>
                  <td colSpan={5}>
                    <Code text={o.rendered ?? ""} />
                  </td>
                </tr>
              )}
            </>
          );
        })}
      </Table>
    </Card>
  );
}
