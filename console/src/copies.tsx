// The files of models on this machine: what is here, what is being fetched.
import { type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { change, get } from "./api";
import { ago, bytes, count, plural } from "./format";
import { live, useLive } from "./live";
import type { Change, Copy, Download } from "./types";
import { Address, Ask, Card, Empty, Failure, Note, State, Table, toast, useLoaded } from "./ui";

export function Progress({ done, total }: { done: number; total: number }): JSX.Element {
  return (
    <div class="stack">
      <progress max={total || undefined} value={total ? done : undefined} aria-label="Download" />
      <span class="small muted">
        {bytes(done)}
        {total > 0 && ` of ${bytes(total)}`}
      </span>
    </div>
  );
}

export function Copies({ owner }: { owner: boolean }): JSX.Element {
  useLive("downloads", "changed");
  const { value, error, again } = useLoaded(() => get<Copy[]>("/api/v1/copies"), "", live.changed.get("lists"));
  const downloads = [...live.downloads.values()].sort((a, b) => b.began.localeCompare(a.began));
  const ended = downloads.filter((d) => d.state === "done").length;
  useEffect(() => {
    if (ended > 0) again();
  }, [ended]);
  return (
    <>
      {owner ? <Pull /> : <Note>You are signed in to read only. The owner downloads, pins and evicts models.</Note>}
      {downloads.length > 0 && <Downloads list={downloads} owner={owner} />}
      <Failure of={error} />
      {value ? <Held list={value} owner={owner} again={again} /> : !error && <p class="muted">Loading…</p>}
    </>
  );
}

function Pull(): JSX.Element {
  const [uri, set] = useState("");
  const [error, fail] = useState<unknown>(null);
  const submit = (e: Event) => {
    e.preventDefault();
    change<Change>("POST", "/api/v1/downloads", { uri: uri.trim() }).then(() => (set(""), fail(null)), fail);
  };
  return (
    <Card title="Download a model ahead of its use">
      <form class="stack" onSubmit={submit}>
        <label class="field">
          Address
          <input name="uri" autocomplete="off" spellcheck={false} placeholder="hf://OWNER/NAME, s3://BUCKET/PATH, https://…" value={uri} onInput={(e) => set(e.currentTarget.value)} />
        </label>
        <div>
          <button class="primary" disabled={!uri.trim()}>
            Pull
          </button>
        </div>
        <Failure of={error} />
      </form>
    </Card>
  );
}

function Downloads({ list, owner }: { list: Download[]; owner: boolean }): JSX.Element {
  const end = (d: Download) => () => void change<Change>("DELETE", "/api/v1/downloads", { uri: d.uri }).catch((e: unknown) => toast(e instanceof Error ? e.message : String(e), "bad"));
  const words = { running: ["busy", "Downloading"], done: ["good", "Done"], failed: ["bad", "Failed"], stopped: ["off", "Stopped"] } as const;
  return (
    <Card title="Downloads" flush>
      <Table heads={[["Model"], ["State"], ["Progress"], [""]]}>
        {list.map((d) => (
          <tr key={d.uri}>
            <td class="text mono">
              <Address text={d.uri} />
              {d.error && <span class="sub">{d.error}</span>}
            </td>
            <td>
              <State tone={words[d.state][0]}>{words[d.state][1]}</State>
            </td>
            <td>{d.state === "running" ? <Progress done={d.done} total={d.total} /> : bytes(d.done)}</td>
            <td class="num">
              {owner && (
                <button type="button" aria-label={`${d.state === "running" ? "Stop download of" : "Dismiss"} ${d.uri}`} onClick={end(d)}>
                  {d.state === "running" ? "Stop download" : "Dismiss"}
                </button>
              )}
            </td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}

function Held({ list, owner, again }: { list: Copy[]; owner: boolean; again: () => void }): JSX.Element {
  const [open, show] = useState<string | null>(null);
  const [evicting, evict] = useState<Copy | null>(null);
  const pin = (c: Copy) => () =>
    void change<Change>("PATCH", "/api/v1/copies", { uri: c.source, pinned: !c.pinned }).then(
      () => (toast(`${c.source} is ${c.pinned ? "unpinned" : "pinned"}.`), again()),
      (e: unknown) => toast(e instanceof Error ? e.message : String(e), "bad"),
    );
  if (list.length === 0) return <Card><Empty>No model was downloaded to this machine: those of files are served where they are.</Empty></Card>;
  const sum = list.reduce((n, c) => n + c.bytes, 0);
  return (
    <Card title="Files" end={<span class="small muted">{`${plural(list.length, "copy", "copies")}, ${bytes(sum)}`}</span>} flush>
      <Table heads={[["Model"], ["Size", "num"], ["Files", "num hide-small"], ["Services", "hide-small"], ["Used", "num hide-small"], [""]]}>
        {list.map((c) => {
          const key = `${c.source} ${c.used}`;
          return (
            <>
              <tr key={key}>
                <td class="text mono">
                  <button type="button" class="plain" aria-expanded={open === key} onClick={() => show(open === key ? null : key)}>
                    {c.source ? <Address text={c.source} /> : "of an unknown address"}
                  </button>
                  {c.pinned && <> <State tone="good">Pinned</State></>}
                </td>
                <td class="num">{bytes(c.bytes)}</td>
                <td class="num hide-small">{count(c.fileCount)}</td>
                <td class="hide-small wrap">
                  {(c.services ?? []).map((s, i) => (
                    <>
                      {i > 0 && ", "}
                      <a href={`#/services/${s}`}>{s}</a>
                    </>
                  ))}
                  {!c.services?.length && <span class="muted">none</span>}
                </td>
                <td class="num hide-small">{ago(c.used)} ago</td>
                <td class="num">
                  {owner && c.source && (
                    <span class="row end">
                      <button type="button" aria-label={`${c.pinned ? "Unpin" : "Pin"} ${c.source}`} onClick={pin(c)}>
                        {c.pinned ? "Unpin" : "Pin"}
                      </button>
                      <button type="button" class="danger" aria-label={`Evict ${c.source}`} onClick={() => evict(c)}>
                        Evict
                      </button>
                    </span>
                  )}
                </td>
              </tr>
              {open === key && (
                <tr>
                  <td colSpan={6}>
                    <Files of={c} />
                  </td>
                </tr>
              )}
            </>
          );
        })}
      </Table>
      {evicting && (
        <Ask
          title="Evict this model?"
          verb="Evict"
          danger
          close={() => evict(null)}
          act={async () => {
            await change<Change>("DELETE", "/api/v1/copies", { uri: evicting.source });
            toast(`${evicting.source} is evicted.`);
            again();
          }}
        >
          <p class="wrap">
            <code>{evicting.source}</code>
          </p>
          <p class="muted">{`Its ${plural(evicting.fileCount, "file")} (${bytes(evicting.bytes)}) are removed from this machine. It is downloaded again when a service needs it.`}</p>
        </Ask>
      )}
    </Card>
  );
}

function Files({ of }: { of: Copy }): JSX.Element {
  const files = of.files ?? [];
  return (
    <div class="stack">
      <table>
        <tbody>
          {files.map((f) => (
            <tr key={f.name}>
              <td class="text mono">{f.name}</td>
              <td class="num">{bytes(f.bytes)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {of.fileCount > files.length && <p class="small muted">and {plural(of.fileCount - files.length, "other file")}</p>}
      {of.path && <p class="small muted wrap">{of.path}</p>}
    </div>
  );
}
