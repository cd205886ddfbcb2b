// The small parts that pages are made of.
import { type ComponentChildren, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Refused } from "./api";
import type { Tone } from "./state";

export function State({ tone, children, pill }: { tone: Tone; children: ComponentChildren; pill?: boolean }): JSX.Element {
  return <span class={`state ${tone}${pill ? " pill" : ""}`}>{children}</span>;
}

export function Card({ title, end, flush, children, id }: { title?: ComponentChildren; end?: ComponentChildren; flush?: boolean; children: ComponentChildren; id?: string }): JSX.Element {
  return (
    <section class="card" id={id}>
      {title !== undefined && (
        <header>
          <h2>{title}</h2>
          {end && <div class="end row">{end}</div>}
        </header>
      )}
      <div class={flush ? "flush" : "body"}>{children}</div>
    </section>
  );
}

/** Table has heads of a label, with a class and a title where it needs them. */
export function Table({ heads, children, class: of }: { heads: [string, string?, string?][]; children: ComponentChildren; class?: string }): JSX.Element {
  return (
    <div class="scroll" tabIndex={0}>
      <table class={of}>
        <thead>
          <tr>
            {heads.map(([label, is, title]) => (
              <th key={label} class={is || undefined} title={title}>
                {label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** Address is a URL or URI, broken between its parts where it is too long for a line. */
export function Address({ text }: { text: string }): JSX.Element {
  return (
    <span class="wrap">
      {text.split(/(?<=[/.:?&@])(?![/.:?&@])/).map((part) => (
        <>
          {part}
          <wbr />
        </>
      ))}
    </span>
  );
}

export function Facts({ of }: { of: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {of.map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}

/** Note says what went wrong, or what to know. */
export function Note({ tone, title, lines, children }: { tone?: Tone; title?: string; lines?: string[]; children?: ComponentChildren }): JSX.Element {
  return (
    <div class={`note ${tone ?? ""}`} role={tone === "bad" ? "alert" : undefined}>
      {title && <strong>{title} </strong>}
      {children}
      {lines && lines.length > 0 && <pre>{lines.join("\n")}</pre>}
    </div>
  );
}

export function Failure({ of }: { of: unknown }): JSX.Element | null {
  if (!of) return null;
  const e = of instanceof Refused ? of : new Refused(0, of instanceof Error ? of.message : "The reason is not known.");
  return (
    <Note tone="bad" title={e.status === 403 ? "Not allowed:" : "This did not work:"} lines={e.problems}>
      {e.message}
    </Note>
  );
}

export function Empty({ children }: { children: ComponentChildren }): JSX.Element {
  return <p class="empty">{children}</p>;
}

export function Tabs<T extends string>({ tabs, at, go, label }: { tabs: Partial<Record<T, string>>; at: T; go: (t: T) => void; label: string }): JSX.Element {
  const names = Object.keys(tabs) as T[];
  const onKey = (e: KeyboardEvent) => {
    const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const next = names[(names.indexOf(at) + step + names.length) % names.length];
    if (next === undefined) return;
    go(next);
    (e.currentTarget as HTMLElement).querySelectorAll("button")[names.indexOf(next)]?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={onKey}>
      {names.map((t) => (
        <button key={t} role="tab" type="button" aria-selected={t === at} tabIndex={t === at ? 0 : -1} onClick={() => go(t)}>
          {tabs[t]}
        </button>
      ))}
    </div>
  );
}

export function Copy({ text }: { text: string }): JSX.Element {
  const [done, set] = useState(false);
  return (
    <button
      type="button"
      onClick={() => {
        void navigator.clipboard.writeText(text).then(() => set(true));
        window.setTimeout(() => set(false), 1500);
      }}
    >
      {done ? "Copied" : "Copy"}
    </button>
  );
}

export function Code({ text, fold }: { text: string; fold?: boolean }): JSX.Element {
  return (
    <pre class={`block ${fold ? "fold" : ""}`} tabIndex={0}>
      {text}
    </pre>
  );
}

/** Ask is a dialog that does something when it is confirmed; with type, its name has
 * to be typed before. */
export function Ask({ title, type, verb, danger, children, act, close }: { title: string; type?: string; verb: string; danger?: boolean; children?: ComponentChildren; act: () => Promise<void>; close: () => void }): JSX.Element {
  const ref = useRef<HTMLDialogElement>(null);
  const cancel = useRef<HTMLButtonElement>(null);
  const [typed, set] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, fail] = useState<unknown>(null);
  useEffect(() => {
    ref.current?.showModal();
    // What is dangerous is not done by one more Enter.
    if (danger && type === undefined) cancel.current?.focus();
  }, []);
  const submit = (e: Event) => {
    e.preventDefault();
    setBusy(true);
    act().then(close, (e: unknown) => {
      fail(e);
      setBusy(false);
    });
  };
  return (
    <dialog ref={ref} onClose={close} aria-label={title}>
      <form onSubmit={submit}>
        <h1>{title}</h1>
        {children}
        {type !== undefined && (
          <label class="field">
            <span>
              Type <code>{type}</code> to confirm
            </span>
            <input name="confirm" autocomplete="off" spellcheck={false} value={typed} onInput={(e) => set(e.currentTarget.value)} />
          </label>
        )}
        <Failure of={error} />
        <div class="row">
          <button class={danger ? "danger" : "primary"} disabled={busy || (type !== undefined && typed !== type)}>
            {verb}
          </button>
          <button ref={cancel} type="button" onClick={() => ref.current?.close()}>
            Cancel
          </button>
        </div>
      </form>
    </dialog>
  );
}

type Toast = { id: number; text: string; tone: Tone };
let toasts: Toast[] = [];
let redraw: () => void = () => undefined;
let next = 0;

/** toast says in a corner, for a while, that something was done. */
export function toast(text: string, tone: Tone = "good"): void {
  const t = { id: ++next, text, tone };
  toasts = [...toasts.slice(-3), t];
  redraw();
  window.setTimeout(() => {
    toasts = toasts.filter((x) => x !== t);
    redraw();
  }, 6000);
}

export function Toasts(): JSX.Element {
  const [, again] = useState(0);
  useEffect(() => {
    redraw = () => again((n) => n + 1);
  }, []);
  return (
    <div class="toasts" role="status">
      {toasts.map((t) => (
        <div key={t.id} class={`note ${t.tone}`}>
          {t.text}
        </div>
      ))}
    </div>
  );
}

/** useLoaded loads something, and again when a key changes; when changes does, what is
 * known stays until the answer is there. */
export function useLoaded<T>(load: () => Promise<T>, key: string, changes?: unknown): { value: T | undefined; error: unknown; again: () => void } {
  const [n, again] = useState(0);
  const [of, set] = useState<{ key: string; value?: T; error?: unknown }>({ key });
  useEffect(() => {
    let left = false;
    load().then(
      (value) => !left && set({ key, value }),
      (error: unknown) => !left && set({ key, error }),
    );
    return () => {
      left = true;
    };
  }, [key, n, changes]);
  const is = of.key === key ? of : { key };
  return { value: is.value, error: is.error, again: () => again((n) => n + 1) };
}

/** useTick draws again every so many milliseconds: for ages. */
export function useTick(ms: number): void {
  const [, again] = useState(0);
  useEffect(() => {
    const t = window.setInterval(() => again((n) => n + 1), ms);
    return () => window.clearInterval(t);
  }, [ms]);
}
