// The console: signing in, the frame, and which page is shown.
import { render, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Refused, about, currentSession, learnAbout, onLost, signIn, signOut } from "./api";
import { live, useLive } from "./live";
import { ApplyPage } from "./pages/apply";
import { EventsPage } from "./pages/events";
import { KeysPage } from "./pages/keys";
import { LogsPage } from "./pages/logs";
import { ModelsPage } from "./pages/models";
import { Overview } from "./pages/overview";
import { Playground } from "./pages/playground";
import { RequestsPage } from "./pages/requests";
import { RoutesPage } from "./pages/routes";
import { ServicePage } from "./pages/service";
import { WhyPage } from "./pages/why";
import type { Session } from "./types";
import { Failure, Toasts, toast } from "./ui";

type Page = { title: string; show: (rest: string[], session: Session) => JSX.Element };

const pages: Record<string, Page> = {
  "": { title: "Overview", show: () => <Overview /> },
  requests: { title: "Requests", show: (rest) => <RequestsPage of={rest.join("/")} /> },
  events: { title: "Events", show: (rest) => <EventsPage of={rest.join("/")} /> },
  logs: { title: "Logs", show: (rest) => <LogsPage of={rest.slice(0, 2).join("/")} replica={rest[2] ?? ""} /> },
  why: { title: "Why", show: (rest) => <WhyPage of={rest.join("/")} /> },
  playground: { title: "Playground", show: (rest, s) => <Playground of={rest.join("/")} owner={s.role === "owner"} /> },
  models: { title: "Models", show: (_, s) => <ModelsPage owner={s.role === "owner"} /> },
  routes: { title: "Routes", show: () => <RoutesPage /> },
  apply: { title: "Apply", show: (_, s) => <ApplyPage owner={s.role === "owner"} /> },
  keys: { title: "Keys", show: (_, s) => <KeysPage owner={s.role === "owner"} /> },
  services: { title: "Service", show: (rest, s) => <ServicePage of={rest.slice(0, 2).join("/")} owner={s.role === "owner"} /> },
};

const menu: [string, boolean][] = [
  ["", false],
  ["requests", false],
  ["events", false],
  ["logs", false],
  ["playground", true],
  ["why", false],
  ["models", true],
  ["routes", false],
  ["apply", true],
  ["keys", false],
];

function useHash(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").map(decode);
  const [parts, set] = useState(read);
  useEffect(() => {
    const f = () => set(read());
    window.addEventListener("hashchange", f);
    f(); // it may have changed before anybody listened
    return () => window.removeEventListener("hashchange", f);
  }, []);
  return parts;
}

function decode(s: string): string {
  try {
    return decodeURIComponent(s);
  } catch {
    return s;
  }
}

function Connection(): JSX.Element | null {
  const { connection } = useLive("connection");
  if (connection !== "lost") return null;
  return (
    <div class="banner" role="status">
      The connection is lost. What you see may be out of date; it goes on by itself when the server answers.
    </div>
  );
}

function Live(): JSX.Element {
  const { connection } = useLive("connection");
  const words = { live: "Live", lost: "Lost", connecting: "Connecting", paused: "Paused" } as const;
  return <span class={`state ${connection === "live" ? "good" : connection === "lost" ? "bad" : "busy"}`}>{words[connection]}</span>;
}

function Frame({ session, leave }: { session: Session; leave: () => void }): JSX.Element {
  const [name = "", ...rest] = useHash();
  const page = pages[name];
  const lacking = about.without?.[name];
  const main = useRef<HTMLElement>(null);
  const where = [name, ...rest].join("/");
  const first = useRef(true);
  useEffect(() => {
    document.title = `${page?.title ?? "Not found"} · Roundhouse`;
    if (!first.current) main.current?.focus();
    first.current = false;
    window.scrollTo(0, 0);
  }, [where]);
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), main.current?.focus())}>
        Skip to the page
      </a>
      <div class="side">
        <a class="brand" href="#/" aria-label="Roundhouse">
          <img src="/icon.svg" alt="" />
          <span>Roundhouse</span>
        </a>
        <nav aria-label="Pages">
          <ul>
            {menu.map(([to, gap]) => (
              <li key={to} class={gap ? "gap" : ""}>
                <a href={`#/${to}`} aria-current={to === name || (to === "" && name === "services") ? "page" : undefined}>
                  {pages[to]?.title}
                </a>
              </li>
            ))}
          </ul>
        </nav>
        <div class="foot">
          <Live />
          <span>{session.role === "owner" && !about.readOnly ? "Signed in as owner" : "Signed in to read only"}</span>
          <button class="plain" type="button" onClick={leave}>
            Sign out
          </button>
          <a href="/licenses.txt">Licences</a>
        </div>
      </div>
      <div class="grow">
        <Connection />
        <main id="main" tabIndex={-1} ref={main}>
          {page ? <div key={where}>{lacking ? <Lacking title={page.title} why={lacking} /> : page.show(rest, session)}</div> : <p>There is no such page. The menu has all of them.</p>}
        </main>
      </div>
      <Toasts />
    </div>
  );
}

/** Lacking stands for a page that has nothing here. */
function Lacking({ title, why }: { title: string; why: string }): JSX.Element {
  return (
    <div class="page">
      <h1>{title}</h1>
      <p class="muted">{why}</p>
    </div>
  );
}

function SignIn({ error, enter }: { error: unknown; enter: (s: Session) => void }): JSX.Element {
  const [failed, fail] = useState(error);
  const [token, set] = useState("");
  return (
    <div class="signin">
      <main class="card">
        <div class="row">
          <img src="/icon.svg" alt="" width="32" height="32" />
          <h1>Roundhouse</h1>
        </div>
        <p class="muted">
          <code>roundhouse up</code> prints a link that signs in once, and <code>roundhouse console</code> prints another. Or enter the token of the data directory: the file <code>admin-token</code>, or <code>viewer-token</code> to read only.
        </p>
        <form
          class="stack"
          onSubmit={(e) => {
            e.preventDefault();
            signIn(token).then(enter, fail);
          }}
        >
          <label class="field">
            Token
            <input name="token" type="password" autocomplete="off" autofocus value={token} onInput={(e) => set(e.currentTarget.value)} />
          </label>
          <button class="primary" disabled={!token.trim()}>
            Sign in
          </button>
        </form>
        <Failure of={failed} />
      </main>
    </div>
  );
}

function App(): JSX.Element | null {
  const [session, set] = useState<Session | null | undefined>(undefined);
  const [error, fail] = useState<unknown>(null);
  const enter = (s: Session) => {
    const begin = () => {
      set(s);
      live.start();
    };
    learnAbout().then(begin, begin); // a server that does not answer now is asked by live
  };
  useEffect(() => {
    const lost = () => {
      live.stop();
      set(null);
    };
    onLost(lost);
    live.signedOut = lost;
    const link = /^#sign-in=([A-Z0-9]+)$/.exec(location.hash);
    if (link) history.replaceState(null, "", "/"); // the token does not stay in the history
    const begin = link?.[1] ? signIn(link[1]) : currentSession();
    begin.then(
      (s) => (s ? enter(s) : set(null)),
      (e: unknown) => {
        // A link that was used signs nobody in again; who is signed in stays so.
        fail(e);
        currentSession().then((s) => (s ? enter(s) : set(null)), () => set(null));
      },
    );
  }, []);
  const leave = () => {
    signOut().then(
      () => (live.stop(), set(null)),
      (e: unknown) => toast(`You are not signed out: ${e instanceof Refused ? e.message : "the server cannot be reached."}`, "bad"),
    );
  };
  if (session === undefined) return null;
  if (session === null) return <SignIn error={error} enter={enter} />;
  return <Frame session={session} leave={leave} />;
}

const root = document.getElementById("app");
if (root) render(<App />, root);
