/** Model code from the reader's machine: a module, or a zip of several, uploaded as a bundle. */
import { ApiError, send } from "../../api.js";
import { html, useState } from "../../lib.js";
import { Field } from "../../ui/elements.js";
import { bytes, sentences } from "../../ui/format.js";
import { zipOf } from "./zip.js";

const FUNCTIONS = ["custom_model", "forward", "model"];

/** Uploads a `.py` or `.zip`; returns its digest. */
export async function uploadModel(file) {
  let content = new Uint8Array(await file.arrayBuffer());
  if (file.name.endsWith(".py")) content = zipOf(file.name, content);
  else if (!file.name.endsWith(".zip")) throw new ApiError(0, { detail: `${file.name} is neither a module nor a zip.`, fix: "Choose a .py file, or a .zip of a folder of modules." });
  if (!crypto.subtle) throw new ApiError(0, { detail: "This page is not served over TLS, so the browser can name no upload.", fix: "Open it at localhost or over https, or upload with: elasticdl zoo push" });
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  const digest = `sha256:${[...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
  await send("PUT", `/bundles/${digest}`, content, { headers: { "Content-Type": "application/zip" } });
  return digest;
}

/** What a module's text offers as the model: `digits.custom_model`, or `train.__main__` of a script; empty if nothing is known by its name. */
export function modelIn(name, text) {
  const found = FUNCTIONS.find((one) => new RegExp(`^(def|class) ${one}\\b|^${one} *=`, "m").test(text));
  const model = found || (/^if __name__ == ["']__main__["']/m.test(text) ? "__main__" : "");
  return model && `${name.replace(/\.py$/, "")}.${model}`;
}

/** Chooses a file and uploads it: `onUploaded(digest, model)`. */
export function Upload({ digest, problem, onUploaded }) {
  const [state, setState] = useState({ text: "", problem: "", busy: false });
  const choose = async (event) => {
    const file = event.target.files[0];
    if (!file) return;
    setState({ text: `Uploading ${file.name}`, problem: "", busy: true });
    try {
      const uploaded = await uploadModel(file);
      const model = file.name.endsWith(".py") ? modelIn(file.name, await file.text()) : "";
      setState({ text: `${file.name}, ${bytes(file.size)}, is uploaded.`, problem: "", busy: false });
      onUploaded(uploaded, model);
    } catch (error) {
      setState({ text: "", problem: sentences(error), busy: false });
    }
  };
  const kept = digest && !state.text ? `${digest.slice(0, 19)}… of an earlier upload is used.` : "";
  return html`<${Field} id="model-file" label="Model code" problem=${state.problem || problem} hint="A module (.py), or a zip of several.">
    <input id="model-file" type="file" accept=".py,.zip" disabled=${state.busy} aria-busy=${state.busy} aria-describedby="model-file-hint model-file-state" onChange=${choose} />
    <p id="model-file-state" class="hint" role="status">${state.text || kept}</p>
  <//>`;
}
