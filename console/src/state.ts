// What a service's state is called, and how it is coloured.
import type { RoutingObject, Service } from "./types";

export type Tone = "good" | "rest" | "busy" | "bad" | "off";
export type State = { word: string; tone: Tone; why: string };

export function stateOf(s: Service): State {
  const ready = s.status.conditions?.find((c) => c.type === "Ready");
  const reason = ready?.reason ?? "";
  const why = ready?.message ?? "";
  if (!ready) return { word: "New", tone: "busy", why: "it has not been looked at yet" };
  if (reason === "Stopped") return { word: "Stopped", tone: "off", why: why || "stopped by its owner" };
  if (ready.status === "True") return reason === "Asleep" ? { word: "Asleep", tone: "rest", why } : { word: "Ready", tone: "good", why: why || "answers requests" };
  if (["Starting", "Fetching", "Creating", "Rollout", "NoRevision", "Scheduling", "ContainerCreating", "PodInitializing"].includes(reason))
    return { word: reason === "Fetching" ? "Fetching" : "Starting", tone: "busy", why };
  return { word: reason && reason.length < 24 ? spaced(reason) : "Failed", tone: "bad", why };
}

export function stateOfRoute(o: RoutingObject): State {
  const ready = o.status.conditions?.find((c) => c.type === "Ready") ?? o.status.conditions?.[0];
  const reason = ready?.reason ?? "";
  const why = ready?.message ?? "";
  if (!ready) return { word: "New", tone: "busy", why };
  if (ready.status === "True") return reason === "Degraded" ? { word: "Degraded", tone: "busy", why } : { word: "Ready", tone: "good", why };
  return { word: spaced(reason || (ready.status === "False" ? "NotReady" : "Checking")), tone: ready.status === "False" ? "bad" : "busy", why };
}

/** spaced makes "CrashLoopBackOff" read "Crash loop back off". */
export function spaced(word: string): string {
  const out = word.replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase();
  return out.charAt(0).toUpperCase() + out.slice(1);
}

export function toneOfPhase(phase: string): Tone {
  switch (phase) {
    case "Ready":
      return "good";
    case "Asleep":
      return "rest";
    case "Failed":
      return "bad";
    case "Terminating":
    case "Stopped":
    case "Draining":
      return "off";
    default:
      return "busy";
  }
}

export function keyOf(s: { namespace?: string; name: string }): string {
  return `${s.namespace ?? ""}/${s.name}`;
}
