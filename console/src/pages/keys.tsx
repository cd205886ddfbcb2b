import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { change, get } from "../api";
import { clock, count } from "../format";
import { useLive } from "../live";
import { Ask, Card, Copy, Empty, Failure, Note, State, Table, toast, useLoaded } from "../ui";

type Limits = { models?: string[]; namespaces?: string[]; requestsPerMinute?: number; tokensPerMinute?: number; concurrent?: number };
type Key = { id: string; name: string; created: string; expires?: string; revoked?: string; limits?: Limits };

export function KeysPage({ owner }: { owner: boolean }): JSX.Element {
  const { value, error, again } = useLoaded(() => get<Key[] | null>("/api/v1/keys"), "keys", useLive("changed").changed.get("lists"));
  const [revoking, revoke] = useState<Key | null>(null);
  const [made, show] = useState<(Key & { secret: string }) | null>(null);
  const list = value ?? [];
  return (
    <div class="page">
      <h1>Keys</h1>
      <p class="muted">API keys of the inference port. Without any, every program of this machine may ask; the first one makes all of them need a key.</p>
      <Failure of={error} />
      {made && (
        <Note tone="good" title={`The key ${made.name} is made.`}>
          <p>Its secret is shown only now:</p>
          <div class="row">
            <code class="wrap">{made.secret}</code>
            <Copy text={made.secret} />
            <button type="button" onClick={() => show(null)}>
              Hide
            </button>
          </div>
        </Note>
      )}
      {owner && <New done={(k) => (show(k), again())} />}
      <Card title="Keys" flush>
        {list.length === 0 ? (
          <Empty>{value === undefined && !error ? "Loading…" : "There is no key."}</Empty>
        ) : (
          <Table heads={[["Name"], ["Id"], ["State"], ["Limits"], ["Made", "hide-small"], [""]]}>
            {list.map((k) => {
              const over = k.expires !== undefined && new Date(k.expires).getTime() < Date.now();
              return (
                <tr key={k.id}>
                  <td class="text">{k.name}</td>
                  <td class="mono">{k.id}</td>
                  <td>
                    <State tone={k.revoked || over ? "off" : "good"}>{k.revoked ? "Revoked" : over ? "Expired" : "Valid"}</State>
                  </td>
                  <td class="text">{limitsText(k.limits)}</td>
                  <td class="hide-small nowrap">{clock(k.created)}</td>
                  <td class="num">
                    {owner && !k.revoked && (
                      <button type="button" class="danger" onClick={() => revoke(k)}>
                        Revoke
                      </button>
                    )}
                  </td>
                </tr>
              );
            })}
          </Table>
        )}
      </Card>
      {revoking && (
        <Ask
          title={`Revoke ${revoking.name}?`}
          verb="Revoke"
          danger
          type={revoking.name}
          close={() => revoke(null)}
          act={async () => {
            await change("DELETE", `/api/v1/keys/${encodeURIComponent(revoking.id)}`);
            toast(`${revoking.name} is revoked.`);
            again();
          }}
        >
          <p class="muted">Requests with it are refused from now on. This cannot be undone.</p>
        </Ask>
      )}
    </div>
  );
}

function limitsText(l: Limits | undefined): string {
  const out: string[] = [];
  if (l?.models?.length) out.push(`models ${l.models.join(", ")}`);
  if (l?.namespaces?.length) out.push(`namespaces ${l.namespaces.join(", ")}`);
  if (l?.requestsPerMinute) out.push(`${count(l.requestsPerMinute)} requests/min`);
  if (l?.tokensPerMinute) out.push(`${count(l.tokensPerMinute)} tokens/min`);
  if (l?.concurrent) out.push(`${count(l.concurrent)} at a time`);
  return out.join("; ") || "none";
}

function New({ done }: { done: (k: Key & { secret: string }) => void }): JSX.Element {
  const [name, setName] = useState("");
  const [models, setModels] = useState("");
  const [perMinute, setPerMinute] = useState("");
  const [days, setDays] = useState("");
  const [error, fail] = useState<unknown>(null);
  const submit = (e: Event) => {
    e.preventDefault();
    const limits: Limits = {};
    if (models.trim()) limits.models = models.split(",").map((m) => m.trim());
    if (perMinute) limits.requestsPerMinute = Number(perMinute);
    const expires = days ? new Date(Date.now() + Number(days) * 86_400_000).toISOString() : undefined;
    change<Key & { secret: string }>("POST", "/api/v1/keys", { name, limits, ...(expires ? { expires } : {}) }).then(
      (k) => {
        done(k);
        setName("");
        fail(null);
      },
      (e: unknown) => fail(e),
    );
  };
  return (
    <Card title="New key">
      <form class="stack" onSubmit={submit}>
        <div class="row">
          <label class="field">
            Name
            <input name="name" required value={name} onInput={(e) => setName(e.currentTarget.value)} />
          </label>
          <label class="field">
            Models, by commas; none: all
            <input name="models" value={models} onInput={(e) => setModels(e.currentTarget.value)} />
          </label>
          <label class="field">
            Requests per minute
            <input name="perMinute" type="number" min="1" value={perMinute} onInput={(e) => setPerMinute(e.currentTarget.value)} />
          </label>
          <label class="field">
            Expires in days
            <input name="days" type="number" min="1" value={days} onInput={(e) => setDays(e.currentTarget.value)} />
          </label>
        </div>
        <div>
          <button class="primary" disabled={!name.trim()}>
            Make a key
          </button>
        </div>
        <Failure of={error} />
      </form>
    </Card>
  );
}
