/** Where the page begins: the session first, then its view. */
import { place } from "./address.js";
import { html, render } from "./lib.js";
import { routeOf } from "./router.js";
import { resume, session } from "./session.js";
import { Shell } from "./shell.js";
import { useStore } from "./store.js";
import { Toasts } from "./ui/toast.js";
import { Login } from "./views/login.js";

function App() {
  const phase = useStore(session, (now) => now.phase);
  return html`${phase === "in" && html`<${Shell} />`}${phase === "out" && html`<${Login} />`}
    ${phase === "unknown" && html`<div class="shell"><header class="top"><span class="brand">ElasticDL</span></header></div>`}
    <${Toasts} />`;
}

const first = routeOf(place.get().path).route;
if (first) first.load().catch(() => {}); // its view says what is wrong
resume();
const page = document.getElementById("page");
page.replaceChildren();
render(html`<${App} />`, page);
