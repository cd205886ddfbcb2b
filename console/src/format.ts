// Numbers, times and names as people read them.

export function bytes(n: number | undefined): string {
  if (n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${n < 10 && i > 0 ? n.toFixed(1) : Math.round(n)} ${units[i] ?? ""}`;
}

export function milliseconds(ms: number | undefined): string {
  if (ms === undefined) return "–";
  if (ms < 1) return ms === 0 ? "0 ms" : "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function rate(n: number): string {
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(1) : Math.round(n).toLocaleString("en");
}

export function count(n: number): string {
  return n.toLocaleString("en");
}

export function clock(time: string): string {
  const d = new Date(time);
  const today = new Date();
  const hms = [d.getHours(), d.getMinutes(), d.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
  if (d.toDateString() === today.toDateString()) return hms;
  return `${d.getFullYear()}-${String(d.getMonth() + 1).padStart(2, "0")}-${String(d.getDate()).padStart(2, "0")} ${hms}`;
}

export function ago(time: string | undefined, now = Date.now()): string {
  if (!time) return "–";
  const s = Math.max(0, Math.round((now - new Date(time).getTime()) / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86_400)} d`;
}

export function plural(n: number, one: string, many = one + "s"): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function percent(part: number | undefined): string {
  return part === undefined ? "–" : `${Math.round(100 * part)} %`;
}
