// Charts over the last hour, drawn by uPlot.
import { type JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

export type Line = { name: string; tone: "accent" | "good" | "busy" | "bad" | "rest"; values: (number | null)[]; dash?: boolean; steps?: boolean };
export type Mark = { time: number; label: string };

function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function hour(seconds: number): string {
  const d = new Date(seconds * 1000);
  return `${String(d.getHours()).padStart(2, "0")}:${String(d.getMinutes()).padStart(2, "0")}`;
}

function options(width: number, from: number, lines: Line[], marks: Mark[], unit: (n: number) => string): uPlot.Options {
  const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 }, font: "12px system-ui, sans-serif" };
  const to = Date.now() / 1000;
  return {
    width,
    height: 176,
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: true, range: () => [Math.max(to - 3600, Math.min(from, to - 600)), to] }, y: { range: (_, __, max) => [0, Math.max(1, (max ?? 1) * 1.1)] } },
    axes: [{ ...axis, space: 64, values: (_, ticks) => ticks.map(hour) }, { ...axis, size: 66, values: (_, ticks) => ticks.map(unit) }],
    series: [
      { label: "Time", value: (_: uPlot, v: number | null) => (v === null ? "–" : hour(v)) },
      ...lines.map((l) => ({
        label: l.name,
        stroke: color(l.tone),
        width: 1.75,
        dash: l.dash ? [5, 4] : undefined,
        spanGaps: false,
        points: { show: false },
        paths: l.steps ? uPlot.paths.stepped?.({ align: 1 }) : undefined,
        value: (_: uPlot, v: number | null) => (v === null ? "–" : unit(v)),
      })),
    ],
    hooks: {
      draw: [
        (u) => {
          u.ctx.save();
          u.ctx.fillStyle = color("accent");
          for (const m of marks) {
            const x = u.valToPos(m.time, "x", true);
            if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
            const y = u.bbox.top + u.bbox.height;
            const d = 5 * devicePixelRatio;
            u.ctx.beginPath();
            u.ctx.moveTo(x, y - 2 * d);
            u.ctx.lineTo(x - d, y);
            u.ctx.lineTo(x + d, y);
            u.ctx.fill();
          }
          u.ctx.restore();
        },
      ],
    },
  };
}

export function Chart({ times, lines, marks = [], unit, label }: { times: number[]; lines: Line[]; marks?: Mark[]; unit: (n: number) => string; label: string }): JSX.Element {
  const ref = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const at = ref.current;
    if (!at) return undefined;
    let plot: uPlot | null = null;
    const draw = () => {
      plot?.destroy();
      plot = new uPlot(options(at.clientWidth, times[0] ?? Infinity, lines, marks, unit), [times, ...lines.map((l) => l.values)], at);
    };
    draw();
    const resized = new ResizeObserver(() => plot && plot.width !== at.clientWidth && plot.setSize({ width: at.clientWidth, height: 176 }));
    resized.observe(at);
    const scheme = window.matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      resized.disconnect();
      scheme.removeEventListener("change", draw);
      plot?.destroy();
    };
  }, [times, lines, marks]);
  return <div class="chart" ref={ref} role="img" aria-label={label} />;
}
