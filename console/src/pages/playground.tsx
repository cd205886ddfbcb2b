import { type JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { about, send } from "../api";
import { count, milliseconds } from "../format";
import { live, useLive } from "../live";
import { keyOf } from "../state";
import { Card, Code, Copy, Failure, Note, Tabs, useLoaded } from "../ui";

type Tab = "chat" | "infer" | "embeddings";
type Turn = { role: "user" | "assistant"; content: string; note?: string };
type Settings = { system: string; temperature: string; maxTokens: string; key: string };

const prefix = "/api/v1/infer";

export function Playground({ of, owner }: { of: string; owner: boolean }): JSX.Element {
  useLive("services");
  // KServe's and OME's objects on a cluster do not tell their protocol: those take part in both.
  const all = [...live.services.values()];
  const chats = all.filter((s) => !s.status.protocol || s.status.protocol === "openAI");
  const others = all.filter((s) => s.status.protocol !== "openAI");
  const asked = live.services.get(of)?.status.protocol;
  const [tab, go] = useState<Tab>(asked && asked !== "openAI" ? "infer" : "chat");
  const [key, setKey] = useState("");
  const base = about.gateway ?? "http://127.0.0.1:8080";
  if (!owner)
    return (
      <div class="page">
        <h1>Playground</h1>
        <Note>You are signed in to read only. Requests start models, so the owner sends them.</Note>
      </div>
    );
  return (
    <div class="page">
      <div class="head">
        <h1>Playground</h1>
        <div class="end">
          <label>
            <span class="sr">API key, where the server asks for one</span>
            <input type="password" autocomplete="off" placeholder="API key, if needed" value={key} onInput={(e) => setKey(e.currentTarget.value)} />
          </label>
        </div>
      </div>
      <Tabs<Tab> label="Kind of request" at={tab} go={go} tabs={{ chat: "Chat", infer: "Infer", embeddings: "Embeddings" }} />
      {tab === "chat" && <Chats names={chats.map(keyOf)} first={of} apiKey={key} base={base} />}
      {tab === "infer" && <Infer names={others.map(keyOf)} first={of} apiKey={key} base={base} />}
      {tab === "embeddings" && <Embeddings names={chats.map(keyOf)} first={of} apiKey={key} base={base} />}
    </div>
  );
}

/** modelName is how a request names a service: by its name, or with its namespace where two share it, or on a cluster, where others may. */
function modelName(key: string): string {
  if (about.without) return key;
  const [namespace, name = key] = key.split("/");
  const twice = [...live.services.values()].filter((s) => s.name === name).length > 1;
  return twice ? `${namespace ?? ""}/${name}` : name;
}

function headersOf(key: string): Record<string, string> {
  return key ? { "X-Roundhouse-Key": key } : {};
}

type Shared = { names: string[]; first: string; apiKey: string; base: string };

function Choose({ names, at, set, label, none }: { names: string[]; at: string; set: (k: string) => void; label: string; none?: string }): JSX.Element {
  return (
    <label>
      <span class="sr">{label}</span>
      <select value={at} onChange={(e) => set(e.currentTarget.value)}>
        {none !== undefined && <option value="">{none}</option>}
        {names.map((n) => (
          <option key={n}>{n}</option>
        ))}
      </select>
    </label>
  );
}

function Chats({ names, first, apiKey, base }: Shared): JSX.Element {
  const [left, setLeft] = useState(names.includes(first) ? first : (names[0] ?? ""));
  const [right, setRight] = useState("");
  const [settings, set] = useState<Omit<Settings, "key">>({ system: "", temperature: "", maxTokens: "" });
  const [words, say] = useState("");
  const [asked, ask] = useState<{ text: string; n: number }>({ text: "", n: 0 });
  const at = left || names[0] || "";
  if (names.length === 0) return <Note>No service speaks the OpenAI protocol. A language model, or the simulator of examples/quickstart, does.</Note>;
  const submit = (e: Event) => {
    e.preventDefault();
    if (!words.trim()) return;
    ask({ text: words, n: asked.n + 1 });
    say("");
  };
  const all = { ...settings, key: apiKey };
  const field = (name: keyof typeof settings) => ({ value: settings[name], onInput: (e: JSX.TargetedInputEvent<HTMLInputElement>) => set({ ...settings, [name]: e.currentTarget.value }) });
  return (
    <>
      <div class="grid">
        <Conversation key={`l${at}`} of={at} asked={asked} settings={all} head={<Choose label="Model" names={names} at={at} set={setLeft} />} />
        {right ? (
          <Conversation key={`r${right}`} of={right} asked={asked} settings={all} head={<Choose label="Second model" names={names} at={right} set={setRight} none="None" />} />
        ) : null}
      </div>
      <form class="stack" onSubmit={submit}>
        <label>
          <span class="sr">Message</span>
          <textarea
            name="message"
            rows={3}
            placeholder="Message. Enter sends it, Shift+Enter begins a line."
            value={words}
            onInput={(e) => say(e.currentTarget.value)}
            onKeyDown={(e) => {
              if (e.key === "Enter" && !e.shiftKey && !e.isComposing) submit(e);
            }}
          />
        </label>
        <div class="row">
          <button class="primary" disabled={!words.trim()}>
            Send
          </button>
          {!right && <Choose label="Compare with" names={names} at="" set={setRight} none="Compare with…" />}
        </div>
      </form>
      <Card title="Settings">
        <div class="row">
          <label class="field grow">
            System prompt
            <input {...field("system")} />
          </label>
          <label class="field">
            Temperature
            <input type="number" step="0.1" min="0" max="2" placeholder="model's" {...field("temperature")} />
          </label>
          <label class="field">
            Max tokens
            <input type="number" min="1" placeholder="no bound" {...field("maxTokens")} />
          </label>
        </div>
      </Card>
      <Same base={base} path="/v1/chat/completions" body={chatBody(at, [{ role: "user", content: asked.text || "Hello" }], all)} />
    </>
  );
}

function chatBody(of: string, turns: Turn[], s: Settings): Record<string, unknown> {
  const messages = [...(s.system ? [{ role: "system", content: s.system }] : []), ...turns.map(({ role, content }) => ({ role, content }))];
  return {
    model: modelName(of),
    messages,
    stream: true,
    stream_options: { include_usage: true },
    ...(s.temperature ? { temperature: Number(s.temperature) } : {}),
    ...(s.maxTokens ? { max_tokens: Number(s.maxTokens) } : {}),
  };
}

function Conversation({ of, asked, settings, head }: { of: string; asked: { text: string; n: number }; settings: Settings; head: JSX.Element }): JSX.Element {
  const [turns, set] = useState<Turn[]>([]);
  const [error, fail] = useState<unknown>(null);
  const [busy, setBusy] = useState<AbortController | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const seen = useRef(asked.n);
  useEffect(() => {
    if (asked.n === seen.current) return;
    seen.current = asked.n;
    const before: Turn[] = [...turns, { role: "user", content: asked.text }];
    const stop = new AbortController();
    setBusy(stop);
    fail(null);
    set([...before, { role: "assistant", content: "" }]);
    stream(chatBody(of, before, settings), settings.key, stop.signal, (answer) => set([...before, answer]))
      .catch((e: unknown) => !stop.signal.aborted && fail(e))
      .finally(() => setBusy(null));
  }, [asked.n]);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [turns]);
  return (
    <Card
      title={head}
      end={
        <>
          {busy && (
            <button type="button" onClick={() => busy.abort()}>
              Stop
            </button>
          )}
          <button type="button" disabled={turns.length === 0} onClick={() => (set([]), fail(null))}>
            Clear
          </button>
        </>
      }
    >
      <div class="chat" ref={box} tabIndex={0} role="log" aria-label={`Conversation with ${of}`}>
        {turns.length === 0 && <p class="muted">Ask something. A model that is asleep starts first.</p>}
        {turns.map((t, i) => (
          <div key={i} class={`turn ${t.role}`}>
            <span class="words">{t.content || (busy ? "…" : "")}</span>
            {t.note && <span class="small muted">{t.note}</span>}
          </div>
        ))}
      </div>
      <Failure of={error} />
    </Card>
  );
}

type Chunk = { choices?: { delta?: { content?: string; reasoning_content?: string } }[]; usage?: { completion_tokens?: number }; error?: { message?: string } };

/** stream asks for an answer and tells it as it comes, with how fast it came. */
async function stream(body: Record<string, unknown>, key: string, signal: AbortSignal, tell: (t: Turn) => void): Promise<void> {
  const began = performance.now();
  const r = await send("POST", `${prefix}/v1/chat/completions`, body, { signal, headers: headersOf(key) });
  const reader = r.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let content = "";
  let first = 0;
  let tokens = 0;
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const chunk = JSON.parse(line.slice(6)) as Chunk;
      if (chunk.error) throw new Error(chunk.error.message ?? "the model failed");
      const delta = chunk.choices?.[0]?.delta;
      const text = delta?.content ?? delta?.reasoning_content ?? "";
      if (text && !first) first = performance.now();
      content += text;
      tokens = chunk.usage?.completion_tokens ?? tokens;
    }
    tell({ role: "assistant", content });
  }
  const took = performance.now() - (first || began);
  const speed = tokens > 1 && took > 0 ? `, ${count(Math.round((1000 * (tokens - 1)) / took))} tokens/s` : "";
  tell({ role: "assistant", content, note: `First byte after ${milliseconds((first || performance.now()) - began)}${tokens ? `, ${count(tokens)} tokens` : ""}${speed}` });
}

type Tensor = { name: string; datatype: string; shape: number[]; parameters?: { feature_names?: string[] } };
type Metadata = { name: string; inputs?: Tensor[]; outputs?: Tensor[] };

function Infer({ names, first, apiKey, base }: Shared): JSX.Element {
  const [chosen, choose] = useState(names.includes(first) ? first : (names[0] ?? ""));
  const at = chosen || names[0] || "";
  if (!at) return <Note>No service speaks the Open Inference Protocol.</Note>;
  return (
    <>
      <div class="row">
        <Choose label="Model" names={names} at={at} set={choose} />
      </div>
      <Form key={at} of={at} apiKey={apiKey} base={base} />
    </>
  );
}

function Form({ of, apiKey, base }: { of: string; apiKey: string; base: string }): JSX.Element {
  const name = modelName(of);
  const path = `/v2/models/${name.split("/").map(encodeURIComponent).join("/")}`;
  const meta = useLoaded(async () => (await (await send("GET", prefix + path, undefined, { headers: headersOf(apiKey) })).json()) as Metadata, `${of} ${apiKey}`);
  const [values, set] = useState<Record<string, string>>({});
  const [answer, setAnswer] = useState<string | null>(null);
  const [error, fail] = useState<unknown>(null);
  const [took, setTook] = useState("");
  const inputs = meta.value?.inputs ?? [];
  const body = useMemo(() => ({ inputs: inputs.map((t) => tensor(t, values)) }), [inputs, values]);
  if (meta.error) return <Failure of={meta.error} />;
  if (!meta.value) return <p class="muted">Asking the model what it takes. If it is asleep it starts now…</p>;
  const submit = (e: Event) => {
    e.preventDefault();
    const began = performance.now();
    fail(null);
    send("POST", `${prefix}${path}/infer`, body, { headers: headersOf(apiKey) })
      .then(async (r) => {
        setAnswer(JSON.stringify(await r.json(), null, 2));
        setTook(milliseconds(performance.now() - began));
      })
      .catch((e: unknown) => (fail(e), setAnswer(null)));
  };
  const field = (id: string, label: string, t: Tensor) => (
    <label class="field" key={id}>
      {label}
      <input name={id} required type={numeric(t) ? "number" : "text"} step="any" value={values[id] ?? ""} onInput={(e) => set({ ...values, [id]: e.currentTarget.value })} />
    </label>
  );
  return (
    <>
      <div class="grid">
        <Card title={`Input of ${meta.value.name}`}>
          <form class="stack" onSubmit={submit}>
            {inputs.map((t) => (
              <fieldset class="stack" key={t.name}>
                <legend class="small muted">
                  {t.name} · {t.datatype} [{t.shape.join(", ")}]
                </legend>
                {fields(t).length > 0 ? (
                  <div class="grid tight">{fields(t).map((f, i) => field(`${t.name}.${i}`, f, t))}</div>
                ) : (
                  <label class="field">
                    Values in JSON, as [1, 2, 3]
                    <textarea class="code" name={t.name} rows={4} required spellcheck={false} value={values[t.name] ?? ""} onInput={(e) => set({ ...values, [t.name]: e.currentTarget.value })} />
                  </label>
                )}
              </fieldset>
            ))}
            {inputs.length === 0 && <p class="muted">The model does not say what it takes.</p>}
            <div>
              <button class="primary" disabled={inputs.length === 0}>
                Infer
              </button>
            </div>
          </form>
        </Card>
        <Card title="Answer" end={took && <span class="small muted">{took}</span>}>
          <Failure of={error} />
          {answer ? <Code text={answer} /> : !error && <p class="muted">Not asked yet.</p>}
        </Card>
      </div>
      <Same base={base} path={`${path}/infer`} body={body} />
    </>
  );
}

const maxFields = 32;

/** fields are the labels of a tensor's values in one row, where there are few. */
function fields(t: Tensor): string[] {
  const inner = t.shape.slice(1);
  const n = inner.reduce((a, b) => a * b, 1);
  if (inner.length > 1 || n < 1 || n > maxFields || !Number.isFinite(n)) return [];
  const names = t.parameters?.feature_names;
  return Array.from({ length: n }, (_, i) => names?.[i] ?? `Value ${i + 1}`);
}

function numeric(t: Tensor): boolean {
  return !["BYTES", "BOOL"].includes(t.datatype);
}

function parsed(text: string, t: Tensor): unknown {
  if (numeric(t)) return Number(text);
  return t.datatype === "BOOL" ? text === "true" : text;
}

function tensor(t: Tensor, values: Record<string, string>): Record<string, unknown> {
  const labels = fields(t);
  if (labels.length > 0) return { name: t.name, datatype: t.datatype, shape: t.shape.map((d, i) => (i === 0 && d < 0 ? 1 : d)), data: labels.map((_, i) => parsed(values[`${t.name}.${i}`] ?? (numeric(t) ? "0" : ""), t)) };
  let data: unknown[] = [];
  try {
    const read: unknown = JSON.parse(values[t.name] ?? "[]");
    data = Array.isArray(read) ? (read.flat(Infinity) as unknown[]) : [read];
  } catch {
    data = [];
  }
  const rest = t.shape.filter((d) => d > 0).reduce((a, b) => a * b, 1);
  const open = t.shape.filter((d) => d < 0).length;
  return { name: t.name, datatype: t.datatype, shape: t.shape.map((d) => (d > 0 ? d : open === 1 ? Math.max(1, Math.round(data.length / rest)) : 1)), data };
}

function Embeddings({ names, first, apiKey, base }: Shared): JSX.Element {
  const [chosen, choose] = useState(names.includes(first) ? first : (names[0] ?? ""));
  const [text, set] = useState("A roundhouse serves locomotives.");
  const [answer, setAnswer] = useState<number[] | null>(null);
  const [error, fail] = useState<unknown>(null);
  const at = chosen || names[0] || "";
  if (!at) return <Note>No service speaks the OpenAI protocol.</Note>;
  const body = { model: modelName(at), input: text };
  const submit = (e: Event) => {
    e.preventDefault();
    send("POST", `${prefix}/v1/embeddings`, body, { headers: headersOf(apiKey) })
      .then(async (r) => {
        const out = (await r.json()) as { data?: { embedding: number[] }[] };
        setAnswer(out.data?.[0]?.embedding ?? []);
        fail(null);
      })
      .catch((e: unknown) => (fail(e), setAnswer(null)));
  };
  return (
    <>
      <Card title={<Choose label="Model" names={names} at={at} set={choose} />}>
        <form class="stack" onSubmit={submit}>
          <label class="field">
            Text
            <textarea rows={3} value={text} onInput={(e) => set(e.currentTarget.value)} />
          </label>
          <div>
            <button class="primary">Embed</button>
          </div>
          <Failure of={error} />
          {answer && (
            <>
              <p class="muted">{count(answer.length)} dimensions</p>
              <Code fold text={answer.slice(0, 64).map((n) => n.toFixed(5)).join("  ") + (answer.length > 64 ? "  …" : "")} />
            </>
          )}
        </form>
      </Card>
      <Same base={base} path="/v1/embeddings" body={body} />
    </>
  );
}

function quoted(s: string): string {
  return `'${s.replaceAll("'", `'\\''`)}'`;
}

/** python is a JSON value as Python writes it. */
function python(v: unknown, indent = "    "): string {
  if (v === null || v === undefined) return "None";
  if (typeof v === "boolean") return v ? "True" : "False";
  if (Array.isArray(v)) return `[${v.map((x) => python(x, indent)).join(", ")}]`;
  if (typeof v === "object")
    return `{${Object.entries(v)
      .map(([k, x]) => `${JSON.stringify(k)}: ${python(x, indent)}`)
      .join(", ")}}`;
  return JSON.stringify(v);
}

/** Same is the same request for a shell and for Python. */
function Same({ base, path, body }: { base: string; path: string; body: Record<string, unknown> }): JSX.Element {
  const [tab, go] = useState<"curl" | "python">("curl");
  const streams = body["stream"] === true;
  const curl = `curl ${streams ? "-N " : ""}${base}${path} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
  const lines = streams ? `with urllib.request.urlopen(request) as answer:\n    for line in answer:\n        print(line.decode(), end="")` : `with urllib.request.urlopen(request) as answer:\n    print(json.load(answer))`;
  const code = `import json\nimport urllib.request\n\nbody = ${python(body)}\nrequest = urllib.request.Request(\n    ${JSON.stringify(base + path)},\n    data=json.dumps(body).encode(),\n    headers={"Content-Type": "application/json"},\n)\n${lines}\n`;
  const text = tab === "curl" ? curl : code;
  return (
    <Card title="The same request" end={<Copy text={text} />}>
      <div class="stack">
        <Tabs label="Language" at={tab} go={go} tabs={{ curl: "curl", python: "Python" }} />
        <Code fold text={text} />
        {!about.gateway && (
          <p class="muted">
            Reach the gateway so first: <code>kubectl port-forward --namespace NAMESPACE service/GATEWAY 8080:http</code>
          </p>
        )}
      </div>
    </Card>
  );
}
