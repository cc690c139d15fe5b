/** The frame around every view: navigation, sign of life, colours, who is logged in. */
import { href, usePlace } from "./address.js";
import { Component, html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { connection } from "./live.js";
import { routeOf, routes } from "./router.js";
import { logOut, may, session } from "./session.js";
import { useStore } from "./store.js";
import { Button, Icon } from "./ui/elements.js";
import { duration } from "./ui/format.js";
import { Empty, ErrorState, Loading } from "./ui/states.js";
import { useNow } from "./ui/time.js";
import { tellProblem } from "./ui/toast.js";

const loaded = new Map();

/** Loads a view's module, once. */
function useView(route) {
  const [, draw] = useState(0);
  useLayoutEffect(() => {
    if (!route || loaded.has(route.name)) return;
    route.load().then(
      (module) => loaded.set(route.name, { module }),
      (error) => loaded.set(route.name, { error }),
    ).finally(() => draw((count) => count + 1));
  }, [route]);
  return route ? loaded.get(route.name) : null;
}

/** The view of the present address. */
export function Outlet() {
  const place = usePlace();
  const { route, params } = routeOf(place.path);
  const view = useView(route);
  const main = useRef(null);
  const title = view && view.module && view.module.title ? view.module.title(params) : (route && route.nav) || "";
  useEffect(() => {
    document.title = title ? `${title} · ElasticDL` : "ElasticDL";
  }, [title]);
  useEffect(() => {
    if (main.current) main.current.scrollTop = 0;
  }, [route]);
  let content = html`<${Loading} height=${300} />`;
  if (!route) {
    content = html`<${Empty} title="There is no such view"><a href="#/">Go to the cluster</a><//>`;
  } else if (view && view.error) {
    const problem = { message: "This view could not be loaded.", fix: "Load the page anew: it may have been updated meanwhile." };
    content = html`<${ErrorState} error=${problem} retry=${() => location.reload()} />`;
  } else if (view) {
    content = html`<${view.module.default} key=${route.name + (params.id || "")} params=${params} query=${place.query} all=${place.all} />`;
  }
  return html`<main id="main" ref=${main} tabindex="-1"><${Guard} key=${place.path}>${content}<//></main>`;
}

/** Keeps a fault in one view from taking the page with it. */
class Guard extends Component {
  constructor() {
    super();
    this.state = { error: null };
  }

  static getDerivedStateFromError(error) {
    return { error };
  }

  componentDidCatch(error) {
    console.error(error);
  }

  render({ children }, { error }) {
    if (error === null) return children;
    const problem = { message: "This view failed.", fix: `${error.name}: ${error.message}` };
    return html`<${ErrorState} error=${problem} retry=${() => this.setState({ error: null })} />`;
  }
}

/** Whether what is shown is live, and since when it is not. */
function Life() {
  const state = useStore(connection);
  const now = useNow();
  if (state.phase === "idle") return null;
  const silent = state.heard ? duration(Math.max(1, Math.round((now - state.heard) / 1000))) : "";
  const texts = {
    connecting: ["wait", "Connecting"],
    live: ["good", "Live"],
    stale: ["bad", silent ? `Stale since ${silent}` : "No connection"],
    ended: ["off", "Ended"],
  };
  const [tone, text] = texts[state.phase];
  return html`<span class="life badge" data-tone=${tone} title=${state.problem || "The live stream of changes"}><i aria-hidden="true"></i>
    <span role=${state.phase === "stale" ? "status" : undefined}>${text}</span></span>`;
}

/** Dark, light, or as the system has it. */
function ThemeSwitch() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || (system.matches ? "dark" : "light"));
  const turn = () => {
    const next = theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("elasticdl.theme", next);
    setTheme(next);
    window.dispatchEvent(new Event("themechange"));
  };
  const label = theme === "dark" ? "Light colours" : "Dark colours";
  return html`<${Button} kind="quiet" icon=${theme === "dark" ? "sun" : "moon"} aria-label=${label} title=${label} onClick=${turn} />`;
}

function Navigation({ chosen, onChoose }) {
  const user = useStore(session);
  const shown = routes.filter((route) => route.nav && (!route.scope || may(route.scope, user)));
  return html`<nav class="main" aria-label="Views"><ul>${shown.map((route) => html`<li key=${route.name}>
    <a href=${href(route.path.replace(/\/:.*$/, "") || "/")} aria-current=${route.name === chosen ? "page" : undefined} onClick=${onChoose}>
      <${Icon} name=${route.icon} />${route.nav}</a></li>`)}
    <li class="apart"><a href="/docs"><${Icon} name="external" />API</a></li></ul></nav>`;
}

/** The whole page of somebody who is logged in. */
export function Shell() {
  const { route } = routeOf(usePlace().path);
  const user = useStore(session);
  const [open, setOpen] = useState(false);
  const chosen = route ? route.under || route.name : "";
  const leave = () => logOut().catch(tellProblem);
  const skip = (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  };
  return html`<div class="shell" data-open=${open ? "" : undefined}>
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top">
      <${Button} kind="quiet" class="menu" icon="menu" aria-label="Navigation" aria-expanded=${open} onClick=${() => setOpen(!open)} />
      <a class="brand" href="#/"><svg viewBox="0 0 16 16" aria-hidden="true"><rect width="16" height=${16} rx="4" /><path d="M4.200 11.500V8.500M8 11.500v-7M11.800 11.500v-5" /></svg>ElasticDL</a>
      <${Life} /><span class="grow"></span>
      <span class="who" title=${user.namespace ? `Namespace ${user.namespace}` : "All namespaces"}>${user.user}<span class="faint"> ${user.namespace || "all namespaces"}</span></span>
      <${ThemeSwitch} /><${Button} kind="quiet" onClick=${leave}>Log out<//>
    </header>
    <${Navigation} chosen=${chosen} onChoose=${() => setOpen(false)} />
    <${Outlet} />
  </div>`;
}
