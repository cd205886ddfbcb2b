// What the admin API answers: the parts that the console shows.

export type Condition = { type: string; status: string; reason?: string; message?: string; lastTransitionTime?: string };

export type Component = { role: string; desired: number; running: number; ready: number; startupSeconds: number; progress?: string };

export type Replica = {
  id: string;
  role: string;
  revision: string;
  phase: string;
  reason?: string;
  message?: string;
  http?: string;
  pid?: number;
  created?: string;
  started?: string;
  readyAt?: string;
  restarts?: number;
  memory?: number;
  gpuMemory?: number;
  gpus?: number[];
  progress?: { done: number; total: number };
};

export type Limits = { Min: number; Max: number; Target: number; Metric: string; ScaleToZeroAfter: string };

export type Service = {
  namespace: string;
  name: string;
  apiVersion: string;
  kind: string;
  file?: string;
  created: string;
  generation: number;
  model?: string;
  status: {
    conditions?: Condition[];
    url?: string;
    runtime?: { name?: string; scope?: string; why?: string };
    protocol?: string;
    revision?: string;
    components?: Component[];
    canary?: { revision?: string; wanted: number; percent: number; ready: number; why?: string };
  };
  scaling?: Record<string, string>;
  limits?: Record<string, Limits>;
  replicas?: Replica[];
  lastFailure?: { reason: string; message: string; time: string; replica?: string };
  rendered?: string;
  written?: string;
};

export type ReplicaTraffic = { inFlight: number; waiting?: number; running?: number; kv?: number };
export type Traffic = { queued: number; running: number; requests: number; failed: number; clientErrors: number; tokens: number; replicas?: Record<string, ReplicaTraffic> };

/** Standing is how a service would fare if another lacked room: the first that stops goes first. */
export type Standing = { service: string; stops?: boolean; why: string };
export type Machine = { memoryAvailable: number; memoryTotal: number; diskFree: number; diskTotal: number; gpus?: number[]; standings?: Standing[] };

export type Download = { uri: string; state: "running" | "done" | "failed" | "stopped"; done: number; total: number; error?: string; began: string };
export type Copy = { source: string; path?: string; bytes: number; used: string; pinned?: boolean; services?: string[]; files?: { name: string; bytes: number }[]; fileCount: number };

export type Event = { number: number; time: string; namespace?: string; service?: string; object?: string; reason: string; message: string; warning?: boolean };

export type Request = {
  number: number;
  time: string;
  id: string;
  trace?: string;
  key?: string;
  keyName?: string;
  client?: string;
  method: string;
  path: string;
  model?: string;
  service?: string;
  replica?: string;
  status: number;
  queuedMs: number;
  firstByteMs?: number;
  durationMs: number;
  promptTokens?: number;
  cachedTokens?: number;
  completionTokens?: number;
  tokensPerSecond?: number;
  bytesIn: number;
  bytesOut: number;
  tries: number;
  retried?: string;
  cut?: string;
  reason?: string;
  failed?: boolean;
  clientError?: boolean;
};

export type Point = {
  time: string;
  requests: number;
  failed: number;
  tokens: number;
  waitMs: number;
  firstByteMs: number;
  queued: number;
  running: number;
  desired: number;
  starting: number;
  ready: number;
};

export type Decision = { time: string; desired: number; ready: number; starting: number; why: string; queued: number; running: number };
export type ScaleHistory = { component: string; canary?: boolean; decisions: Decision[] };

export type Change = { kind: string; namespace?: string; name: string; action: string; before?: string; after?: string };
export type Explanation = { service: string; text: string; brief: string; chosen?: string; facts: unknown };
/** What this server is: what it changes nothing of, and which pages have nothing here. */
export type About = { gateway?: string; readOnly?: boolean; without?: Record<string, string> };
export type Session = { role: "owner" | "viewer"; expires: string; csrf: string };
export type Key = { id: string; name: string; created?: string; expires?: string; lastUsed?: string; limits?: Record<string, unknown> };
export type ModelObject = { kind: string; namespace?: string; name: string; scope?: string; disabled?: boolean; formats?: string; protocols?: string; base?: string; created?: string; rendered?: string };

export type Endpoint = { id: string; role: string; phase: string; address?: string; inFlight: number; limit?: number; tokens: number; open: boolean; ejected?: string; message?: string; service?: { namespace: string; name: string } };
export type RoutingObject = {
  type: string;
  namespace: string;
  name: string;
  kind: string;
  from?: string;
  to?: string;
  created?: string;
  leads?: string[];
  status: { conditions?: Condition[]; members?: { namespace: string; name: string }[] };
  endpoints?: Endpoint[];
  rendered?: string;
};
