// What the server streams, as it is now. Pages are told of changes at most once a
// frame, and hold no more than the bounds below.
import { useEffect, useState } from "preact/hooks";
import { currentSession } from "./api";
import type { Download, Event, Machine, Request, RoutingObject, Service, Traffic } from "./types";

const maxEvents = 1000;
const maxRequests = 2000;
/** The time over which rates are taken, in milliseconds. */
const rateWindow = 10_000;
/** A hidden tab leaves the stream after this time: a browser has few connections. */
const hiddenFor = 60_000;

/** Between two drawings are so many milliseconds, and so many times what one took: who
 * types is not kept waiting by a long list. */
const leastPause = 50;
const pauses = 3;

export type Connection = "connecting" | "live" | "lost" | "paused";
type Topic = "services" | "traffic" | "events" | "requests" | "machine" | "downloads" | "routes" | "changed" | "connection";
type Sample = { at: number; total: Traffic };

export type Rates = { requests: number; failed: number; tokens: number };

class Live {
  services = new Map<string, Service>();
  traffic = new Map<string, Traffic>();
  events: Event[] = [];
  requests: Request[] = [];
  machine: Machine | null = null;
  downloads = new Map<string, Download>();
  routes = new Map<string, RoutingObject>();
  /** changed has the time at which something last did that is to be read anew. */
  changed = new Map<"paces" | "lists", number>();
  connection: Connection = "connecting";
  /** whole: all that is has been told. */
  whole = false;
  private samples = new Map<string, Sample[]>();
  private listeners = new Map<Topic, Set<() => void>>();
  private dirty = new Set<Topic>();
  private source: EventSource | null = null;
  private cost = 0; // milliseconds that the last drawing took
  private place = "";
  private retry = 0;
  private hidden = 0;

  start(): void {
    this.open();
    document.addEventListener("visibilitychange", () => {
      window.clearTimeout(this.hidden);
      if (document.hidden) {
        this.hidden = window.setTimeout(() => {
          this.source?.close();
          this.source = null;
          this.connect("paused");
        }, hiddenFor);
      } else if (!this.source) this.open();
    });
    window.setInterval(() => this.touch("traffic"), 1000); // rates fall with the time alone
  }

  stop(): void {
    window.clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  /** rates of a service, or of all, per second. */
  rates(key?: string): Rates {
    const out = { requests: 0, failed: 0, tokens: 0 };
    const now = Date.now();
    const of = key === undefined ? this.samples.values() : [this.samples.get(key) ?? []];
    for (const list of of) {
      const last = list[list.length - 1];
      // The total before the window, else the first that is known.
      let first = list[0];
      for (const s of list) if (now - s.at >= rateWindow) first = s;
      if (!first || !last || first === last) continue;
      // A page that was opened a moment ago knows less than the window.
      const seconds = Math.max(1000, Math.min(rateWindow, now - first.at)) / 1000;
      out.requests += Math.max(0, last.total.requests - first.total.requests) / seconds;
      out.failed += Math.max(0, last.total.failed - first.total.failed) / seconds;
      out.tokens += Math.max(0, last.total.tokens - first.total.tokens) / seconds;
    }
    return out;
  }

  listen(topics: Topic[], f: () => void): () => void {
    for (const t of topics) {
      const set = this.listeners.get(t) ?? new Set();
      set.add(f);
      this.listeners.set(t, set);
    }
    return () => topics.forEach((t) => this.listeners.get(t)?.delete(f));
  }

  private touch(topic: Topic): void {
    if (this.dirty.size === 0) window.setTimeout(() => requestAnimationFrame(() => this.tell()), Math.max(leastPause, pauses * this.cost));
    this.dirty.add(topic);
  }

  private tell(): void {
    const called = new Set<() => void>();
    for (const t of this.dirty) for (const f of this.listeners.get(t) ?? []) called.add(f);
    this.dirty.clear();
    const began = performance.now();
    for (const f of called) f();
    window.setTimeout(() => (this.cost = performance.now() - began)); // once it is drawn
  }

  private connect(c: Connection): void {
    this.connection = c;
    this.touch("connection");
  }

  private open(): void {
    window.clearTimeout(this.retry);
    const s = new EventSource("/api/v1/watch" + (this.place ? `?after=${this.place}` : ""));
    this.source = s;
    const on = (name: string, f: (v: never) => void) => s.addEventListener(name, (e) => f(JSON.parse((e as MessageEvent<string>).data) as never));
    on("reset", () => {
      this.services.clear();
      this.traffic.clear();
      this.samples.clear();
      this.downloads.clear();
      this.routes.clear();
      this.events = [];
      this.requests = [];
      this.touch("services");
      this.touch("downloads");
      this.touch("routes");
    });
    on("service", (v: { key: string; value: Service }) => {
      this.services.set(bare(v.key), v.value);
      this.touch("services");
    });
    on("traffic", (v: { key: string; value: Traffic }) => this.sample(bare(v.key), v.value));
    on("machine", (v: { value: Machine }) => {
      this.machine = v.value;
      this.touch("machine");
    });
    on("download", (v: { key: string; value: Download }) => {
      this.downloads.set(bare(v.key), v.value);
      this.touch("downloads");
    });
    on("route", (v: { key: string; value: RoutingObject }) => {
      this.routes.set(bare(v.key), v.value);
      this.touch("routes");
    });
    on("changed", (v: { key: string; value: number }) => {
      this.changed.set(bare(v.key) as "paces" | "lists", v.value);
      this.touch("changed");
    });
    on("gone", (key: string) => {
      if (key.startsWith("route/")) {
        this.routes.delete(bare(key));
        this.touch("routes");
        return;
      }
      if (key.startsWith("download/")) {
        this.downloads.delete(bare(key));
        this.touch("downloads");
        return;
      }
      this.services.delete(bare(key));
      this.traffic.delete(bare(key));
      this.samples.delete(bare(key));
      this.touch("services");
    });
    on("event", (e: Event) => {
      keep(this.events, e, maxEvents);
      this.touch("events");
    });
    on("request", (r: Request) => {
      keep(this.requests, r, maxRequests);
      this.touch("requests");
    });
    s.addEventListener("told", (e) => {
      this.place = e.lastEventId;
      if (!this.whole) ["services" as const, "routes" as const].forEach((t) => this.touch(t));
      this.whole = true;
      if (this.connection !== "live") this.connect("live");
    });
    s.onerror = () => {
      // Closed and opened anew by hand: a browser gives up at an answer that is
      // none, such as that of a server that is starting.
      s.close();
      if (this.source !== s) return;
      this.source = null;
      this.connect("lost");
      this.again();
    };
  }

  /** again opens the stream anew, as soon as the server answers. */
  private again(): void {
    this.retry = window.setTimeout(() => {
      currentSession()
        .then((is) => (is ? this.open() : this.signedOut()))
        .catch(() => this.again());
    }, 1000);
  }

  signedOut: () => void = () => undefined;

  private sample(key: string, total: Traffic): void {
    this.traffic.set(key, total);
    const list = this.samples.get(key) ?? [];
    const at = Date.now();
    const last = list[list.length - 1];
    if (last && (total.requests < last.total.requests)) list.length = 0; // another process counts
    list.push({ at, total });
    while (list.length > 2 && at - (list[1]?.at ?? at) > rateWindow) list.shift();
    this.samples.set(key, list);
    this.touch("traffic");
  }
}

function bare(key: string): string {
  return key.slice(key.indexOf("/") + 1);
}

function keep<T extends { number: number }>(list: T[], item: T, most: number): void {
  const last = list[list.length - 1];
  if (last && item.number <= last.number) return;
  list.push(item);
  if (list.length > most) list.splice(0, list.length - most);
}

export const live = new Live();

/** useLive draws a component again when one of the topics changes. */
export function useLive(...topics: Topic[]): Live {
  const [, again] = useState(0);
  useEffect(() => live.listen(topics, () => again((n) => n + 1)), [topics.join()]);
  return live;
}
