// The admin API, as this page's session may use it.
import type { About, Session } from "./types";

/** A refusal of the server: what it said, and a manifest's problems, one a line. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly problems: string[] = [],
  ) {
    super(message);
  }
}

let session: Session | null = null;
let lost: () => void = () => undefined;

/** onLost is called when the server no longer knows the session. */
export function onLost(f: () => void): void {
  lost = f;
}

// What changes need beside the cookie is told once, at sign-in. It is kept where only
// pages of this very port can read it.
const kept = "roundhouse-csrf";

export async function currentSession(): Promise<Session | null> {
  const r = await fetch("/session");
  const csrf = localStorage.getItem(kept);
  session = r.ok && csrf ? { ...((await r.json()) as Session), csrf } : null;
  return session;
}

export async function signIn(token: string): Promise<Session> {
  const r = await fetch("/session", { method: "POST", body: JSON.stringify({ token }) });
  if (!r.ok) throw await refusal(r);
  session = (await r.json()) as Session;
  localStorage.setItem(kept, session.csrf);
  return session;
}

/** about is what the server is, once learnAbout has ended. */
export let about: About = {};

export async function learnAbout(): Promise<void> {
  about = await get<About>("/api/v1");
}

export async function signOut(): Promise<void> {
  const r = await fetch("/session", { method: "DELETE" });
  if (!r.ok) throw await refusal(r);
  localStorage.removeItem(kept);
  session = null;
}

export async function refusal(r: Response): Promise<Refused> {
  const text = await r.text();
  try {
    const e = JSON.parse(text) as { error?: string | { message?: string }; problems?: string[] };
    const message = typeof e.error === "string" ? e.error : e.error?.message;
    return new Refused(r.status, message ?? text, e.problems);
  } catch {
    return new Refused(r.status, text || r.statusText);
  }
}

/** send asks the server, with the token that changes, and an owner's reading, need. */
export async function send(method: string, path: string, body?: unknown, more: RequestInit = {}): Promise<Response> {
  const headers = new Headers(more.headers);
  if (session) headers.set("X-Roundhouse-Csrf", session.csrf);
  if (body !== undefined) headers.set("Content-Type", "application/json");
  let r: Response;
  try {
    r = await fetch(path, { ...more, method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (e) {
    if (e instanceof DOMException && e.name === "AbortError") throw e;
    throw new Refused(0, "The server cannot be reached.");
  }
  if (r.status === 401 && !path.startsWith("/api/v1/infer/")) lost();
  if (!r.ok) throw await refusal(r);
  return r;
}

export async function get<T>(path: string): Promise<T> {
  return (await (await send("GET", path)).json()) as T;
}

export async function change<T>(method: string, path: string, body?: unknown): Promise<T> {
  return (await (await send(method, path, body)).json()) as T;
}

export function servicePath(key: string): string {
  const [namespace, name] = key.split("/");
  return `/api/v1/services/${encodeURIComponent(namespace ?? "")}/${encodeURIComponent(name ?? "")}`;
}
